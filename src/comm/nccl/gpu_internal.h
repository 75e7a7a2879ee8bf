/* What the files of comm/nccl/ share. */
#ifndef LKSI_GPU_INTERNAL_H
#define LKSI_GPU_INTERNAL_H

#include "comm/comm_internal.h"
#include "comm/nccl/module.h"
#include "comm/nccl/nccl.h"

/* Sends and receives wait here for lks_gpu_calls_end, where the backend is host. */
typedef struct lksi_gpu_message {
    bool is_send;
    void *data;
    size_t count;
    lks_type type;
    int peer;
    void *stream;
} lksi_gpu_message;

enum { LKSI_GPU_MOST_SCRATCHES = 48 };
/* While a communicator is given up, which ends its threads and frees its memory on a GPU that others may use, too. */
static const int64_t lksi_gpu_patience_ns = INT64_C(3) * 1000 * 1000 * 1000;
/* At the end of a group that is alive: some rank may still write its files. */
static const int64_t lksi_gpu_farewell_ns = INT64_C(10) * 1000 * 1000 * 1000;

typedef struct lksi_gpu_abort lksi_gpu_abort;

struct lks_gpu_group {
    lks_group *parent; /* whose ranks they are */
    /* The same ranks in a group that is used for nothing else: so another thread may use the parent meanwhile. */
    lks_group *group;
    const lksi_nccl_module *module;
    int gpu_index;
    bool is_nccl;
    uint64_t fingerprint;
    bool is_grouped;  /* between calls_begin and calls_end */
    const char *name; /* of the last operation: a wait is for that */

    lksi_nccl_communicator *communicator; /* nccl; NULL once it is given up */
    lksi_gpu_abort *abort;                /* which goes on, or is done; NULL: none */
    /* The last is in use; those before it are kept because graphs may remember them. Each is twice as large, where
     * there was memory for that. */
    void *scratches[LKSI_GPU_MOST_SCRATCHES];
    int n_scratches;
    size_t scratch_nbytes;

    unsigned char *room; /* host: memory that the GPU copies to and from by itself */
    size_t room_nbytes;
    void *events[2]; /* behind the last copies to or from the room's halves */
    lksi_gpu_message *messages;
    size_t n_messages, messages_capacity;
};

/* An operation: the call of comm/ that it is like, and where it is put. */
typedef struct lksi_gpu_call {
    lksi_call call;
    const char *name; /* for people: "gpu_all_reduce" */
    lks_order order;
    void *stream;
} lksi_gpu_call;

/* The module, loaded for good. Errors: LKS_ERR_UNSUPPORTED, saying where it was looked for. */
lks_status lksi_nccl_load(const lksi_nccl_module **module);

/* --- failing and waiting (wait.c) --- */

/* LKS_ERR_SYSTEM with the module's text where `state` is FAILED. */
lks_status lksi_gpu_check(const lks_gpu_group *gpus, lksi_nccl_state state);
#define LKSI_GPU_TRY(gpus, state) LKS_TRY(lksi_gpu_check(gpus, state))
/* Gives up the communicator, if there is one (abort.c); and waits until that is done, lksi_gpu_patience_ns at most. */
void lksi_gpu_abort_begin(lks_gpu_group *gpus);
void lksi_gpu_abort_end(lks_gpu_group *gpus);
/* Refuses a dead group; starts the clock of an operation, or of a wait for it. */
lks_status lksi_gpu_begin(lks_gpu_group *gpus, const char *name);
/* Until `poll` says that it is done; under the deadline, and no longer than all ranks live. */
typedef lksi_nccl_state (*lksi_gpu_poll)(lks_gpu_group *gpus, void *argument);
lks_status lksi_gpu_await(lks_gpu_group *gpus, lksi_gpu_poll poll, void *argument);
/* The same for what NCCL does by itself after a call. */
lks_status lksi_gpu_settle(lks_gpu_group *gpus);

/* --- the two ways; the call is valid, and numbered in the fingerprint --- */

lks_status lksi_gpu_run_nccl(lks_gpu_group *gpus, const lksi_gpu_call *call);
lks_status lksi_gpu_run_host(lks_gpu_group *gpus, const lksi_gpu_call *call);

/* Scratch memory of the GPU, where there is less. Errors: LKS_ERR_MEMORY. */
lks_status lksi_gpu_make_scratch(lks_gpu_group *gpus, size_t nbytes);
/* What the largest operation of `nbytes` takes. */
size_t lksi_gpu_scratch_nbytes(const lks_gpu_group *gpus, size_t nbytes);

/* Sends or receives. Between calls_begin and calls_end: is put with those that lksi_gpu_end_* starts. */
lks_status lksi_gpu_message_nccl(lks_gpu_group *gpus, const lksi_gpu_message *message);
lks_status lksi_gpu_message_host(lks_gpu_group *gpus, const lksi_gpu_message *message);
lks_status lksi_gpu_begin_nccl(lks_gpu_group *gpus);
lks_status lksi_gpu_end_nccl(lks_gpu_group *gpus);
lks_status lksi_gpu_end_host(lks_gpu_group *gpus);
/* Ends what calls_begin has begun, if it has: NCCL's is the thread's, and would take in the communicator's abort and
 * whatever the thread does next. */
void lksi_gpu_drop_calls(lks_gpu_group *gpus);

#endif
