/* Lockstep, room parallel/: data parallelism. The ranks of a group train one model, each on its part of every batch.
 *
 * The loop of one's own, as in examples/own_loop.c: lks_distributed_store_create, lks_program_create, then for every
 * batch forward, backward, lks_distributed_optimizer_step. lks_trainer (train.h) is these pieces put together.
 */
#ifndef LOCKSTEP_PARALLEL_H
#define LOCKSTEP_PARALLEL_H

#include <lockstep/graph.h>
#include <lockstep/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A parameter store in memory that the group gives, initialised by rank 0 from `seed`. Where all ranks share a host,
 * they share one copy of the parameters (a shared replica); elsewhere each has its own, which begin equal.
 * Collective. lks_store_destroy frees it, before the group is destroyed.
 * Errors: LKS_ERR_MISMATCH where ranks built different models; those of lks_store_create and of the group. */
LKS_API lks_status lks_distributed_store_create(lks_store **store, lks_group *group, lks_node *loss,
                                                const lks_store_options *options);

/* Copies rank 0's parameters to all ranks. Collective. For stores made by lks_store_create; a shared replica has only
 * one copy, which stays rank 0's. */
LKS_API lks_status lks_broadcast_parameters(lks_group *group, lks_store *store);

typedef struct lks_distributed_optimizer lks_distributed_optimizer;

/* `group` and `store` must outlive it. Collective. Errors: LKS_ERR_ARGUMENT (a hyperparameter, named), LKS_ERR_MEMORY.
 */
LKS_API lks_status lks_distributed_optimizer_create(lks_distributed_optimizer **optimizer, lks_group *group,
                                                    lks_store *store, const lks_optimizer *rule);
LKS_API void lks_distributed_optimizer_destroy(lks_distributed_optimizer *optimizer);

/* Sums over all ranks of one step. */
typedef struct lks_step_sums {
    double n_samples, loss, n_correct;
    double grad_norm; /* of the mean gradient, before clipping; 0 where the rule does not clip. Given by no rank */
} lks_step_sums;

/* Averages the gradients of all ranks and updates the parameters.
 *
 * The store's gradients must hold the SUM over this rank's samples: lks_program_backward(program, n_samples) makes the
 * mean loss into that; a rank without samples passes n_samples 0, and its gradients are not read. `mine` carries the
 * number of samples, which weights the mean, and any two figures of this rank to be summed along; `all` (may be NULL)
 * receives the sums.
 * Collective. Numerics: gradients are added in canonical order over the ranks, by every strategy: the same bits.
 * Errors: LKS_ERR_ARGUMENT where no rank has a sample; those of the group. After an error in the middle of an update
 * the parameters of a shared replica are torn: reading them through the library gives LKS_ERR_TORN. */
LKS_API lks_status lks_distributed_optimizer_step(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                                  lks_step_sums *all);

/* Adds this rank's gradients (as above, the sum over its samples) and `mine` to what the next step takes in: a batch
 * too large for memory is computed piece by piece. Not collective: ranks may accumulate as often as they like; nothing
 * is communicated before the step. The first call, the second, the fourth, the eighth, ... before one step allocate as
 * much as the gradients take; later steps of as many pieces allocate nothing. Numerics: pieces, the step's own gradients
 * the last of them, are added in canonical order over the calls; one without samples is zeros. Errors: LKS_ERR_MEMORY.
 */
LKS_API lks_status lks_distributed_optimizer_accumulate(lks_distributed_optimizer *optimizer,
                                                        const lks_step_sums *mine);

/* From the next step on the rule's learning rate is `lr`, times what its schedule says. The same on all ranks, which
 * the next step checks. Errors: LKS_ERR_ARGUMENT. */
LKS_API lks_status lks_distributed_optimizer_set_lr(lks_distributed_optimizer *optimizer, double lr);

/* Compares all ranks' parameters by hash. Collective.
 * Errors: LKS_ERR_MISMATCH, naming the first parameter that differs and the first rank that differs from rank 0. */
LKS_API lks_status lks_check_replicas(lks_group *group, const lks_store *store);

#ifdef __cplusplus
}
#endif
#endif
