/* Lockstep, room comm/: collectives over the memory of GPUs. Needs the module lockstep-nccl.so, which is loaded when
 * the first GPU group is made, and nothing else of the library.
 *
 * A GPU group is the ranks of a group with a GPU each. Its operations are put on a CUDA stream and return: buffers are
 * device memory of the rank's GPU and belong to the operation until the stream has done it. They have no deadline by
 * themselves; lks_gpu_wait has, and names the rank that is lost, as the operations of comm.h do. Every rank makes the
 * same collective calls in the same order, on any stream of its own; whether they were the same, lks_gpu_fingerprint
 * tells. Where a rank uses several streams, one waits for the other from operation to operation. A count may be 0, a
 * group of one rank is a group.
 *
 * Two ways:
 *     nccl   NCCL, between GPUs of a host and of several. Operations may be captured into a CUDA graph.
 *     host   through memory of the hosts and the group's own operations, over any of its transports; for ranks that
 *            share a GPU, and by name wherever NCCL does not work. Calls return when the operation is done but for the
 * copy back; they cannot be captured.
 *
 * Errors of all operations: LKS_ERR_ARGUMENT (nothing was done); LKS_ERR_SYSTEM (CUDA or NCCL, with its own text),
 * LKS_ERR_PEER, LKS_ERR_TIMEOUT, LKS_ERR_MISMATCH (host only): the GPU group and the group it was made of are then dead
 * on all ranks, results are undefined, and operations under way are given up.
 * Graphs: NCCL calls CUDA on threads of its own, so a stream is captured in the mode thread-local or relaxed; and its
 * first operation of a kind makes connections, so a program runs a step before it captures one.
 * A GPU group is used by one thread at a time; which may be another one than that of the group it was made of, but not
 * while it is made or destroyed.
 */
#ifndef LOCKSTEP_GPU_H
#define LOCKSTEP_GPU_H

#include <lockstep/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lks_gpu_group lks_gpu_group;

/* LKS_GPU_AUTO: nccl; but host where two ranks have the same GPU and NCCL would refuse that. It refuses unless every
 * rank has a NCCL_HOSTID of its own, or NCCL_MULTI_RANK_GPU_ENABLE is 1 (NCCL 2.30). */
typedef enum lks_gpu_backend { LKS_GPU_AUTO, LKS_GPU_NCCL, LKS_GPU_HOST } lks_gpu_backend;

typedef struct lks_gpu_group_options {
    int gpu_index;           /* of this rank's GPU, as the CUDA runtime counts; each rank its own */
    lks_gpu_backend backend; /* the same on all ranks */
} lks_gpu_group_options;

/* Makes a GPU group of the ranks of `group`, which must outlive it. `options` may be NULL: GPU 0, auto.
 *
 * Collective:  the caller owns *gpus and gives it to lks_gpu_group_destroy.
 * Errors:      as any collective of comm.h; LKS_ERR_UNSUPPORTED on all ranks where one has no module (the text says
 *              where it was looked for) or no such GPU, or where two share one and NCCL was asked for. */
LKS_API lks_status lks_gpu_group_create(lks_gpu_group **gpus, lks_group *group, const lks_gpu_group_options *options);

/* To be called when lks_gpu_wait has returned for all streams, and graphs with its operations are destroyed. Gives the
 * others ten seconds to do the same. Accepts NULL. */
LKS_API void lks_gpu_group_destroy(lks_gpu_group *gpus);

/* "nccl", "host". */
LKS_API const char *lks_gpu_group_backend(const lks_gpu_group *gpus);
/* Whether operations may be called while the stream is being captured into a graph. */
LKS_API int lks_gpu_can_capture(const lks_gpu_group *gpus);

/* Makes room for reductions in canonical order of up to `nbytes` (count times the size of an element; of a
 * reduce_scatter all blocks together). Otherwise room is made when first needed, which while a stream is being captured
 * is LKS_ERR_STATE. Not to be called then. The room of before stays, for graphs that remember it.
 * Errors: LKS_ERR_MEMORY (this rank alone knows). */
LKS_API lks_status lks_gpu_reserve(lks_gpu_group *gpus, size_t nbytes);

/* Returns when all that is on `stream` is done, the group's deadline passed, or a rank was lost: then with the error
 * that names it. */
LKS_API lks_status lks_gpu_wait(lks_gpu_group *gpus, void *stream);

/* A hash of all collective calls so far (operation, count, type, operator, order, root), the same on all ranks that
 * have made the same ones: for comparing now and then, by lks_all_gather or with something else that is sent. */
LKS_API uint64_t lks_gpu_fingerprint(const lks_gpu_group *gpus);

/* --- operations: `stream` is a cudaStream_t, and not the default stream ---
 * Shapes, operators and places of blocks are those of comm.h. */

/* Numerics: LKS_ORDER_CANONICAL: the same bits as lks_all_reduce, for any number of GPUs, by sends and an addition of
 *           our own. LKS_ORDER_ANY: NCCL's own all-reduce where it is one: the same bits on all ranks, but not for
 *           another number of them or another count. Min and max of floats, and the operators on bits, are canonical
 *           always, integers always exact. */
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
/* `in` and `out` do not overlap. */
LKS_API lks_status lks_gpu_all_to_all(lks_gpu_group *gpus, const void *in, void *out, size_t count, lks_type type,
                                      void *stream);

/* `count` elements to another rank; matched in order, with the same count and type there. Ranks that exchange put their
 * sends and receives between begin and end: outside, each waits on the stream for its counterpart. */
LKS_API lks_status lks_gpu_send(lks_gpu_group *gpus, const void *data, size_t count, lks_type type, int to,
                                void *stream);
LKS_API lks_status lks_gpu_recv(lks_gpu_group *gpus, void *data, size_t count, lks_type type, int from, void *stream);

/* All sends and receives between the two, on one stream, are under way together once lks_gpu_calls_end is called.
 * Other operations are LKS_ERR_STATE in between; calls do not nest. */
LKS_API lks_status lks_gpu_calls_begin(lks_gpu_group *gpus);
LKS_API lks_status lks_gpu_calls_end(lks_gpu_group *gpus);

#ifdef __cplusplus
}
#endif
#endif
