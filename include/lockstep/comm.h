/* Lockstep, room comm/: ranks that talk. Depends on base/ alone and is usable without the rest of the library.
 *
 * A group is the ranks that take part; every operation is collective over its group unless it says otherwise: every
 * rank calls it, in the same order, with arguments that agree. Ranks that disagree all get LKS_ERR_MISMATCH with the
 * two calls side by side. Every wait ends: at the latest at the deadline (LKS_ERR_TIMEOUT), for which the time does not
 * count in which the waiting process was stopped (a suspended job), and soon after a rank died (LKS_ERR_PEER, naming it
 * by its number in the world, also in groups that count their ranks otherwise). After an error a group is dead: every
 * later call on it returns the first error; only LKS_ERR_ARGUMENT (nothing was sent) and an allocation's LKS_ERR_MEMORY
 * (all ranks know) leave it alive. A group may be used by one thread at a time; different groups by different threads
 * (a second one in a collective, or in a send or receive, mostly gets LKS_ERR_STATE, and the group is dead). Destroying
 * it frees its symmetric and shared buffers.
 *
 * Asynchronous operations: where options.work is set, a collective returns at once and *work stands for it; its buffers
 * belong to the library until the work is done. Operations of one group are done in the order of the calls, those of
 * different groups independently of each other.
 */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_group lks_group;
typedef struct lks_work lks_work; /* an operation under way */

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

/* LKS_ORDER_CANONICAL: the order of lks_all_reduce's contract. LKS_ORDER_ANY: `auto` may also take an algorithm that
 * adds floats in another order, the same bits on all ranks still, but not for another size or number of ranks. */
typedef enum lks_order { LKS_ORDER_CANONICAL, LKS_ORDER_ANY } lks_order;

typedef struct lks_init_options {
    int64_t timeout_ms;    /* deadline of the start and of every later wait; 0: 300000, or LOCKSTEP_TIMEOUT_MS */
    const char *transport; /* "auto" (NULL), "thread", "shm", "tcp", "mpi"; or LOCKSTEP_TRANSPORT */
    lks_order order;       /* of the reductions that choose their algorithm themselves; the same on all ranks */
} lks_init_options;

/* Joins the world of all ranks: those of the thread world this thread was started in (lks_spawn, lks_main), else
 * those of the launcher's environment, else a world of this process alone. `options` may be NULL.
 *
 * Collective:  the caller owns *world and gives it to lks_group_destroy.
 * Launchers:   RANK WORLD_SIZE (LOCAL_RANK LOCAL_WORLD_SIZE) and MASTER_ADDR MASTER_PORT, as lockstep run and
 *              torchrun set them; else OMPI_COMM_WORLD_* or PMI_* of mpirun; else SLURM_* inside a step of srun: its
 *              ranks meet on the first node, at port 20000 + (101 job + step) mod 10000, unless MASTER_ADDR and
 *              MASTER_PORT say otherwise. Under sbatch or salloc without srun a program is a world of one.
 * MPI:         under mpirun (Open MPI's or MPICH's) ranks find each other over MPI, which lks_init then initialises;
 *              they share memory within a host and talk over MPI between hosts; transport "mpi" has them talk over
 *              MPI on one host, too. With MASTER_ADDR and MASTER_PORT set, MPI is left alone unless "mpi" is asked
 *              for. MPI_Init waits without a deadline, and mpirun itself ends the other ranks when one fails. At
 *              exit with status 0, all worlds destroyed without an error, MPI is finalised, which waits for ranks that
 *              are still at work. A program that uses MPI itself calls MPI_Init_thread with MPI_THREAD_MULTIPLE before
 *              lks_init, and MPI_Finalize after the last lks_group_destroy.
 * Errors:      LKS_ERR_ARGUMENT (an environment variable or option is wrong, named); LKS_ERR_TIMEOUT (names the
 *              ranks that did not arrive, or the port that another program has); LKS_ERR_MISMATCH (another version
 *              of the library, transport, WORLD_SIZE, LOCKSTEP_HOST_ID or LOCKSTEP_JOB_KEY on a rank, named);
 *              LKS_ERR_UNSUPPORTED (no module for the MPI that is needed; the text says where it was looked for);
 *              LKS_ERR_PEER (a rank was lost, or has ended as its launcher says, named); LKS_ERR_SYSTEM. */
LKS_API lks_status lks_init(lks_group **world, const lks_init_options *options);

/* Leaves the group and frees it; the other ranks do not take this for a death. Whoever waits for this rank hears that
 * it has left, or, where one of its groups has failed before, of that error; between hosts, who begins to wait for it
 * when rank 0 of the group has left, too, hears only that it left or was lost. Waits for nothing but asynchronous
 * collectives under way, which end at their deadline at the latest, and over mpi up to a second until others have begun
 * to take what they were sent; messages under way are given up (LKS_ERR_STATE).
 * Their works must still be given to lks_work_wait. A forked child has no part in its parent's groups: calls
 * on them, and on works that were not done when it was forked, are LKS_ERR_STATE; lks_group_report says so; this
 * one, lks_group_abort and lks_symmetric_free do nothing there. Accepts NULL. */
LKS_API void lks_group_destroy(lks_group *group);

/* These four: -1 where `group` is NULL. */
LKS_API int lks_group_rank(const lks_group *group);
LKS_API int lks_group_size(const lks_group *group);
/* Rank and number of ranks on this host. */
LKS_API int lks_group_local_rank(const lks_group *group);
LKS_API int lks_group_local_size(const lks_group *group);
/* "self", "thread", "shm"; "tcp" or "mpi" (between hosts; ranks of one host still share memory); "none" of NULL. */
LKS_API const char *lks_group_transport(const lks_group *group);

/* Splits the group: ranks that give the same `color` make a new group, in the order of `key`, ties by rank. A rank with
 * a negative color joins none and gets *new_group = NULL, which operations refuse by LKS_ERR_ARGUMENT, and with which
 * functions that return no status do nothing, or say that there is nothing. Collective over `group`. The new group is
 * used and destroyed on its own; it outlives `group`. Until then it takes 2 descriptors per rank (ulimit -n), over tcp
 * 3 and one per rank that it is connected to, and some MiB of memory (6 for 2 ranks that share theirs); making one
 * takes milliseconds: groups are made once, not in a loop. Errors: as any collective; also without descriptors or
 * memory `group` is dead afterwards. */
LKS_API lks_status lks_group_split(lks_group *group, int color, int key, lks_group **new_group);

/* What every rank of the group completed last and what it waits for, a line per rank, into `text` (cut to fit). Not
 * collective, works on a dead group. Ranks that are reached over tcp or mpi have 0.4 s to say which call they have come
 * to and whom they wait for; of a dead group's, the text says only who they are. */
LKS_API void lks_group_report(const lks_group *group, char *text, size_t text_nbytes);

typedef struct lks_counters {
    uint64_t n_collectives, n_point_to_point; /* calls */
    uint64_t n_messages, n_message_nbytes;    /* sent to other ranks by this one since the group was made; no headers */
} lks_counters;
LKS_API void lks_group_counters(const lks_group *group, lks_counters *counters); /* NULL: nothing */

/* Declares the group dead on all ranks, with a reason that they all report. For a rank that must give up. */
LKS_API void lks_group_abort(lks_group *group, const char *reason);

typedef struct lks_collective_options {
    const char *algorithm; /* NULL or "auto"; else a name from the operation's table, the same on all ranks */
    double scale;          /* reductions of floating types: factor on this rank's contribution, made a number of the
                              accumulator type before it multiplies; 0: 1; LKS_ZERO: 0. Not checked: NaN and infinity
                              are factors, too. May differ between ranks */
    int64_t timeout_ms;    /* 0: the group's */
    lks_work **work;       /* NULL: blocks. Else the call returns at once, and *work must be given to lks_work_wait */
} lks_collective_options;

/* Waits until the operation is done, returns how it went, and frees `work` in any case; a receive's lks_received is
 * then filled in. An operation's deadline counts from its call. */
LKS_API lks_status lks_work_wait(lks_work *work);
/* Sets *is_done without waiting; makes progress, and yields the CPU where ranks share it. `work` stays; an error is
 * what lks_work_wait will return. */
LKS_API lks_status lks_work_test(lks_work *work, int *is_done);

/* --- point to point --- */

#define LKS_ANY_SOURCE (-1)

/* What a receive got. */
typedef struct lks_received {
    int from, tag;
    size_t count;
} lks_received;

/* Sends `count` elements to rank `to` (which may be this one); returns when `data` may be used again: small messages
 * (up to 16 KiB; out of the group's symmetric memory, which is fastest, up to 2 KiB) at once while there is room for
 * them, larger ones when the receiver takes them. There is room for at least 48 KiB that a receiver has not taken, in
 * which a message takes 32 bytes more than it has, and whole lines of 64 (760 messages of up to 32 bytes); less where
 * more than 5 ranks share a host (4 MiB for all their pairs); between hosts for what the kernels buffer. What a rank
 * sends to itself is copied, and it may hold up to 64 MiB that it has not received (beyond, LKS_ERR_MEMORY, and the
 * group is dead). Matched per (pair, tag), in order. Errors: LKS_ERR_ARGUMENT (rank, null data, tag < 0),
 * LKS_ERR_MISMATCH (types differ; of a small message the receiver alone hears of it), LKS_ERR_PEER, LKS_ERR_TIMEOUT. */
LKS_API lks_status lks_send(lks_group *group, const void *data, size_t count, lks_type type, int to, int tag);

/* Receives up to `count` elements from rank `from`, or from whoever sent one with this tag first (LKS_ANY_SOURCE).
 * `received` may be NULL.
 * Errors: as lks_send; LKS_ERR_MISMATCH also where the message is longer than `count`; LKS_ERR_STATE: from this rank
 * itself, which has not sent it, so that it would wait for ever. */
LKS_API lks_status lks_recv(lks_group *group, void *data, size_t count, lks_type type, int from, int tag,
                            lks_received *received);

/* Both at once, so that a circle of ranks that all send first does not wait for itself. The buffers do not overlap. */
LKS_API lks_status lks_sendrecv(lks_group *group, const void *sent, size_t sent_count, int to, int sent_tag, void *data,
                                size_t count, int from, int tag, lks_type type, lks_received *received);

/* As lks_send and lks_recv, but return at once; *work must be given to lks_work_wait. `data` and `received` belong to
 * the library until then. Receives of the same source and tag match in the order of their calls. There is no thread
 * behind them: they move on in any call on the group, and while the thread that began them waits in a call on another
 * group of the same lks_init, or tests a work of one. Over TCP what is the first to go to a rank connects to it, and
 * waits for its answer. */
LKS_API lks_status lks_isend(lks_group *group, const void *data, size_t count, lks_type type, int to, int tag,
                             lks_work **work);
LKS_API lks_status lks_irecv(lks_group *group, void *data, size_t count, lks_type type, int from, int tag,
                             lks_received *received, lks_work **work);

/* --- collectives ---
 * Two algorithms are no operation's own. "two_level", of barrier, broadcast, reduce, all_reduce and all_gather where
 * the group spans hosts: inside each host first, then between them, one rank for each. Refused (LKS_ERR_ARGUMENT) where
 * it would not add in the order promised, or the blocks of a host do not lie together. "native", where MPI runs in the
 * ranks: MPI's own collective, only by name. Reductions of floats then add in MPI's order; those of f16, bf16, i8 and
 * u8, and min and max of floats, are refused (LKS_ERR_ARGUMENT). After an error MPI may still write to the buffers of a
 * native call. */

/* Returns when all ranks have called it. Algorithms: dissemination, direct. `options` may be NULL, here and below. */
LKS_API lks_status lks_barrier(lks_group *group, const lks_collective_options *options);

/* Copies `count` elements from `data` on rank `root` to `data` on every rank. Algorithms: naive, tree, ring,
 * scatter_allgather, direct.
 *
 * Errors: as lks_all_reduce. In a row of small calls who only gives (this root, and likewise in scatter, gather and
 *         reduce) does not wait for the others, and who takes from the root alone does not for other readers: what
 *         is wrong with them then shows at a later call, at most 63 further on. */
LKS_API lks_status lks_broadcast(lks_group *group, void *data, size_t count, lks_type type, int root,
                                 const lks_collective_options *options);

/* Combines `count` elements over all ranks; every rank gets the result.
 *
 * Buffers:    `in` and `out` hold `count` elements of `type`; they may be the same, and not overlap otherwise.
 * Numerics:   canonical order: the balanced binary tree over the rank index, ((0+1)+(2+3))+..., split at the largest
 *             power of two below n; so the same bits on every rank, for any count, algorithm and transport. Each
 *             contribution is made a number of the accumulator type first and scaled in it; f16 and bf16 accumulate
 *             in f32.
 * Algorithms: naive, tree, ring (floats: another order, documented there), butterfly, halving_doubling, direct.
 * Errors:     LKS_ERR_ARGUMENT before anything is sent; LKS_ERR_MISMATCH, LKS_ERR_PEER, LKS_ERR_TIMEOUT: `out` is then
 *             undefined. */
LKS_API lks_status lks_all_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                  lks_operator op, const lks_collective_options *options);

/* As lks_all_reduce, but only rank `root` gets the result; `out` may be NULL elsewhere. Algorithms: naive, tree,
 * direct. */
LKS_API lks_status lks_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                              int root, const lks_collective_options *options);

/* Concatenates `count` elements of every rank, in rank order: `out`, on rank `root` alone, holds size * count elements
 * and may be NULL elsewhere. In place: root's `in` may be out + root * count. Algorithms: naive, tree, direct. */
LKS_API lks_status lks_gather(lks_group *group, const void *in, void *out, size_t count, lks_type type, int root,
                              const lks_collective_options *options);

/* The reverse: rank r gets elements [r * count, (r + 1) * count) of root's `in`. In place: root's `out` may be
 * in + root * count. Algorithms: naive, tree, direct. */
LKS_API lks_status lks_scatter(lks_group *group, const void *in, void *out, size_t count, lks_type type, int root,
                               const lks_collective_options *options);

/* As lks_gather, with the result on every rank. In place: `in` may be out + rank * count. Algorithms: naive, ring,
 * tree, butterfly, bruck, direct. */
LKS_API lks_status lks_all_gather(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                  const lks_collective_options *options);

/* Combines size * count elements of `in` over all ranks; rank r gets elements [r * count, (r + 1) * count) of the
 * result. In place: `out` may be in + rank * count. Numerics as lks_all_reduce. Algorithms: naive, ring (floats:
 * another order), halving, direct. */
LKS_API lks_status lks_reduce_scatter(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                      lks_operator op, const lks_collective_options *options);

/* Block j of `in` (count elements) on rank i becomes block i of `out` on rank j. `in` and `out` hold size * count
 * elements and may be the same. Algorithms: pairwise, bruck, direct. */
LKS_API lks_status lks_all_to_all(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                  const lks_collective_options *options);

/* The same with a count per rank: `counts` holds size entries, the same on all ranks, which are the caller's again when
 * the call returns, also of an asynchronous one; blocks follow each other in rank order. Algorithms: gatherv and
 * scatterv as gather and scatter; all_gatherv: naive, ring, direct. */
LKS_API lks_status lks_gatherv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                               int root, const lks_collective_options *options);
LKS_API lks_status lks_scatterv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                                int root, const lks_collective_options *options);
LKS_API lks_status lks_all_gatherv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                                   const lks_collective_options *options);

/* As lks_all_to_all, blocks of any length: in_counts[j] elements of `in` for rank j, out_counts[i] of `out` from rank
 * i, in rank order. Each rank has its own counts, size entries of either, which must fit the others': in_counts[j] here
 * is out_counts[this rank] on rank j. `in` and `out` do not overlap. Algorithms: pairwise, direct. Errors:
 * LKS_ERR_ARGUMENT where a rank's counts for itself differ, before anything is sent; LKS_ERR_MISMATCH where those of
 * two ranks do, on the one that expects another count; on the others then, or, over messages, at a later call. */
LKS_API lks_status lks_all_to_allv(lks_group *group, const void *in, const size_t *in_counts, void *out,
                                   const size_t *out_counts, lks_type type, const lks_collective_options *options);

/* --- symmetric memory --- */

/* Whether the group can have any: all its ranks are on one host and were not told to use tcp. The same on all ranks. */
LKS_API int lks_symmetric_supported(const lks_group *group);
/* Symmetric memory: a buffer of `nbytes` on every rank, which the ranks of the same host can address; collectives on
 * it read and write it where it lies if that is quicker. Collective, `nbytes` the same on all ranks. 64-byte aligned,
 * zeroed, pre-faulted.
 * Errors: LKS_ERR_UNSUPPORTED where the transport has none or the group spans hosts; LKS_ERR_MEMORY on all ranks. */
LKS_API lks_status lks_symmetric_alloc(lks_group *group, size_t nbytes, void **data);
/* The address, in this process, of rank `rank`'s copy of what `data` points to, in a symmetric buffer. NULL if it is
 * in none. */
LKS_API void *lks_symmetric_peer(lks_group *group, const void *data, int rank);
/* One buffer of `nbytes` that all ranks share (not a copy each). Otherwise as lks_symmetric_alloc. */
LKS_API lks_status lks_shared_alloc(lks_group *group, size_t nbytes, void **data);
/* Frees a symmetric or shared buffer. Not collective: the memory goes when every rank has let go. Waits for nothing but
 * asynchronous collectives under way, which end at their deadline at the latest. Accepts NULL. */
LKS_API void lks_symmetric_free(lks_group *group, void *data);

#ifdef __cplusplus
}
#endif
#endif
