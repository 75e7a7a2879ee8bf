/* Lockstep, room comm/: ranks that talk. Depends on base/ alone and is usable without the rest of the library.
 *
 * A group is the ranks that take part; every operation is collective over its group unless it says otherwise: every
 * rank calls it, in the same order, with arguments that agree. Ranks that disagree all get LKS_ERR_MISMATCH with the
 * two calls side by side. Every wait ends: at the latest at the deadline (LKS_ERR_TIMEOUT), and soon after a rank
 * died (LKS_ERR_PEER, naming it). After an error a group is dead: every later call on it returns the first error; only
 * LKS_ERR_ARGUMENT (nothing was sent) and an allocation's LKS_ERR_MEMORY (all ranks know) leave it alive.
 * A group may be used by one thread at a time. Destroying it frees its symmetric and shared buffers.
 */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_group lks_group;

/* Element-wise operators of the reductions: X(name, text). avg is the sum divided once by the number of ranks.
 * min and max propagate NaN, and -0 < +0. band, bor and bxor take integer types only; avg floating types only. */
#define LKS_OPERATOR_TABLE(X)                                                                                          \
    X(LKS_SUM, "sum")                                                                                                  \
    X(LKS_PRODUCT, "product")                                                                                          \
    X(LKS_MIN, "min")                                                                                                  \
    X(LKS_MAX, "max")                                                                                                  \
    X(LKS_AVG, "avg")                                                                                                  \
    X(LKS_BAND, "band")                                                                                                \
    X(LKS_BOR, "bor")                                                                                                  \
    X(LKS_BXOR, "bxor")

typedef enum lks_operator {
#define LKS_OPERATOR_ENUM(name, text) name,
    LKS_OPERATOR_TABLE(LKS_OPERATOR_ENUM)
#undef LKS_OPERATOR_ENUM
} lks_operator;

typedef struct lks_init_options {
    int64_t timeout_ms;    /* deadline of the start and of every later wait; 0: 300000, or LOCKSTEP_TIMEOUT_MS */
    const char *transport; /* "auto" (NULL), "thread", "shm"; or LOCKSTEP_TRANSPORT */
} lks_init_options;

/* Joins the world of all ranks: those of the thread world this thread was started in (lks_spawn, lks_main), else
 * those of the launcher's environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), else
 * a world of this process alone. `options` may be NULL.
 * Collective. The caller owns *world and gives it to lks_group_destroy.
 * Errors: LKS_ERR_ARGUMENT (an environment variable or option is wrong, named), LKS_ERR_TIMEOUT (names the ranks that
 * did not arrive), LKS_ERR_PEER, LKS_ERR_SYSTEM. */
LKS_API lks_status lks_init(lks_group **world, const lks_init_options *options);

/* Leaves the group and frees it; the other ranks do not take this for a death. Does not wait. Accepts NULL. */
LKS_API void lks_group_destroy(lks_group *group);

LKS_API int lks_group_rank(const lks_group *group);
LKS_API int lks_group_size(const lks_group *group);
/* Rank and number of ranks on this host. */
LKS_API int lks_group_local_rank(const lks_group *group);
LKS_API int lks_group_local_size(const lks_group *group);
/* "self", "thread", "shm". */
LKS_API const char *lks_group_transport(const lks_group *group);

/* Declares the group dead on all ranks, with a reason that they all report. For a rank that must give up. */
LKS_API void lks_group_abort(lks_group *group, const char *reason);

typedef struct lks_collective_options {
    const char *algorithm; /* NULL or "auto"; else a name from the operation's table, the same on all ranks */
    double scale;          /* reductions of floating types: factor on this rank's contribution, rounded to the
                              accumulator type; 0: 1; LKS_ZERO: 0. May differ between ranks */
    int64_t timeout_ms;    /* 0: the group's */
} lks_collective_options;

/* Sends `count` elements to rank `to`; returns when `data` may be used again. Matched per (pair, tag), in order.
 * Errors: LKS_ERR_ARGUMENT (rank, null data, tag < 0), LKS_ERR_MISMATCH (types differ), LKS_ERR_PEER, LKS_ERR_TIMEOUT.
 */
LKS_API lks_status lks_send(lks_group *group, const void *data, size_t count, lks_type type, int to, int tag);

/* Receives up to `count` elements from rank `from`; *n_received (may be NULL) is how many came.
 * Errors: as lks_send; LKS_ERR_MISMATCH also where the message is longer than `count`. */
LKS_API lks_status lks_recv(lks_group *group, void *data, size_t count, lks_type type, int from, int tag,
                            size_t *n_received);

/* Returns when all ranks have called it. Algorithms: dissemination, direct. `options` may be NULL, here and below. */
LKS_API lks_status lks_barrier(lks_group *group, const lks_collective_options *options);

/* Copies `count` elements from `data` on rank `root` to `data` on every rank. Algorithms: naive, direct. */
LKS_API lks_status lks_broadcast(lks_group *group, void *data, size_t count, lks_type type, int root,
                                 const lks_collective_options *options);

/* Combines `count` elements over all ranks; every rank gets the result.
 *
 * Buffers:    `in` and `out` hold `count` elements of `type`; they may be the same, and not overlap otherwise.
 * Numerics:   canonical order: the balanced binary tree over the rank index, ((0+1)+(2+3))+..., split at the largest
 *             power of two below n; so the same bits on every rank, for any count, algorithm and transport. Each
 *             contribution is scaled and rounded to the accumulator type first; f16 and bf16 accumulate in f32.
 * Algorithms: naive, direct.
 * Errors:     LKS_ERR_ARGUMENT before anything is sent; LKS_ERR_MISMATCH, LKS_ERR_PEER, LKS_ERR_TIMEOUT: `out` is then
 *             undefined. */
LKS_API lks_status lks_all_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                  lks_operator op, const lks_collective_options *options);

/* As lks_all_reduce, but only rank `root` gets the result; `out` may be NULL elsewhere. Algorithms: naive. */
LKS_API lks_status lks_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                              int root, const lks_collective_options *options);

/* Symmetric memory: a buffer of `nbytes` on every rank, which the ranks of the same host can address; collectives on
 * it move nothing but the result. Collective, `nbytes` the same on all ranks. 64-byte aligned, zeroed, pre-faulted.
 * Errors: LKS_ERR_UNSUPPORTED where the transport has none or the group spans hosts; LKS_ERR_MEMORY on all ranks. */
LKS_API lks_status lks_symmetric_alloc(lks_group *group, size_t nbytes, void **data);
/* The address, in this process, of rank `rank`'s copy of the symmetric buffer `data`. NULL if `data` is not one. */
LKS_API void *lks_symmetric_peer(lks_group *group, const void *data, int rank);
/* One buffer of `nbytes` that all ranks share (not a copy each). Otherwise as lks_symmetric_alloc. */
LKS_API lks_status lks_shared_alloc(lks_group *group, size_t nbytes, void **data);
/* Frees a symmetric or shared buffer. Not collective: the memory goes when every rank has let go. Accepts NULL. */
LKS_API void lks_symmetric_free(lks_group *group, void *data);

#ifdef __cplusplus
}
#endif
#endif
