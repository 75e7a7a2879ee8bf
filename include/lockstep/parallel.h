/* Lockstep, room parallel/: data parallelism. The ranks of a group train one model. Each rank processes its part of
 * every batch.
 *
 * A custom training loop creates these objects:
 *     lks_distributed_store_create, or lks_store_create and lks_broadcast_parameters (examples/own_loop.c);
 *     lks_program_create;
 *     lks_distributed_optimizer_create.
 * For every batch it calls:
 *     lks_program_set_batch, and lks_program_set_random if the model has dropout;
 *     lks_program_forward, lks_program_backward;
 *     lks_distributed_optimizer_step.
 * lks_trainer (train.h) combines these calls.
 *
 * "Errors:" lists errors after which the group remains usable, unless it says otherwise. "Fatal:" lists errors after
 * which the group is dead (comm.h). If only one rank has a fatal error, the other ranks get LKS_ERR_PEER and do not
 * wait. */
#ifndef LOCKSTEP_PARALLEL_H
#define LOCKSTEP_PARALLEL_H

#include <lockstep/graph.h>
#include <lockstep/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the ranks share memory and work.
 *
 * All strategies give the same bits, as long as sums keep the canonical order (docs/determinism.md). The memory below
 * is per rank, for n ranks, P bytes of parameters and S bytes of optimizer state:
 *
 *     strategy   parameters  gradients  state
 *     shared     P / n       P + F      S / n
 *     bucketed   P           P          S
 *     sharded    P           P          S / n
 *
 * F is 0, unless attached programs leave gradients of linear layers as factors, which the step multiplies (small
 * batches, no clipping). It is then log2 n, rounded down, times about 512 KiB, or less if all these layers are smaller.
 *
 * shared: all ranks use one copy of the parameters in shared memory. Each rank reduces and updates its part of them.
 * Nothing is sent.
 * bucketed: each rank has its own copy, as in DistributedDataParallel. Gradients are reduced bucket by bucket. An
 * attached program may start this during its backward pass. Every rank updates all parameters.
 * sharded: each rank has its own copy, as in ZeRO stage 1. Each rank gets the sum of its part of each bucket and
 * updates that part. The parts are then gathered. The traffic equals that of bucketed. If the ranks share memory,
 * nothing is sent: each rank reduces and updates its part, and writes it over the gradients of all ranks. These arrays
 * then hold the parameters. */
typedef enum lks_strategy {
    /* CPU ranks that share memory: sharded while 2 P n is at most 64 MiB, shared beyond. One CPU rank: shared.
     * Otherwise bucketed: on GPUs, on several hosts, and with transport tcp or mpi also on one. */
    LKS_STRATEGY_AUTO,
    LKS_STRATEGY_SHARED,
    LKS_STRATEGY_BUCKETED,
    LKS_STRATEGY_SHARDED
} lks_strategy;

/* --- compression of gradients between hosts (docs/compression.md) ---
 *
 * The result is an approximation of the sum, with the same bits on all ranks. Each rank keeps the part that a step left
 * out and adds it to its gradients in the next step (error feedback). Over any number of steps
 *
 *     sum of applied gradients = sum of all gradients - the ranks' current residuals,    up to rounding in f32.
 *
 * Checkpoints do not contain the residual. A resumed run starts with a residual of 0, in a new process and in a trainer
 * that has already made steps. Its bits differ from those of an uninterrupted run.
 * The residual is a sum over samples, as all gradients are here. In a short last batch the mean is over fewer samples,
 * so the residual has more weight.
 * Averages of statistics (batch norm) are never compressed.
 * In a group of one rank bf16, f16 and PowerSGD leave the sum exact. A hook is called as with more ranks.
 * Gradients that are not finite stay not finite and do not enter the residual. If such a step is not refused, the
 * residuals of these elements become 0, with PowerSGD those of the whole matrix.
 * A step that is refused without being fatal to the group drops its gradients and leaves the residuals and PowerSGD's Q
 * as they were before it. A hook is not told of the refusal.
 *
 * Source:     Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent", 2014; Karimireddy, Rebjock, Stich, Jaggi,
 *             "Error feedback fixes SignSGD and other gradient compression schemes", 2019. */
typedef enum lks_compression_kind {
    LKS_COMPRESS_NONE,
    /* 16 bits per element in both directions: half the bytes of f32. Each rank reduces one slice of the gradients,
     * rounds the sum again and keeps that rounding error too. f16 has 3 bits more precision than bf16. Each block of
     * f16 has its own power-of-two scale, which brings its largest element to 2^14..2^15. Nothing overflows, and
     * elements down to 2^-38 of the largest are kept.
     * Memory: 8 bytes per element on every rank, and 4 bytes for each element of the largest bucket.
     * Source: Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze", 2019. */
    LKS_COMPRESS_BF16,
    LKS_COMPRESS_F16,
    /* Low-rank approximation. A gradient with 2 or more dimensions is treated as a matrix M (m,n), its first dimension
     * by all others. Two thin matrices are sent. Q (n,r) is kept from the last step:
     *     P = sum over ranks of M Q, orthonormalised; Q = sum over ranks of M^T P; the sum of all M is about P Q^T.
     * This sends (m + n) r elements instead of m n. If that is more than half of m n, and for vectors, the gradient is
     * sent in full. Each rank keeps M - P P^T M of its own M, which has the same sum over ranks as the paper's
     * residual.
     * Cost: 4 m n r multiplications per step on every rank. The reduction starts when the whole gradient is there.
     * Memory: 8 bytes per element, and 4 bytes for each element of the largest matrix.
     * Source: Vogels, Karimireddy, Jaggi, "PowerSGD", 2019. */
    LKS_COMPRESS_POWERSGD,
    LKS_COMPRESS_USER /* `hook` reduces; memory: 1 byte per element */
} lks_compression_kind;

/* A part of the gradients, as passed to a reduce hook.
 *
 * The gradients of all parameters form one array in the store's order, with padding. The padding is set to 0 after the
 * hook, whatever it writes there. A bucket is a range of this array and may cut a parameter in two. Every step has the
 * same buckets. A hook that keeps data between steps identifies a bucket by `first`. */
typedef struct lks_bucket {
    void *gradients;     /* `count` elements */
    size_t first, count; /* range in the array of `n_elements`; the array begins at 0 */
    size_t n_elements;   /* elements of all buckets */
    lks_type type;
} lks_bucket;

/* A communication hook. It replaces the bucket's gradients by their sum over all ranks, or by an approximation of it.
 *
 * The result must have the same bits on every rank (lks_check_replicas verifies this). The hook is called for one
 * bucket after the other. The order is the same on all ranks, but may change from step to step: the most urgent bucket
 * comes first. It is also called with one rank. The hook may use `group` if all ranks do. It must not wait for other
 * ranks in any other way.
 * Threads:    a library thread calls the hook if the reduction overlaps the backward pass.
 * Errors:     any status other than LKS_OK is fatal to the group. */
typedef lks_status (*lks_reduce_hook)(void *context, lks_group *group, const lks_bucket *bucket);

typedef struct lks_compression {
    lks_compression_kind kind;
    int rank;             /* PowerSGD: r; 0: 4 */
    lks_reduce_hook hook; /* required for LKS_COMPRESS_USER */
    void *context;        /* passed to the hook */
} lks_compression;

/* Options of a distributed store. All fields are the same on all ranks. */
typedef struct lks_distributed_options {
    uint64_t seed; /* of the initial values */
    lks_strategy strategy;
    /* Size of the buckets in which gradients are sent. The first bucket has at most 1 MiB. All sizes are rounded up to
     * 4096 elements, or 4096 times the number of ranks if sharded. If one bucket holds all gradients, nothing overlaps.
     * PowerSGD always has one. 0 selects the default:
     *   - on GPUs: 8 MiB;
     *   - on one host: 1 MiB;
     *   - gradients are compressed, or sums need not keep the canonical order: 1 MiB, because the bits depend on it;
     *   - otherwise: measured between the hosts, at least 64 KiB, at most 32 MiB and 1/16 of all gradients. */
    size_t bucket_nbytes;
    /* Requires strategy bucketed. LKS_STRATEGY_AUTO then chooses bucketed. */
    lks_compression compression;
} lks_distributed_options;

/* Creates a parameter store in memory of the group. Rank 0 initialises it from the seed.
 *
 * With strategy shared all ranks use one copy of the parameters (a shared replica). Otherwise each rank has its own
 * copy, and all copies start equal. `options` may be NULL.
 * Collective: all ranks call it.
 * Ownership:  the caller owns *store and frees it with lks_store_destroy, before the group is destroyed.
 * Errors:     LKS_ERR_MISMATCH: the ranks' models or options differ. The text shows a table.
 *             LKS_ERR_UNSUPPORTED: strategy shared between hosts, over tcp or on GPUs; compression with a strategy
 *             other than bucketed, or on GPUs.
 * Fatal:      LKS_ERR_ARGUMENT: an invalid option, a model with an error, or a NULL argument.
 *             LKS_ERR_UNSUPPORTED: bf16, f16 or PowerSGD compression of f64 gradients.
 *             Those of lks_store_create. Those of the group. */
LKS_API lks_status lks_distributed_store_create(lks_store **store, lks_group *group, lks_node *loss,
                                                const lks_distributed_options *options);

/* Copies rank 0's parameters to all ranks. Collective.
 *
 * For stores made by lks_store_create. Parameters that were torn on other ranks can be read again. A shared replica has
 * only one copy, which keeps the values that were written last, by any rank. The call is then only a barrier. It does
 * not mend ranks that wrote different values (lks_store_write, graph.h).
 * Errors:     LKS_ERR_TORN: on all ranks. Rank 0's parameters are torn. Nothing was copied. The group remains usable.
 */
LKS_API lks_status lks_broadcast_parameters(lks_group *group, lks_store *store);

typedef struct lks_distributed_optimizer lks_distributed_optimizer;

/* Creates an optimizer that updates `store` with the gradients of all ranks.
 *
 * Strategy:   that of the store. A store of lks_store_create is bucketed.
 * Collective: all ranks call it.
 * Ownership:  the caller owns *optimizer. `group` and `store` must outlive it.
 * Errors:     LKS_ERR_MISMATCH: the ranks' rules, devices, or names or shapes of parameters differ. The text shows a
 *             table. Values are not compared (lks_check_replicas compares them).
 * Fatal:      LKS_ERR_ARGUMENT: an invalid hyperparameter (lr NaN), which the text names; no rule or no store; a model
 *             without parameters to train; or another group than that of lks_distributed_store_create.
 *             LKS_ERR_MEMORY. */
LKS_API lks_status lks_distributed_optimizer_create(lks_distributed_optimizer **optimizer, lks_group *group,
                                                    lks_store *store, const lks_optimizer *rule);
/* Frees the optimizer. Accepts NULL.
 *
 * Attached programs must not run backward afterwards, unless they are attached to another optimizer. If it is destroyed
 * between a backward pass and its step, the group is dead. */
LKS_API void lks_distributed_optimizer_destroy(lks_distributed_optimizer *optimizer);

/* The values that a step sums over all ranks. */
typedef struct lks_step_sums {
    double n_samples, loss, n_correct;
    /* Norm of the mean gradient before clipping. 0 if the rule does not clip. Output only. */
    double grad_norm;
    /* Not a sum but a maximum over the ranks. Above 0 if a rank requests that all ranks end after this step. The ranks
     * agree on this without another collective. */
    double stop;
    /* Weight of this rank's samples in the averages of buffers (lks_program_set_buffer_weight). 0: n_samples. A rank
     * with a value above 0 has samples, even if none of their labels is counted. */
    double buffer_weight;
} lks_step_sums;

/* Averages the gradients of all ranks and updates the parameters.
 *
 * `mine` holds this rank's values, `all` (may be NULL) receives the sums. n_samples weights the mean. loss and
 * n_correct are any two values of this rank. stop requests an end.
 * Collective: all ranks call it, in the same order.
 * Data:       In an optimizer's first step the ranks compare the batches that lks_program_set_batch was given. Batches
 *             made by hand are not compared. They also compare the parameters and buffers of a store that
 *             lks_store_create made.
 * Gradients:  On entry the store's gradients hold the SUM over this rank's samples. lks_program_backward(program,
 *             n_samples) turns the mean loss into that sum. A rank without samples passes n_samples 0 and buffer_weight
 *             0, and its gradients are not read. After the step the store's gradients are undefined, also if the step
 *             was refused.
 * Numerics:   Gradients are added in canonical order over the ranks. All strategies give the same bits.
 * Errors:     On all ranks. Nothing was updated.
 *             LKS_ERR_ARGUMENT: no rank has a sample.
 *             LKS_ERR_MISMATCH: the first step found that two ranks train on the same samples, that their loaders
 *             differ in data, order of samples or options (the text shows a table), or that their parameters differ.
 *             LKS_ERR_TORN: the first step found parameters of a store made by lks_store_create that are torn.
 *             LKS_ERR_NUMERIC: the rule clips and the gradient norm is not finite. On GPUs also: `loss` is not finite,
 *             whether the rule clips or not.
 * Fatal:      The other ranks get LKS_ERR_PEER, which names the rank.
 *             LKS_ERR_ARGUMENT: `mine` is NULL, a number of samples or a weight is negative or not finite, or stop is
 *             NaN.
 *             LKS_ERR_STATE: a rank with samples has already used its last backward pass, or has run none. A step uses
 *             it, also a refused one and one of another optimizer of the store. lks_distributed_optimizer_accumulate
 *             uses it too.
 *             Gradients may also be written by hand: as long as no program of the store has run backward on this rank,
 *             a step uses what they hold if lks_store_gradient was called since the last step.
 *             Those of the group.
 *             After an error in the middle of an update the parameters are undefined. Reading them through the library
 *             returns LKS_ERR_TORN, until they are loaded, written or broadcast anew. Exception: a store that is
 *             sharded among ranks that share memory holds the parameters of the step before. */
LKS_API lks_status lks_distributed_optimizer_step(lks_distributed_optimizer *optimizer, const lks_step_sums *mine,
                                                  lks_step_sums *all);

/* Adds this rank's gradients and `mine` to the input of the next step (gradient accumulation).
 *
 * It allows a batch that is too large for memory to be computed in pieces. The gradients are the sum over the samples
 * of the piece, as in lks_distributed_optimizer_step.
 * Collective: no. Ranks may accumulate any number of times. Communication happens in the step.
 * Memory:     Calls 1, 2, 4, 8, ... before one step each allocate as much as the gradients take. Later steps with as
 *             many pieces allocate nothing.
 * Numerics:   Pieces are added in canonical order over the calls. The step's own gradients are the last piece. A piece
 *             without samples counts as zeros.
 * Fatal:      LKS_ERR_ARGUMENT: a number of samples is negative or not finite.
 *             LKS_ERR_STATE: the last backward pass was already used, as in lks_distributed_optimizer_step. Or it was
 *             the pass of an attached program without lks_distributed_optimizer_no_sync before it.
 *             LKS_ERR_MEMORY. */
LKS_API lks_status lks_distributed_optimizer_accumulate(lks_distributed_optimizer *optimizer,
                                                        const lks_step_sums *mine);

/* Overlaps the backward passes of `program` with the reduction of gradients.
 *
 * `program` must be one of the store's. From now on each of its backward passes starts the reduction of a bucket as
 * soon as its gradients are final. The step waits for the reductions. Several programs may be attached. A rank that
 * runs none of them in a step just calls the step. It does nothing with one rank. Not collective.
 *
 * Callback:   a callback of lks_on_gradient, set before this call or after it, stays. A gradient is reduced after the
 *             callback for it has returned, so the callback may change it in place.
 * Overlap:    It is used on GPUs. On CPUs it is used if ranks are connected by a network and this rank is alone on its
 *             host or has two CPUs there. The reduction then runs on a thread of the optimizer. These rules hold
 *             from the first gradient of such a pass until its step:
 *             - The thread uses the group. The caller's collectives, also in a callback, return LKS_ERR_STATE. So do
 *               such passes and steps of another optimizer in the group.
 *             - The gradients must not be read. A callback uses only the gradient that it is called for.
 *             - A second backward pass of any program of the store returns LKS_ERR_STATE.
 *             Elsewhere gradients are reduced in the step, and backward passes may be repeated. A portable program
 *             follows these rules everywhere.
 * Shared:     In a shared replica a backward pass may leave the gradient of a linear layer's weight as two factors. The
 *             step multiplies them. Until another pass this gradient is not in the store. Reading it, accumulating it
 *             and a second step with it return LKS_ERR_STATE. No factors are left if lks_on_gradient has a callback, or
 *             for pieces (lks_distributed_optimizer_no_sync).
 * Ownership:  The reductions or factors of a pass belong to the optimizer to which its program was attached last. A
 *             step of another optimizer of the store returns LKS_ERR_STATE.
 * Fatal:      LKS_ERR_ARGUMENT: the program belongs to another store.
 *             LKS_ERR_MEMORY, LKS_ERR_SYSTEM. */
LKS_API lks_status lks_distributed_optimizer_attach(lks_distributed_optimizer *optimizer, lks_program *program);

/* 1: backward passes start no reduction and leave no factors, until 0 is given.
 *
 * Use it for all pieces that lks_distributed_optimizer_accumulate takes. Set 0 before the backward pass of the last
 * piece, so that this pass overlaps. */
LKS_API void lks_distributed_optimizer_no_sync(lks_distributed_optimizer *optimizer, int is_put_aside);

/* Sets the rule's learning rate from the next step on. The schedule's factor multiplies it.
 *
 * Collective: the same on all ranks. The next step checks this.
 * Errors:     LKS_ERR_ARGUMENT: `lr` is negative or not finite. */
LKS_API lks_status lks_distributed_optimizer_set_lr(lks_distributed_optimizer *optimizer, double lr);

/* Memory that training takes on one rank. */
typedef struct lks_distributed_memory {
    size_t parameters_nbytes; /* of a shared replica: the size of the one copy divided by the number of ranks */
    /* Includes accumulated gradients, residuals of compression, and buffers for sums of factors. */
    size_t gradients_nbytes;
    size_t optimizer_state_nbytes;
    size_t activations_nbytes; /* of compiled programs, with scratch memory */
} lks_distributed_memory;

/* Writes the memory of the store and the optimizer. Activations belong to the programs (lks_program_nbytes). */
LKS_API void lks_distributed_optimizer_memory(const lks_distributed_optimizer *optimizer,
                                              lks_distributed_memory *memory);

/* --- consistency checks --- */

/* A named option of this rank, as text. */
typedef struct lks_option {
    const char *name, *value; /* value NULL: this rank does not have the option */
} lks_option;

/* Compares options over all ranks by name, in any order. Names must be unique.
 *
 * lks_trainer does this automatically. The table shows control characters as '?'. If values are too long for a column,
 * it shows them from the first difference on.
 * Collective: costs one barrier if all options are equal.
 * Errors:     LKS_ERR_MISMATCH: on all ranks. The text is a table with one line per option that differs and one column
 *             per set of ranks that agree. The group remains usable.
 * Fatal:      LKS_ERR_ARGUMENT: n_options is negative, an option has no name, or a name occurs twice. */
LKS_API lks_status lks_compare_options(lks_group *group, const lks_option *options, int n_options);

/* Checks that no rank's gradients contain NaN or infinity. Call it before a step, which would spread them to all ranks.
 *
 * It checks the gradients that the last backward pass left in the store, also if they were accumulated since, or that
 * were written by hand. It reads all gradients once. Gradients that a step has used are not read: a rank without
 * samples has no others. Pieces that were accumulated before the last one are not checked. `step` is only used in the
 * text. Ranks may pass different numbers. Attached programs (lks_distributed_optimizer_attach) cannot be checked: their
 * gradients belong to the step when the pass ends.
 * Collective: all ranks call it.
 * Errors:     LKS_ERR_NUMERIC: on all ranks. The text names step, rank and parameter. The group remains usable. The
 *             pass counts as used on all ranks, and accumulated pieces are dropped, as by a step that was refused. */
LKS_API lks_status lks_check_gradients(lks_group *group, lks_store *store, int64_t step);

/* --- programs with synchronised batch norms (lks_batch_norm_with) --- */

/* Sets the group over which the program's batch norms sum their statistics in training.
 *
 * The forward and backward passes then become collective: every rank runs them at the same time, in the same order. A
 * rank without samples is absent (lks_program_set_absent). The factors of lks_program_backward must make the losses of
 * the ranks parts of one sum. Those of lks_distributed_optimizer_step do. A program without synchronised batch norms
 * never uses the group.
 * Ownership:  `group` must outlive the program's runs, and only they may use it (lks_group_split makes one).
 * Errors:     of these passes: LKS_ERR_STATE without this call; those of the group. If a pass fails on one rank, the
 *             group is dead on all ranks, and no rank keeps waiting. */
LKS_API void lks_program_synchronise(lks_program *program, lks_group *group);
/* 1: from the next pass on this rank takes part in the sums without contributing to them. 0: it contributes.
 *
 * For a rank without samples, because the others wait for it. It runs its program on any data and backward with factor
 * 0. The gradients of its parameters are then 0. Those of inputs are undefined. The callback of lks_on_gradient is not
 * called. An attached program sends nothing, and the step gets n_samples 0. */
LKS_API void lks_program_set_absent(lks_program *program, int is_absent);

/* Compares the parameters of all ranks by name, shape and hash. The group remains usable.
 *
 * It checks the current values. A sharded store writes the copies of all ranks anew in each step, each part by its
 * owner. A copy that was corrupted before the step is then correct again, although its gradients were used. A shared
 * replica has only one copy.
 * Collective: all ranks call it.
 * Errors:     LKS_ERR_MISMATCH: replicas differ. The text names the first parameter that differs, and the first rank
 *             whose values differ from those of most ranks.
 *             LKS_ERR_MEMORY, LKS_ERR_TORN: a rank could not read its own parameters. All ranks get the error. */
LKS_API lks_status lks_check_replicas(lks_group *group, const lks_store *store);

#ifdef __cplusplus
}
#endif
#endif
