/* Lockstep, room parallel/: data parallelism. The ranks of a group train one model, each on its part of every batch.
 *
 * The loop of one's own: lks_distributed_store_create, or as in examples/own_loop.c lks_store_create and
 * lks_broadcast_parameters; lks_program_create, lks_distributed_optimizer_create; then for every batch
 * lks_program_set_batch, lks_program_set_random where there is dropout, forward, backward,
 * lks_distributed_optimizer_step. lks_trainer (train.h) is these pieces put together.
 */
#ifndef LOCKSTEP_PARALLEL_H
#define LOCKSTEP_PARALLEL_H

#include <lockstep/graph.h>
#include <lockstep/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the ranks share memory and work. Every strategy gives the same bits, as long as sums keep the canonical order
 * (docs/determinism.md). In bytes per rank, of P bytes of parameters
 * and S of optimizer state, for n ranks:
 *
 *     shared     one copy of the parameters for all, in memory that they share; each rank adds up and updates a part of
 *                them: P / n parameters, P gradients, S / n state. Nothing is sent.
 *     bucketed   each rank has its own copy; gradients are added up bucket by bucket, which an attached program may
 *                begin during its backward pass, and every rank updates everything: P, P, S.
 *     sharded    likewise, but each rank gets the sum of its part of each bucket only, updates that, and the parts are
 *                gathered: P, P, S / n. As much is sent. Where ranks share memory nothing is: each adds up and updates
 *                a part, and writes it to all ranks over the gradients, which are the parameters then. */
typedef enum lks_strategy {
    LKS_STRATEGY_AUTO, /* where all ranks are on one host sharded, as long as 2 P n is up to 64 MiB, and shared beyond;
                          else bucketed */
    LKS_STRATEGY_SHARED,
    LKS_STRATEGY_BUCKETED,
    LKS_STRATEGY_SHARDED
} lks_strategy;

/* --- compression: fewer bytes between hosts for the sum of the gradients (docs/compression.md) ---
 *
 * What comes out is an approximation of the sum, the same bits on all ranks. What a step leaves out is not lost: each
 * rank keeps it and adds it to its gradients in the next step (error feedback), so that over any number of steps
 *
 *     sum of what was applied = sum of all gradients - what the ranks hold back now,    up to roundings in f32.
 *
 * What is held back is not part of checkpoints: a run that is resumed begins with nothing held back, be it in a new
 * process or by a trainer that has made steps already, and so goes on to other bits than one that was not interrupted.
 * It is a sum over samples, as gradients are here: a short last batch, whose mean is over fewer samples, gives what was
 * held back that much more weight. Averages of statistics (batch norm's) are never compressed. In a group of one rank
 * bf16, f16 and PowerSGD leave the sum exact, and a hook is called as with more. Gradients that are not finite come out
 * not finite, and are not held back; where such a step is refused, what it held back of the others stays held back.
 *
 * Source: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent", 2014; Karimireddy, Rebjock, Stich, Jaggi,
 * "Error feedback fixes SignSGD and other gradient compression schemes", 2019. */
typedef enum lks_compression_kind {
    LKS_COMPRESS_NONE,
    /* 16 bits an element, both ways: half of f32's bytes. Every rank adds up one slice of the gradients, rounds the sum
     * again and holds back that error too (Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze", 2019). f16 has 3 bits more than
     * bf16; each block of it carries a power of two of its own that brings its largest element to 2^14..2^15, so that
     * nothing overflows and what is 2^-38 of the largest is still seen. Keeps 4 bytes an element on every rank, and as
     * many for each of the largest bucket's. */
    LKS_COMPRESS_BF16,
    LKS_COMPRESS_F16,
    /* A gradient with 2 dimensions or more is taken as a matrix M (m,n) of its first dimension by all others, and sent
     * as two thin ones, with Q (n,r) from the last step:
     *     P = sum over ranks of M Q, made orthonormal; Q = sum over ranks of M^T P; the sum of all M is about P Q^T.
     * That is (m + n) r elements for m n; where it would be more than half of them, and for vectors, all are sent.
     * Costs 4 m n r multiplications a step on every rank, and begins when the whole gradient is there. Keeps 4 bytes
     * an element. Source: Vogels, Karimireddy, Jaggi, "PowerSGD", 2019 (what is held back here is each rank's own
     * M - P P^T M, which has the same sum over ranks). */
    LKS_COMPRESS_POWERSGD,
    LKS_COMPRESS_USER /* by `hook` */
} lks_compression_kind;

/* A part of all parameters' gradients, which lie one after the other in the store's own order, padding included, which
 * becomes 0 again whatever is made of it. The same parts come in every step, so that `first` tells which it is: what a
 * hook keeps from step to step it keeps by that. A parameter's elements may be cut by a part's end. */
typedef struct lks_bucket {
    void *gradients;     /* `count` elements */
    size_t first, count; /* of `n_elements`, the first at 0 */
    size_t n_elements;   /* in all parts together */
    lks_type type;
} lks_bucket;

/* Makes the bucket's gradients the sum over all ranks, or what is to be taken for it: the same bits on every rank
 * (lks_check_replicas tells). Called for one bucket after the other, in an order that is the same on all ranks, and may
 * be another in the next step: what is needed most goes first. May use `group`, as all ranks do, and nothing else that
 * waits for them. Called with one rank, too. Runs on a thread of the library's where the reduction overlaps the
 * backward pass. Another status than LKS_OK fails the group. */
typedef lks_status (*lks_reduce_hook)(void *context, lks_group *group, const lks_bucket *bucket);

typedef struct lks_compression {
    lks_compression_kind kind;
    int rank;             /* PowerSGD: r; 0: 4 */
    lks_reduce_hook hook; /* of LKS_COMPRESS_USER, which needs one */
    void *context;        /* handed to it */
} lks_compression;

/* The same on all ranks. */
typedef struct lks_distributed_options {
    uint64_t seed; /* of the initial values */
    lks_strategy strategy;
    /* Of gradients that are sent; rounded up to 4096 elements, times the ranks where sharded. 0: between hosts what a
     * short measurement says (at most 32 MiB and a 16th of all, at least 64 KiB), 8 MiB on GPUs; 1 MiB on one host, and
     * where bits depend on it: gradients are compressed, or sums need not keep the canonical order. The first has 1 MiB
     * at most, unless one holds all: then nothing overlaps. */
    size_t bucket_nbytes;
    lks_compression compression; /* of a bucketed store's gradients, which it makes `auto` choose */
} lks_distributed_options;

/* A parameter store in memory that the group gives, initialised by rank 0 from the seed. Where the strategy is shared,
 * the ranks share one copy of the parameters (a shared replica); else each has its own, which begin equal.
 * `options` may be NULL. Collective. lks_store_destroy frees it, before the group is destroyed.
 * Errors: LKS_ERR_MISMATCH where ranks built different models or have different options, shown as a table, after
 * which the group lives on; LKS_ERR_UNSUPPORTED: shared between hosts or over tcp, compression by another strategy than
 * bucketed or of f64 gradients; LKS_ERR_ARGUMENT: an option that cannot be meant, a model that could not be built,
 * NULL: it fails the group, also where one rank alone was given it: the other ranks get LKS_ERR_PEER and do not wait;
 * those of lks_store_create, likewise, and of the group. */
LKS_API lks_status lks_distributed_store_create(lks_store **store, lks_group *group, lks_node *loss,
                                                const lks_distributed_options *options);

/* Copies rank 0's parameters to all ranks. Collective. For stores made by lks_store_create; a shared replica has only
 * one copy, which stays rank 0's. */
LKS_API lks_status lks_broadcast_parameters(lks_group *group, lks_store *store);

typedef struct lks_distributed_optimizer lks_distributed_optimizer;

/* The strategy is the store's; one that lks_store_create made is bucketed. `group` and `store` must outlive it.
 * Collective. Errors: LKS_ERR_ARGUMENT: a hyperparameter that cannot be meant (lr NaN), named; no rule, no store; a
 * model without a parameter to train; another group than the one that lks_distributed_store_create was given. Each of
 * these fails the group, also where one rank alone was given it: the other ranks get LKS_ERR_PEER and do not wait.
 * LKS_ERR_MISMATCH: ranks have other rules, devices, or names or shapes of parameters, shown as a table, after which
 * the group lives on (values: lks_check_replicas); LKS_ERR_MEMORY. */
LKS_API lks_status lks_distributed_optimizer_create(lks_distributed_optimizer **optimizer, lks_group *group,
                                                    lks_store *store, const lks_optimizer *rule);
/* Programs that were attached may not run backward after it, unless they are attached to another. Destroyed between a
 * backward pass and its step, it fails the group. */
LKS_API void lks_distributed_optimizer_destroy(lks_distributed_optimizer *optimizer);

/* Sums over all ranks of one step. */
typedef struct lks_step_sums {
    double n_samples, loss, n_correct;
    double grad_norm; /* of the mean gradient, before clipping; 0 where the rule does not clip. Given by no rank */
    double stop;      /* not a sum: the largest that any rank gives. Above 0 where one wants all to end after this step,
                         which they so agree on without a collective of its own */
    double buffer_weight; /* samples that buffers average (lks_program_set_buffer_weight); 0: n_samples. A rank of
                             which it is above 0 has samples, even where none of their labels counts */
} lks_step_sums;

/* Averages the gradients of all ranks and updates the parameters.
 *
 * The store's gradients must hold the SUM over this rank's samples: lks_program_backward(program, n_samples) makes the
 * mean loss into that; a rank without samples passes n_samples and buffer_weight 0, and its gradients are not read.
 * `mine` carries the number of samples, which weights the mean, any two figures of this rank to be summed along, and
 * whether it wants to stop; `all` (may be NULL) receives the sums. On GPUs a `loss` that is not finite is
 * LKS_ERR_NUMERIC, as below, whether the rule clips or not.
 *
 * In an optimizer's first step the ranks also compare which data lks_program_set_batch was given: LKS_ERR_MISMATCH on
 * all ranks, and nothing was updated, where two ranks train on the same samples, or where loaders made for as many
 * ranks as there are differ in data, order of samples or options, shown as a table. Batches made by hand are not
 * compared.
 *
 * Collective. Afterwards, also where the step was refused, the store's gradients are nobody's: its own rank's sum, all
 * ranks', or a part of each, by strategy. Numerics: gradients are added in canonical order over the ranks, by every
 * strategy: the same bits. Errors: LKS_ERR_ARGUMENT where no rank has a sample: on all ranks, and the group lives on;
 * LKS_ERR_ARGUMENT where a rank brings a number of them, or a weight, that is negative or not finite, or `mine` is
 * NULL, LKS_ERR_STATE where one with samples has used its last backward pass already, in a step, which may have been
 * refused or another of the store's optimizers', or by lks_distributed_optimizer_accumulate (gradients may also be made
 * by hand, in lks_store_gradient: where no program of the store has run backward yet on this rank, they are taken for
 * such, whatever they hold): these fail the group, and the other ranks get LKS_ERR_PEER, which names that rank;
 * LKS_ERR_NUMERIC where the rule clips and the norm is not finite: on all ranks, nothing was updated, and the group
 * lives on; those of the group. After an error in the middle of an update the parameters are torn: reading them through
 * the library gives LKS_ERR_TORN; but where the store is sharded among ranks that share memory they are those of the
 * step before. */
LKS_API lks_status lks_distributed_optimizer_step(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                                  lks_step_sums *all);

/* Adds this rank's gradients (as above, the sum over its samples) and `mine` to what the next step takes in: a batch
 * too large for memory is computed piece by piece. Not collective: ranks may accumulate as often as they like; nothing
 * is communicated before the step. The first call, the second, the fourth, the eighth, ... before one step allocate as
 * much as the gradients take; later steps of as many pieces allocate nothing. Numerics: pieces, the step's own
 * gradients the last of them, are added in canonical order over the calls; one without samples is zeros. Errors:
 * LKS_ERR_MEMORY; LKS_ERR_ARGUMENT: a number of samples that is negative or not finite; LKS_ERR_STATE: the last
 * backward pass has been used already, as in lks_distributed_optimizer_step; or it was an attached program's, and no
 * lks_distributed_optimizer_no_sync came before it. Each fails the group. */
LKS_API lks_status lks_distributed_optimizer_accumulate(lks_distributed_optimizer *optimizer,
                                                        const lks_step_sums *mine);

/* From now on each backward pass of `program`, one of the store's, starts the reduction of a bucket as soon as its
 * gradients are final, on GPUs, or on a thread of the optimizer's where ranks are reached over a network and this one
 * is alone on its host or has two CPUs there; the step waits for them. Between such a pass and its step the group is
 * that thread's (collectives of the caller's are LKS_ERR_STATE, and so are such passes and steps of another optimizer
 * in it), and the gradients are not to be read. Several programs may be attached; a rank that runs none in a step just
 * steps. Takes the program's lks_on_gradient. A second pass before the step, of whatever program of the store:
 * LKS_ERR_STATE.
 *
 * Elsewhere nothing of that is so: gradients are added up in the step, and passes may be repeated. A program that is to
 * run anywhere does neither. In a shared replica the gradient of a linear layer's weight may be left as its two
 * factors, which the step multiplies: until another pass it is not in the store. Reading it, putting it aside and a
 * second step with it are LKS_ERR_STATE. What such a pass began or left is for the optimizer that its program was
 * attached to last: a step of another one of the store's is LKS_ERR_STATE. No factors are left where lks_on_gradient
 * asks for gradients, nor for pieces (lks_distributed_optimizer_no_sync).
 *
 * Not collective; does nothing with one rank. Errors: LKS_ERR_ARGUMENT: a program of another store; LKS_ERR_MEMORY,
 * LKS_ERR_SYSTEM. Each fails the group. */
LKS_API lks_status lks_distributed_optimizer_attach(lks_distributed_optimizer *optimizer, lks_program *program);

/* 1: backward passes start and leave nothing, until 0 is given: for pieces that lks_distributed_optimizer_accumulate
 * puts aside. The last piece's pass comes after 0, so that it overlaps. */
LKS_API void lks_distributed_optimizer_no_sync(lks_distributed_optimizer *optimizer, int is_put_aside);

/* From the next step on the rule's learning rate is `lr`, times what its schedule says. The same on all ranks, which
 * the next step checks. Errors: LKS_ERR_ARGUMENT: no finite number from 0 on. */
LKS_API lks_status lks_distributed_optimizer_set_lr(lks_distributed_optimizer *optimizer, double lr);

/* Bytes of memory that one rank's training takes. */
typedef struct lks_distributed_memory {
    size_t parameters_nbytes; /* of a shared replica: the one copy divided by the ranks */
    size_t gradients_nbytes;  /* with what was accumulated, compression keeps, and sums of factors are made in */
    size_t optimizer_state_nbytes;
    size_t activations_nbytes; /* and scratch, of compiled programs */
} lks_distributed_memory;

/* What the store and the optimizer take; no activations, which are the programs' (lks_program_nbytes). */
LKS_API void lks_distributed_optimizer_memory(const lks_distributed_optimizer *optimizer,
                                              lks_distributed_memory *memory);

/* --- what goes wrong quietly --- */

/* One thing that a rank was given, in words. */
typedef struct lks_option {
    const char *name, *value; /* value NULL: this rank has none */
} lks_option;

/* Are all ranks about to do the same? Compares the ranks' options by name, in any order; names are unique. Collective;
 * costs a barrier where all is equal. lks_trainer does it by itself. Control characters are shown as '?'; of values
 * that are too long for a column, where they begin to differ. Errors: LKS_ERR_MISMATCH on all ranks, whose text is a
 * table, one line per option that differs and one column per kind of ranks. The group lives on. LKS_ERR_ARGUMENT: a
 * negative number of options, one without a name, or a name twice; LKS_ERR_PEER on the others. */
LKS_API lks_status lks_compare_options(lks_group *group, const lks_option *options, int n_options);

/* Is any rank's gradient, as its last backward pass left it in the store, NaN or infinite? To be asked before a step,
 * which would spread it to all ranks. `step` is only shown. Collective. Reads all gradients once. Not for a program
 * that is attached (lks_distributed_optimizer_attach): its gradients are the step's when the pass ends. Errors:
 * LKS_ERR_NUMERIC on all ranks, naming step, rank and parameter. The group lives on. */
LKS_API lks_status lks_check_gradients(lks_group *group, lks_store *store, int64_t step);

/* --- programs with synchronised batch norms (lks_batch_norm_with) --- */

/* From now on the program's forward and backward passes in training add up the batch norms' statistics over `group`: of
 * every rank, at once and in the same order; a rank without samples is absent (below). The factors of
 * lks_program_backward must make the ranks' losses parts of one sum (lks_distributed_optimizer_step's are such).
 * `group` is used by the program's runs alone (lks_group_split makes one), and outlives them. A program without
 * synchronised batch norms never uses it.
 * Errors, of those passes: LKS_ERR_STATE without this call; those of the group. Where a pass of one rank fails, the
 * group fails on all: none waits. */
LKS_API void lks_program_synchronise(lks_program *program, lks_group *group);
/* From the next pass on, where `is_absent`, this rank takes part in those sums, but counts nothing: for a rank without
 * samples, which runs its program on anything and backward by factor 0, because the others wait for it. Its parameters'
 * gradients are then 0, those of inputs anything, and lks_on_gradient's callback is not called: an attached program
 * sends nothing, and the step comes with n_samples 0. */
LKS_API void lks_program_set_absent(lks_program *program, int is_absent);

/* Compares all ranks' parameters by name, shape and hash. Collective. The group lives on. It tells what is so now:
 * where the store is sharded, a step writes all ranks' copies anew, each part by its owner, and a copy that went wrong
 * before it is whole again though its gradients have gone in; a shared replica is one copy. Errors: LKS_ERR_MISMATCH,
 * naming the first parameter that differs and the first rank whose values are not those that most ranks have; what kept
 * a rank from reading its own parameters (LKS_ERR_MEMORY, LKS_ERR_TORN), on all of them. */
LKS_API lks_status lks_check_replicas(lks_group *group, const lks_store *store);

#ifdef __cplusplus
}
#endif
#endif
