/* Lockstep, room comm/: groups of ranks, point-to-point messages, collectives and shared memory.
 *
 * This room depends on base/ alone. It can be used without the rest of the library.
 *
 * A group (lks_group) is a set of ranks. It corresponds to an MPI communicator or a torch.distributed process group.
 * The rules below hold for every function of this header, unless the function says otherwise.
 *
 * Collective: An operation is collective over its group: every rank calls it, in the same order, with matching
 *             arguments. If ranks disagree, all of them get LKS_ERR_MISMATCH. Its text shows the two calls.
 * Waits:      Every wait ends at its deadline at the latest, with LKS_ERR_TIMEOUT. Time in which the waiting process
 *             was stopped (a suspended job) does not count. If a rank dies, every wait for it ends soon with
 *             LKS_ERR_PEER. The text names the dead rank by its rank in the world, in every group.
 * Errors:     After an error the group is dead: every later call on it returns the first error. Errors are fatal in
 *             this sense unless the function says that the group remains usable. Three errors leave the group usable:
 *             LKS_ERR_ARGUMENT, because nothing was sent; LKS_ERR_MEMORY of an allocation, because all ranks know of
 *             it; and LKS_ERR_UNSUPPORTED of lks_symmetric_alloc and lks_shared_alloc.
 * Threads:    One thread at a time may use a group. Different threads may use different groups. Concurrent calls on one
 *             group are usually detected: the second call returns LKS_ERR_STATE and the group is dead.
 * Memory:     lks_group_destroy frees the symmetric and shared buffers of the group.
 *
 * Asynchronous operations: a collective with options.work set returns at once. *work represents the operation. The
 * buffers belong to the library until the work is done. Operations of one group run in the order of their calls.
 * Operations of different groups run independently of each other. */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_group lks_group;
typedef struct lks_work lks_work; /* a pending operation, like an MPI_Request */

/* Element-wise reduction operators: X(name, text).
 * avg is the sum, divided once by the number of ranks. min and max propagate NaN and treat -0 as less than +0. band,
 * bor and bxor accept integer types only. avg accepts floating types only. */
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

/* The order of additions in reductions.
 * LKS_ORDER_CANONICAL: the order that lks_all_reduce documents.
 * LKS_ORDER_ANY: `auto` may also choose an algorithm that adds floats in another order. All ranks still get the same
 * bits. The bits may differ for another count or another number of ranks. */
typedef enum lks_order { LKS_ORDER_CANONICAL, LKS_ORDER_ANY } lks_order;

typedef struct lks_init_options {
    /* Deadline of lks_init and of every later wait. 0: LOCKSTEP_TIMEOUT_MS, or 300000 if that is not set. */
    int64_t timeout_ms;
    /* "auto", "thread", "shm", "tcp" or "mpi". NULL: LOCKSTEP_TRANSPORT, or "auto" if that is not set. */
    const char *transport;
    /* Order of additions in reductions without a named algorithm. The same on all ranks. */
    lks_order order;
} lks_init_options;

/* Joins the world: the group of all ranks. `options` may be NULL.
 *
 * The world is the first of these that exists: the thread world in which this thread was started (lks_spawn, lks_main);
 * the world that the launcher's environment describes; a world of this process alone.
 *
 * Collective: all ranks of the world call it.
 * Ownership:  the caller owns *world and frees it with lks_group_destroy.
 * Launchers:  The environment variables are read in this order:
 *             1. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and LOCAL_RANK and LOCAL_WORLD_SIZE if they are set.
 *             lockstep run and torchrun set them. Without LOCAL_WORLD_SIZE all ranks must be on one host if MASTER_ADDR
 *             is a loopback address, and may be on several otherwise. If torchrun's agent has MASTER_PORT itself
 *             (TORCHELASTIC_USE_AGENT_STORE is "True"), the ranks meet at MASTER_PORT + 1 (65534 for 65535).
 *             2. OMPI_COMM_WORLD_* or PMI_*. mpirun sets them.
 *             3. SLURM_*, inside a step of srun. The ranks meet on the first node, at port 20000 + (101 job + step) mod
 *             10000. MASTER_ADDR and MASTER_PORT override this. Under sbatch or salloc without srun, a program is a
 *             world of one rank.
 * MPI:        Under mpirun (Open MPI or MPICH) the ranks find each other over MPI, and lks_init initialises MPI. Ranks
 *             share memory within a host and use MPI between hosts. Transport "mpi" uses MPI within a host too. If
 *             MASTER_ADDR and MASTER_PORT are set, MPI is used only for transport "mpi".
 *             MPI_Init waits without a deadline. mpirun itself ends the other ranks when one rank fails.
 *             MPI is finalised at exit if all worlds were destroyed without an error, whatever the exit status.
 *             MPI_Finalize waits for ranks that are still at work.
 *             A program that uses MPI itself calls MPI_Init_thread with MPI_THREAD_MULTIPLE before lks_init, and
 *             MPI_Finalize after the last lks_group_destroy.
 * Errors:     LKS_ERR_ARGUMENT: an environment variable or an option is invalid. The text names it.
 *             LKS_ERR_TIMEOUT: ranks did not arrive, or another program uses the port. The text names the ranks or the
 *             port.
 *             LKS_ERR_MISMATCH: a rank has another library version, transport, WORLD_SIZE, LOCKSTEP_HOST_ID or
 *             LOCKSTEP_JOB_KEY. The text names the rank. Over TCP, another LOCKSTEP_JOB_KEY, or without a key another
 *             user, gives this error on the rank that has it, after 5 s, and LKS_ERR_TIMEOUT on the others.
 *             LKS_ERR_UNSUPPORTED: no module for the required MPI was found. The text lists where it was looked for.
 *             LKS_ERR_PEER: a rank was lost or gave up, or its launcher reports that it has ended. The text names it.
 *             LKS_ERR_STATE: the ranks are threads (lockstep run --threads), and this thread is none of them.
 *             LKS_ERR_FILE: the directory LOCKSTEP_TIMELINE cannot be made or written, or between hosts, on rank 0, the
 *             file LOCKSTEP_TUNING cannot be read. LKS_ERR_FORMAT: that file is not a tuning file.
 *             LKS_ERR_SYSTEM: a system call failed. LKS_ERR_MEMORY. */
LKS_API lks_status lks_init(lks_group **world, const lks_init_options *options);

/* Leaves the group and frees it. Accepts NULL.
 *
 * If the group is dead, and this thread has not called lks_error_text or lks_report since it got the group, a warning
 * shows the error.
 *
 * Other ranks do not treat this as a death. A rank that waits for this one gets an error that says that it left. If one
 * of this rank's groups failed before, the error is that failure. Between hosts, if rank 0 of the group has left too, a
 * rank that then begins to wait learns only that this rank left or was lost.
 *
 * Waits:      for asynchronous collectives in progress, which end at their deadline at the latest. Over mpi it also
 *             waits up to one second for other ranks to begin to receive what was sent to them. It waits for nothing
 *             else.
 * Ownership:  sends and receives in progress are cancelled with LKS_ERR_STATE. Their works must still be passed to
 *             lks_work_wait.
 * Fork:       A forked child is not a member of its parent's groups. In the child, calls on these groups return
 *             LKS_ERR_STATE, and so do calls on works that were not done at the fork. lks_group_report says so in its
 *             text. lks_group_destroy, lks_group_abort and lks_symmetric_free do nothing. A group of one rank remains
 *             usable in the child, unless an asynchronous collective was started on it before the fork. */
LKS_API void lks_group_destroy(lks_group *group);

/* Rank of the caller, number of ranks, rank on this host and number of ranks on this host. -1 if `group` is NULL. */
LKS_API int lks_group_rank(const lks_group *group);
LKS_API int lks_group_size(const lks_group *group);
LKS_API int lks_group_local_rank(const lks_group *group);
LKS_API int lks_group_local_size(const lks_group *group);
/* The transport of the group: "self", "thread" or "shm" within a host, "tcp" or "mpi" between hosts. With "tcp" and
 * "mpi", ranks of the same host still share memory. "none" if `group` is NULL. */
LKS_API const char *lks_group_transport(const lks_group *group);

/* Splits the group: ranks with the same `color` form a new group, like MPI_Comm_split.
 *
 * The ranks of the new group are ordered by `key`, ties by rank in `group`. A rank with a negative color joins no group
 * and gets *new_group = NULL. Operations on a NULL group return LKS_ERR_ARGUMENT. Functions without a status do nothing
 * with a NULL group, or return an empty result.
 *
 * Collective: over `group`.
 * Ownership:  the caller owns *new_group and frees it with lks_group_destroy. It may outlive `group`.
 * Cost:       The new group takes up to 2 file descriptors for each of its ranks on the host, over tcp up to 3 for each
 *             of all (ulimit -n). Rank 0 takes the most. For 2 ranks that share memory it takes 7 MiB, for 64 it takes
 *             35 MiB on rank 0. Creating a group takes milliseconds, so create groups once and not in a loop.
 * Errors:     as for any collective. If descriptors or memory run out, `group` is dead.
 *             LKS_ERR_FILE, LKS_ERR_FORMAT, LKS_ERR_ARGUMENT: as lks_init for LOCKSTEP_TUNING and LOCKSTEP_ALGORITHM,
 *             which are read again. */
LKS_API lks_status lks_group_split(lks_group *group, int color, int key, lks_group **new_group);

/* Writes one line per rank to `text`: the last operation that the rank completed, and what it waits for. The text is
 * cut to text_nbytes.
 *
 * Not collective. Works on a dead group. Ranks on other hosts (tcp, mpi) have 0.4 s to report their current call and
 * the rank they wait for. For a dead group the text only identifies them. */
LKS_API void lks_group_report(const lks_group *group, char *text, size_t text_nbytes);

typedef struct lks_counters {
    uint64_t n_collectives, n_point_to_point; /* calls */
    uint64_t n_messages, n_message_nbytes;    /* sent by this rank to others since the group's creation; no headers */
} lks_counters;
/* Writes the counters of `group`, or zeros if it is NULL. Does nothing if `counters` is NULL. */
LKS_API void lks_group_counters(const lks_group *group, lks_counters *counters);

/* Declares the group dead on all ranks. All ranks report `reason`. For a rank that cannot continue. */
LKS_API void lks_group_abort(lks_group *group, const char *reason);

typedef struct lks_collective_options {
    /* NULL or "auto", or a name from the operation's list of algorithms. The same on all ranks. */
    const char *algorithm;
    /* Reductions of floating types: factor on this rank's contribution. It is converted to the accumulator type before
     * the multiplication. 0: 1. LKS_ZERO: 0. NaN and infinity are accepted. It may differ between ranks. */
    double scale;
    int64_t timeout_ms; /* 0: the deadline of the group */
    /* NULL: the call blocks. Otherwise the call returns at once, and *work must be passed to lks_work_wait. */
    lks_work **work;
} lks_collective_options;

/* Waits until the operation is done, and returns its status.
 *
 * The deadline of an operation counts from its call, also while earlier operations of the group are in progress.
 * After a receive, its lks_received is filled in.
 * Ownership:  `work` is freed in any case. */
LKS_API lks_status lks_work_wait(lks_work *work);
/* Sets *is_done to whether the operation is done, without waiting.
 *
 * It makes progress, and it yields the CPU if ranks share it. `work` remains valid. lks_work_wait returns an error of
 * the operation. If the operation waits beyond its deadline for an earlier one, it kills the group, which may take half
 * a second. */
LKS_API lks_status lks_work_test(lks_work *work, int *is_done);

/* --- point to point --- */

#define LKS_ANY_SOURCE (-1)

/* What a receive got: source rank, tag, and number of elements. */
typedef struct lks_received {
    int from, tag;
    size_t count;
} lks_received;

/* Sends `count` elements to rank `to`, which may be this rank. Returns when `data` may be reused.
 *
 * Messages match per (sender, receiver, tag), in order.
 * Eager:      Messages of up to 16 KiB return at once, as long as the buffer below has room. If `data` lies in
 *             symmetric memory of the group, which is fastest, this limit is 2 KiB. Larger messages return when the
 *             receiver takes them.
 * Limits:     Each ordered pair of ranks on a host has a buffer of at least 48 KiB for messages that were not received
 *             yet.
 *             A message takes its own size plus 32 bytes, rounded up to 64 bytes. 48 KiB hold about 760 messages of up
 *             to 32 bytes.
 *             If n > 5 ranks share a host, each pair has less: 2 MiB / n^2, rounded down to a power of two, but at
 *             least 1 KiB. From 9 ranks on, a message of 16 KiB has no room and may have to wait for the receiver.
 *             Between hosts a pair may have 1 MiB of such messages, or 64 MiB / (size of the group) if that is less.
 *             Messages to this rank itself are copied. Up to 64 MiB of them may wait to be received. Beyond that,
 *             LKS_ERR_MEMORY is returned and the group is dead.
 * Errors:     LKS_ERR_ARGUMENT: invalid rank, NULL `data` or tag < 0.
 *             LKS_ERR_MISMATCH: the types of sender and receiver differ. For an eager message only the receiver gets
 *             this error.
 *             LKS_ERR_PEER, LKS_ERR_TIMEOUT: as at the top of this file. */
LKS_API lks_status lks_send(lks_group *group, const void *data, size_t count, lks_type type, int to, int tag);

/* Receives up to `count` elements from rank `from`.
 *
 * With LKS_ANY_SOURCE it takes the first message with this tag from any rank. `received` may be NULL.
 * Errors:     as lks_send.
 *             LKS_ERR_MISMATCH: the message is longer than `count`.
 *             LKS_ERR_STATE: `from` is this rank itself and it has not sent the message. The call would never
 *             return. */
LKS_API lks_status lks_recv(lks_group *group, void *data, size_t count, lks_type type, int from, int tag,
                            lks_received *received);

/* Sends and receives at the same time, like MPI_Sendrecv, so that a ring of ranks does not deadlock.
 *
 * Buffers:    `sent` and `data` must not overlap. */
LKS_API lks_status lks_sendrecv(lks_group *group, const void *sent, size_t sent_count, int to, int sent_tag, void *data,
                                size_t count, int from, int tag, lks_type type, lks_received *received);

/* Non-blocking lks_send and lks_recv. They return at once.
 *
 * Ownership:  *work must be passed to lks_work_wait. `data` and `received` belong to the library until then.
 * Matching:   Receives with the same source and tag match in the order of their calls.
 * Progress:   No thread runs in the background. Messages progress in any call on the group. They also progress while
 *             the thread that started them waits in a call on another group of the same lks_init, or tests a work of
 *             one.
 * Networks:   Over tcp the first message to a rank opens the connection, and waits for the answer of that rank. */
LKS_API lks_status lks_isend(lks_group *group, const void *data, size_t count, lks_type type, int to, int tag,
                             lks_work **work);
LKS_API lks_status lks_irecv(lks_group *group, void *data, size_t count, lks_type type, int from, int tag,
                             lks_received *received, lks_work **work);

/* --- collectives ---
 * Each operation lists its algorithms. Two more exist for several operations:
 * "two_level" runs inside each host first, then between hosts with one rank per host. It exists for barrier, broadcast,
 * reduce, all_reduce and all_gather if the group spans hosts. It returns LKS_ERR_ARGUMENT if it would break the
 * required order of additions, or if the blocks of a host are not contiguous.
 * "native" calls MPI's own collective. It exists if the ranks use MPI, and is used only when named. Reductions of
 * floats then add in MPI's order. It returns LKS_ERR_ARGUMENT for reductions of f16, bf16, i8 and u8, and for min and
 * max of floats. After an error MPI may still write to the buffers of the call.
 * `options` may be NULL in all of them. */

/* Returns when all ranks have called it.
 *
 * Algorithms: dissemination, direct. */
LKS_API lks_status lks_barrier(lks_group *group, const lks_collective_options *options);

/* Copies `count` elements from `data` on rank `root` to `data` on every rank.
 *
 * Algorithms: naive, tree, ring, scatter_allgather, direct.
 * Errors:     as lks_all_reduce. Consecutive small calls may report an error late, because not every rank waits for
 *             every other rank. A rank that only sends does not wait: the root of broadcast and scatter, and
 *             the other ranks of gather and reduce. A rank that receives from the root alone does not wait for other
 *             receivers. Between hosts a rank has sent as soon as the network's buffers hold the message, which may be
 *             some MiB for each receiver. So ranks that pass different roots may all return LKS_OK.
 *             On one host the error comes at most 63 calls later, between hosts when a call next has to wait. A barrier
 *             compares all calls before it and tells all ranks. Without one at the end it may be that none is told. */
LKS_API lks_status lks_broadcast(lks_group *group, void *data, size_t count, lks_type type, int root,
                                 const lks_collective_options *options);

/* Reduces `count` elements over all ranks. Every rank gets the result.
 *
 * Buffers:    `in` and `out` hold `count` elements of `type`. They may be the same, but must not overlap otherwise.
 * Numerics:   Additions follow the canonical order: the balanced binary tree over the ranks, ((0+1)+(2+3))+..., split
 *             at the largest power of two below n. All ranks get the same bits, for any count, algorithm and transport,
 *             except for the sign and the payload of a NaN, which are the CPU's choice.
 *             Each contribution is converted to the accumulator type and then scaled. f16 and bf16 accumulate in f32.
 * Algorithms: naive, tree, ring (floats: another order, docs/collectives.md), butterfly, halving_doubling, direct.
 * Errors:     LKS_ERR_ARGUMENT: detected before anything is sent.
 *             LKS_ERR_MISMATCH, LKS_ERR_PEER, LKS_ERR_TIMEOUT: `out` is then undefined. */
LKS_API lks_status lks_all_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                  lks_operator op, const lks_collective_options *options);

/* Reduces like lks_all_reduce, but only rank `root` gets the result.
 *
 * Buffers:    `out` may be NULL on the other ranks.
 * Algorithms: naive, tree, direct. */
LKS_API lks_status lks_reduce(lks_group *group, const void *in, void *out, size_t count, lks_type type, lks_operator op,
                              int root, const lks_collective_options *options);

/* Concatenates `count` elements of every rank on rank `root`, in rank order.
 *
 * Buffers:    `out` holds size * count elements on rank `root`. It may be NULL on the other ranks. In place: root's
 *             `in` may be out + root * count.
 * Algorithms: naive, tree, direct. */
LKS_API lks_status lks_gather(lks_group *group, const void *in, void *out, size_t count, lks_type type, int root,
                              const lks_collective_options *options);

/* Distributes root's `in`: rank r gets elements [r * count, (r + 1) * count).
 *
 * Buffers:    `in` holds size * count elements on rank `root`. It may be NULL on the other ranks. In place: root's
 *             `out` may be in + root * count.
 * Algorithms: naive, tree, direct. */
LKS_API lks_status lks_scatter(lks_group *group, const void *in, void *out, size_t count, lks_type type, int root,
                               const lks_collective_options *options);

/* Concatenates `count` elements of every rank on every rank, in rank order.
 *
 * Buffers:    `out` holds size * count elements. In place: `in` may be out + rank * count.
 * Algorithms: naive, ring, tree, butterfly, bruck, direct. */
LKS_API lks_status lks_all_gather(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                  const lks_collective_options *options);

/* Reduces size * count elements of `in` over all ranks. Rank r gets elements [r * count, (r + 1) * count) of the
 * result.
 *
 * Buffers:    In place: `out` may be in + rank * count.
 * Numerics:   as lks_all_reduce.
 * Algorithms: naive, ring (floats: another order), halving, direct. */
LKS_API lks_status lks_reduce_scatter(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                      lks_operator op, const lks_collective_options *options);

/* Exchanges blocks: block j of `in` on rank i becomes block i of `out` on rank j.
 *
 * Buffers:    A block has `count` elements. `in` and `out` hold size * count elements. They may be the same.
 * Algorithms: pairwise, bruck, direct. */
LKS_API lks_status lks_all_to_all(lks_group *group, const void *in, void *out, size_t count, lks_type type,
                                  const lks_collective_options *options);

/* lks_gather, lks_scatter and lks_all_gather with one count per rank. The blocks follow each other in rank order.
 *
 * Buffers:    `counts` holds size entries, the same on all ranks. The caller may reuse it when the call returns, also
 *             with options.work.
 * Algorithms: gatherv as gather, scatterv as scatter. all_gatherv: naive, ring, direct. */
LKS_API lks_status lks_gatherv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                               int root, const lks_collective_options *options);
LKS_API lks_status lks_scatterv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                                int root, const lks_collective_options *options);
LKS_API lks_status lks_all_gatherv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                                   const lks_collective_options *options);

/* lks_reduce_scatter with one count per rank: rank r gets counts[r] elements of the result. As MPI_Reduce_scatter.
 *
 * Buffers:    `in` holds the sum of all counts, `out` counts[rank] elements. In place: `out` may be this rank's
 *             block of `in`. `counts` is as for lks_gatherv.
 * Numerics:   as lks_all_reduce.
 * Algorithms: naive, ring (floats: another order), halving, direct. */
LKS_API lks_status lks_reduce_scatterv(lks_group *group, const void *in, void *out, const size_t *counts, lks_type type,
                                       lks_operator op, const lks_collective_options *options);

/* Exchanges blocks of any length: in_counts[j] elements of `in` go to rank j, and out_counts[i] elements of `out` come
 * from rank i. The blocks follow each other in rank order.
 *
 * Buffers:    `in` and `out` must not overlap. `in_counts` and `out_counts` hold size entries. Each rank has its own
 *             counts. in_counts[j] on rank i equals out_counts[i] on rank j.
 * Algorithms: pairwise, direct.
 * Errors:     LKS_ERR_ARGUMENT: a rank's two counts for itself differ. It is detected before anything is sent.
 *             LKS_ERR_MISMATCH: the counts of two ranks differ. The rank that expects another count gets it. The other
 *             ranks get it too, or at a later call if they communicate by messages. */
LKS_API lks_status lks_all_to_allv(lks_group *group, const void *in, const size_t *in_counts, void *out,
                                   const size_t *out_counts, lks_type type, const lks_collective_options *options);

/* --- symmetric memory --- */

/* 1 if the group supports symmetric memory, 0 otherwise. The result is the same on all ranks.
 *
 * It is supported if all ranks are on one host and transport tcp or mpi was not requested. */
LKS_API int lks_symmetric_supported(const lks_group *group);
/* Allocates symmetric memory: a buffer of `nbytes` on every rank that all ranks of the host can address. Collectives
 * read and write it in place if that is faster.
 *
 * Collective: `nbytes` is the same on all ranks.
 * Memory:     64-byte aligned, zeroed and pre-faulted.
 * Errors:     LKS_ERR_UNSUPPORTED: the transport has no symmetric memory, or the group spans hosts.
 *             LKS_ERR_MEMORY: on all ranks.
 * Fatal:      LKS_ERR_SYSTEM: a rank has no file descriptor left. */
LKS_API lks_status lks_symmetric_alloc(lks_group *group, size_t nbytes, void **data);
/* The address, in this process, of rank `rank`'s copy of `data`. NULL if `data` is not in symmetric memory. */
LKS_API void *lks_symmetric_peer(lks_group *group, const void *data, int rank);
/* Allocates one buffer of `nbytes` that all ranks share. Otherwise as lks_symmetric_alloc. */
LKS_API lks_status lks_shared_alloc(lks_group *group, size_t nbytes, void **data);
/* Frees a symmetric or shared buffer. Not collective. Accepts NULL.
 *
 * The memory is released when every rank has freed it. The call waits only for asynchronous collectives in progress,
 * which end at their deadline at the latest. */
LKS_API void lks_symmetric_free(lks_group *group, void *data);

#ifdef __cplusplus
}
#endif
#endif
