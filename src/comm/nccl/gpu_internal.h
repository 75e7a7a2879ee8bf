/* Shared by the files of comm/nccl/. */
#ifndef LKSI_GPU_INTERNAL_H
#define LKSI_GPU_INTERNAL_H

#include "comm/comm_internal.h"
#include "comm/nccl/module.h"
#include "comm/nccl/nccl.h"

/* A send or receive. */
typedef struct lksi_gpu_message {
    bool is_send;
    void *data;
    size_t count;
    lks_type type;
    int peer;
    void *stream;
} lksi_gpu_message;

enum { LKSI_GPU_MOST_SCRATCHES = 48, LKSI_GPU_NONE = -1 };
/* How long the end of a GPU group waits for its communicator to be closed, which ends NCCL's threads and frees its
 * memory on a GPU that others may use too. */
static const int64_t lksi_gpu_patience_ns = INT64_C(3) * 1000 * 1000 * 1000;
/* How long the end of a live group waits for the other ranks before that: a rank may still be writing its files. */
static const int64_t lksi_gpu_farewell_ns = INT64_C(10) * 1000 * 1000 * 1000;

typedef struct lksi_gpu_closing lksi_gpu_closing;

struct lks_gpu_group {
    lks_group *parent; /* the group that was given to lks_gpu_group_create */
    /* The same ranks, in a group used only here. So another thread may use the parent at the same time. */
    lks_group *group;
    const lksi_nccl_module *module;
    int gpu_index;
    int callers_gpu; /* during a call: the GPU that its thread had selected; LKSI_GPU_NONE: unknown */
    bool is_nccl;
    uint64_t fingerprint;
    const char *name; /* of the last operation, for which a wait waits */

    /* Messages that have not been started: all those since calls_begin, or one. */
    bool is_grouped; /* between calls_begin and calls_end */
    lksi_gpu_message *messages;
    size_t n_messages, messages_capacity;

    /* Recorded after the last operation: [0] outside of captures, [1] in the capture `captured_in`. */
    void *ends[2];
    uint64_t captured_in;

    lksi_nccl_communicator *communicator; /* nccl; NULL after it was aborted */
    lksi_gpu_closing *closing;            /* in progress or done; NULL: none */
    /* The last one is in use. The earlier ones are kept, because captured graphs may refer to them. Each is twice as
     * large as the one before if there was enough memory. */
    void *scratches[LKSI_GPU_MOST_SCRATCHES];
    int n_scratches;
    size_t scratch_nbytes;

    unsigned char *room; /* host: pinned memory for copies to and from the GPU */
    size_t room_nbytes;
    void *events[2]; /* recorded after the last copies to or from each half of the room */
};

/* An operation: the corresponding call of comm/, and its stream. */
typedef struct lksi_gpu_call {
    lksi_call call;
    const char *name; /* for texts: "gpu_all_reduce" */
    lks_order order;
    void *stream;
} lksi_gpu_call;

/* Loads the module. It is never unloaded. Errors: LKS_ERR_UNSUPPORTED. The text says where it was looked for. */
lks_status lksi_nccl_load(const lksi_nccl_module **module);

/* --- errors and waits (wait.c) --- */

/* Returns LKS_ERR_SYSTEM with the module's text if `state` is FAILED. */
lks_status lksi_gpu_check(const lks_gpu_group *gpus, lksi_nccl_state state);
#define LKSI_GPU_TRY(gpus, state) LKS_TRY(lksi_gpu_check(gpus, state))
/* Starts to abort the communicator, if there is one (close.c). */
void lksi_gpu_abort(lks_gpu_group *gpus);
/* Destroys the communicator, if it was not aborted, and waits for the end of either for a while. */
void lksi_gpu_close(lks_gpu_group *gpus);
/* Selects the group's GPU. Every public function that does so ends with lksi_gpu_deselect, which selects the GPU again
 * that the thread had before. */
lksi_nccl_state lksi_gpu_select(lks_gpu_group *gpus);
void lksi_gpu_deselect(lks_gpu_group *gpus);
/* Refuses a dead group. Starts the clock of an operation, or of a wait for it, and selects the GPU. */
lks_status lksi_gpu_begin(lks_gpu_group *gpus, const char *name);
/* Ends what lksi_gpu_begin has begun: fails the group unless `status` is harmless. Returns `status`. */
lks_status lksi_gpu_end(lks_gpu_group *gpus, lks_status status);
/* Waits until `poll` returns DONE. It ends with an error at the deadline or if a rank is lost. */
typedef lksi_nccl_state (*lksi_gpu_poll)(lks_gpu_group *gpus, void *argument);
lks_status lksi_gpu_await(lks_gpu_group *gpus, lksi_gpu_poll poll, void *argument);
/* Waits until the communicator has finished what NCCL does in the background after a call. */
lks_status lksi_gpu_settle(lks_gpu_group *gpus);

/* --- the two backends; the call is validated and part of the fingerprint --- */

lks_status lksi_gpu_run_nccl(lks_gpu_group *gpus, const lksi_gpu_call *call);
lks_status lksi_gpu_run_host(lks_gpu_group *gpus, const lksi_gpu_call *call);

/* Ensures at least `nbytes` of scratch memory on the GPU. Errors: LKS_ERR_MEMORY. */
lks_status lksi_gpu_make_scratch(lks_gpu_group *gpus, size_t nbytes);
/* The scratch memory that the largest operation on `nbytes` needs. */
size_t lksi_gpu_scratch_nbytes(const lks_gpu_group *gpus, size_t nbytes);

/* Start all messages of the group, at least one, together. */
lks_status lksi_gpu_messages_nccl(lks_gpu_group *gpus);
lks_status lksi_gpu_messages_host(lks_gpu_group *gpus);

#endif
