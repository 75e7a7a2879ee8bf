/* Lockstep, room comm/: collectives on GPU memory.
 *
 * They need the module lockstep-nccl.so and no other part of the library. The module is loaded when the first GPU group
 * is created.
 *
 * A GPU group consists of the ranks of a group, with one GPU each. Its operations are enqueued on a CUDA stream, as in
 * NCCL, and the calls return.
 * Buffers:    device memory of the rank's GPU. They belong to the operation until the stream has completed it. A count
 *             may be 0.
 * Collective: Every rank makes the same collective calls in the same order, on any stream of its own.
 *             lks_gpu_fingerprint verifies this. If a rank uses several streams, each operation waits for the one
 *             before on the other stream. A group may have one rank.
 * Waits:      Operations on a stream have no deadline of their own. lks_gpu_wait has one, and names a lost rank as in
 *             comm.h. The first operation of a kind opens connections: its call waits, in the same way, until all ranks
 *             have made theirs. So does the first message from one rank to another, for that rank.
 * Threads:    One thread at a time may use a GPU group. It need not be the thread of the underlying group, except when
 *             the GPU group is created or destroyed. A call leaves the thread's current CUDA device as it was. No call
 *             may be made between an ncclGroupStart and ncclGroupEnd of the program's own.
 * Graphs:     NCCL calls CUDA on its own threads, so a stream must be captured in mode thread-local or relaxed. What
 *             opens connections cannot be captured, so a program must run a step before it captures one.
 *             Operations of one capture wait for each other as outside. A graph, once launched, does not wait for
 *             operations on other streams, nor they for it: the program must make its streams wait.
 * Errors:     of all operations: LKS_ERR_ARGUMENT. Nothing was done.
 * Fatal:      of all operations: LKS_ERR_SYSTEM (CUDA or NCCL, with its text), LKS_ERR_PEER, LKS_ERR_TIMEOUT, and
 *             LKS_ERR_MISMATCH (backend host only). The GPU group and the underlying group are then dead on all ranks.
 *             Results are undefined and operations in progress are cancelled.
 *
 * Backends:
 *     nccl   NCCL, within a host and between hosts. Operations can be captured into a CUDA graph.
 *     host   Through host memory and the operations of the underlying group, over any of its transports.
 *            For ranks that share a GPU, and by name if NCCL does not work. A call returns when the
 *            operation is done, except for the copy back to the GPU. It cannot be captured. */
#ifndef LOCKSTEP_GPU_H
#define LOCKSTEP_GPU_H

#include <lockstep/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_gpu_group lks_gpu_group;

/* LKS_GPU_AUTO: nccl. If two ranks have the same GPU and NCCL would refuse that: host. NCCL refuses it unless every
 * rank has its own NCCL_HOSTID, or NCCL_MULTI_RANK_GPU_ENABLE is 1 on all ranks (NCCL 2.30). */
typedef enum lks_gpu_backend { LKS_GPU_AUTO, LKS_GPU_NCCL, LKS_GPU_HOST } lks_gpu_backend;

typedef struct lks_gpu_group_options {
    int gpu_index;           /* GPU of this rank, as numbered by the CUDA runtime; may differ between ranks */
    lks_gpu_backend backend; /* the same on all ranks */
} lks_gpu_group_options;

/* Creates a GPU group of the ranks of `group`. `options` may be NULL: GPU 0, auto.
 *
 * Collective: over `group`.
 * Ownership:  the caller owns *gpus and frees it with lks_gpu_group_destroy. `group` must outlive it.
 * Errors:     as any collective of comm.h.
 *             LKS_ERR_UNSUPPORTED: on all ranks. A rank has no module (the text says where it was looked for) or no
 *             such GPU. Or two ranks share a GPU and NCCL was requested. */
LKS_API lks_status lks_gpu_group_create(lks_gpu_group **gpus, lks_group *group, const lks_gpu_group_options *options);

/* Destroys a GPU group. Accepts NULL.
 *
 * Call it after lks_gpu_wait has returned for all streams, and after the graphs with its operations are destroyed.
 * Ranks need not destroy several groups in the same order. With NCCL, it waits for the other ranks of the host to do
 * the same: at most 13 seconds, and at most 3 if the underlying group is dead. What NCCL has allocated is then freed
 * when they do, or when the process ends. */
LKS_API void lks_gpu_group_destroy(lks_gpu_group *gpus);

/* "nccl" or "host". */
LKS_API const char *lks_gpu_group_backend(const lks_gpu_group *gpus);
/* 1 if operations may be captured from a stream into a graph, 0 otherwise. */
LKS_API int lks_gpu_can_capture(const lks_gpu_group *gpus);

/* Allocates memory for reductions in canonical order of up to `nbytes`.
 *
 * `nbytes` is the count times the size of an element, for reduce_scatter that of all blocks together. Without this call
 * the memory is allocated when it is first needed. During a stream capture that is LKS_ERR_STATE. Do not call this
 * function during a capture. Memory allocated before is kept, because graphs may refer to it.
 * Errors:     LKS_ERR_MEMORY: on this rank only. */
LKS_API lks_status lks_gpu_reserve(lks_gpu_group *gpus, size_t nbytes);

/* Waits until all work on `stream` is done.
 *
 * Fatal:      LKS_ERR_TIMEOUT: the group's deadline passed. LKS_ERR_PEER: a rank was lost. The text names it. */
LKS_API lks_status lks_gpu_wait(lks_gpu_group *gpus, void *stream);

/* A hash of all collective calls so far (operation, count, type, operator, order, root).
 *
 * It is equal on all ranks that have made the same calls. Compare it now and then, with lks_all_gather or together with
 * other data. */
LKS_API uint64_t lks_gpu_fingerprint(const lks_gpu_group *gpus);

/* --- operations: `stream` is a cudaStream_t other than the default stream ---
 * Shapes, operators and positions of blocks are those of comm.h. */

/* Reductions.
 *
 * Numerics:   LKS_ORDER_CANONICAL: the same bits as lks_all_reduce, for any number of GPUs. It uses sends and additions
 *             of this library.
 *             LKS_ORDER_ANY: NCCL's own all-reduce if there is one. All ranks get the same bits. The bits may differ
 *             for another number of ranks or another count.
 *             Min and max of floats and the bitwise operators are always canonical. Integers are always exact. */
LKS_API lks_status lks_gpu_all_reduce(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                                      lks_operator op, lks_order order, void *stream);
LKS_API lks_status lks_gpu_reduce(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                                  lks_operator op, lks_order order, int root, void *stream);
LKS_API lks_status lks_gpu_reduce_scatter(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                                          lks_operator op, lks_order order, void *stream);

LKS_API lks_status lks_gpu_broadcast(lks_gpu_group *gpus, void *data, size_t count, lks_type type, int root,
                                     void *stream);
LKS_API lks_status lks_gpu_all_gather(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                                      void *stream);
LKS_API lks_status lks_gpu_gather(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type, int root,
                                  void *stream);
LKS_API lks_status lks_gpu_scatter(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                                   int root, void *stream);
/* `in` and `out` must not overlap. */
LKS_API lks_status lks_gpu_all_to_all(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                                      void *stream);

/* Send `count` elements to another rank, and receive them.
 *
 * Messages of a pair match in order. Sender and receiver pass the same count and type. Ranks that exchange messages put
 * their sends and receives between lks_gpu_calls_begin and lks_gpu_calls_end. Outside, each operation waits for its
 * counterpart: the first of a pair and direction in the call, as said above, later ones on the stream. */
LKS_API lks_status lks_gpu_send(lks_gpu_group *gpus, const void *data, size_t count, lks_type type, int to,
                                void *stream);
LKS_API lks_status lks_gpu_recv(lks_gpu_group *gpus, void *data, size_t count, lks_type type, int from, void *stream);

/* Group sends and receives on one stream, like ncclGroupStart and ncclGroupEnd. They all start together at
 * lks_gpu_calls_end. Unlike there, this concerns this GPU group alone, and calls on any thread.
 *
 * Errors:     LKS_ERR_STATE: any other operation of the GPU group in between. Groups of calls cannot be nested.
 *             LKS_ERR_ARGUMENT: a send or receive on another stream than the first. It is not part of the group. */
LKS_API lks_status lks_gpu_calls_begin(lks_gpu_group *gpus);
LKS_API lks_status lks_gpu_calls_end(lks_gpu_group *gpus);

#ifdef __cplusplus
}
#endif
#endif
