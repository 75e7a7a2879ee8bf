/* The interface of the module to the library: CUDA streams and NCCL, without their types. No function waits for other
 * ranks, except `destroy`.
 *
 *     liblockstep ── dlopen ──> lockstep-nccl.so ──> libnccl.so.2, libcudart.so     the module does not depend on the
 *                                                                                   library: it includes only this
 *                                                                                   header and half.h
 *
 * Functions return a state. After FAILED, `error` returns the text on the same thread. NCCL's communicators are
 * non-blocking: an operation that is PENDING continues in the background. The `state` of the communicator must be DONE
 * before its next call.
 */
#ifndef LKSI_NCCL_MODULE_H
#define LKSI_NCCL_MODULE_H

#include <lockstep/comm.h>

#include <stdbool.h>

#define LKSI_NCCL_MODULE_NAME "lockstep-nccl"
#define LKSI_NCCL_MODULE_VARIABLE "LOCKSTEP_NCCL_MODULE"
/* The symbol that a module exports: an lksi_nccl_module. */
#define LKSI_NCCL_MODULE_SYMBOL "lksi_nccl_module_functions"
enum { LKSI_NCCL_MODULE_VERSION = 3, LKSI_NCCL_ID_NBYTES = 128, LKSI_NCCL_BUS_ID_NBYTES = 16 };

typedef enum lksi_nccl_state { LKSI_NCCL_DONE, LKSI_NCCL_PENDING, LKSI_NCCL_FAILED } lksi_nccl_state;

typedef struct lksi_nccl_communicator lksi_nccl_communicator;

typedef enum lksi_nccl_way { LKSI_NCCL_TO_HOST, LKSI_NCCL_TO_GPU, LKSI_NCCL_WITHIN_GPU } lksi_nccl_way;

typedef enum lksi_nccl_kind {
    LKSI_NCCL_ALL_REDUCE,
    LKSI_NCCL_REDUCE,
    LKSI_NCCL_REDUCE_SCATTER,
    LKSI_NCCL_BROADCAST,
    LKSI_NCCL_ALL_GATHER
} lksi_nccl_kind;

typedef struct lksi_nccl_collective {
    lksi_nccl_kind kind;
    const void *in;
    void *out;
    size_t count; /* of one block if the operation has blocks */
    lks_type type;
    lks_operator op; /* only sum, product, min, max or avg */
    int root;
} lksi_nccl_collective;

/* out = op over the contributions of n ranks, in canonical order, for each element. `out` may be `own`. */
typedef struct lksi_nccl_reduction {
    void *out;
    const void *own;    /* the contribution of `rank` */
    const void *others; /* the contribution of rank k begins at k * stride elements */
    int rank, n;
    size_t stride, count;
    lks_type type;
    lks_operator op;
} lksi_nccl_reduction;

typedef struct lksi_nccl_module {
    int version;               /* LKSI_NCCL_MODULE_VERSION; the layout below belongs to that version */
    int (*nccl_version)(void); /* 22809: 2.28.9 */
    const char *(*error)(void);

    /* --- the GPU: the functions below apply to the GPU that the thread has selected --- */
    lksi_nccl_state (*select)(int gpu_index);
    lksi_nccl_state (*selected)(int *gpu_index);
    lksi_nccl_state (*bus_id)(int gpu_index, char text[LKSI_NCCL_BUS_ID_NBYTES]);
    lksi_nccl_state (*alloc)(size_t nbytes, void **memory);
    void (*free)(void *memory); /* accepts NULL; so does free_host */
    lksi_nccl_state (*alloc_host)(size_t nbytes, void **memory);
    void (*free_host)(void *memory);
    lksi_nccl_state (*copy)(void *to, const void *from, size_t nbytes, lksi_nccl_way way, void *stream);
    /* *capture = which capture the stream takes part in; 0: none. No two captures of a process have the same number. */
    lksi_nccl_state (*capture_of)(void *stream, uint64_t *capture);
    lksi_nccl_state (*stream_state)(void *stream);
    /* An event that `mark` records on a stream. Its state is DONE when all earlier work of the stream is done. */
    lksi_nccl_state (*make_event)(void **event);
    void (*free_event)(void *event); /* accepts NULL */
    lksi_nccl_state (*mark)(void *event, void *stream);
    /* The stream's later work waits for what `mark` has seen last, if anything. */
    lksi_nccl_state (*follow)(void *event, void *stream);
    lksi_nccl_state (*event_state)(void *event);
    lksi_nccl_state (*reduce)(const lksi_nccl_reduction *reduction, void *stream);

    /* --- NCCL --- */
    lksi_nccl_state (*make_id)(char id[LKSI_NCCL_ID_NBYTES]);
    lksi_nccl_state (*create)(const char id[LKSI_NCCL_ID_NBYTES], int rank, int size,
                              lksi_nccl_communicator **communicator);
    lksi_nccl_state (*state)(lksi_nccl_communicator *communicator);
    /* `finalize` is DONE when no operation is in progress on this rank. Then call `destroy`, which waits until the
     * other ranks of the host have called it or `abort`. `abort` may be called at any time instead. Both wait until the
     * graphs with operations of the communicator are destroyed. */
    lksi_nccl_state (*finalize)(lksi_nccl_communicator *communicator);
    void (*destroy)(lksi_nccl_communicator *communicator);
    void (*abort)(lksi_nccl_communicator *communicator);

    /* Sends and receives between `begin` and `end` progress concurrently. */
    lksi_nccl_state (*begin)(void);
    lksi_nccl_state (*end)(void);
    lksi_nccl_state (*send)(lksi_nccl_communicator *communicator, const void *data, size_t count, lks_type type, int to,
                            void *stream);
    lksi_nccl_state (*receive)(lksi_nccl_communicator *communicator, void *data, size_t count, lks_type type, int from,
                               void *stream);
    lksi_nccl_state (*collective)(lksi_nccl_communicator *communicator, const lksi_nccl_collective *collective,
                                  void *stream);
} lksi_nccl_module;

#endif
