/* Closing a communicator: destroying it at the end of its group, or aborting it after an error. Both may wait for what
 * this rank cannot hasten, also where communicators are non-blocking:
 *
 *     ncclCommDestroy   until the other ranks of the host have closed theirs
 *     ncclCommAbort     until every CUDA graph that has captured one of its operations is destroyed. The code that
 *                       would destroy them must get its error first, and soon.
 *
 * So they run in a thread of their own. Only the destruction of the GPU group waits for it, and not for ever. */
#include "comm/nccl/gpu_internal.h"

#include <stdatomic.h>

struct lksi_gpu_closing {
    void (*close)(lksi_nccl_communicator *communicator); /* destroy or abort */
    const lksi_nccl_module *module;
    lksi_nccl_communicator *communicator;
    int gpu_index;
    lksi_thread *thread;
    atomic_bool is_done;
    lksi_gpu_closing *left_before;
};

/* Those that nobody waits for any more. The list is never read, but keeps their memory reachable. */
static _Atomic(lksi_gpu_closing *) left;

enum { SLICE_NS = 100 * 1000 };

static void run(void *opaque) {
    lksi_gpu_closing *closing = opaque;
    (void)closing->module->select(closing->gpu_index);
    closing->close(closing->communicator);
    atomic_store(&closing->is_done, true);
}

static lks_status start(lks_gpu_group *gpus, void (*to_close)(lksi_nccl_communicator *communicator)) {
    lksi_gpu_closing *begun = lksi_alloc(sizeof *begun);
    if (begun == NULL) return LKS_ERR_MEMORY;
    *begun = (lksi_gpu_closing){
        .close = to_close, .module = gpus->module, .communicator = gpus->communicator, .gpu_index = gpus->gpu_index};
    lks_status status = lksi_thread_create(&begun->thread, run, begun, "lks-gpu-close");
    if (status == LKS_OK)
        gpus->closing = begun;
    else
        lksi_free(begun);
    return status;
}

/* If there is no thread, the communicator is aborted here, which waits at most for graphs. */
static void begin(lks_gpu_group *gpus, void (*to_close)(lksi_nccl_communicator *communicator)) {
    if (start(gpus, to_close) != LKS_OK) gpus->module->abort(gpus->communicator);
    gpus->communicator = NULL;
}

void lksi_gpu_abort(lks_gpu_group *gpus) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    if (gpus->communicator == NULL) return;
    lksi_error_keep(text);
    begin(gpus, gpus->module->abort);
    lksi_error_restore(text);
}

/* --- the end of the group --- */

static bool is_closing(const lks_gpu_group *gpus) {
    return gpus->closing != NULL && !atomic_load(&gpus->closing->is_done);
}

/* Whether the other ranks may still come. */
static bool may_wait(const lks_gpu_group *gpus, int64_t deadline_ns) {
    return lksi_now_ns() < deadline_ns && !lksi_control_is_aborted(gpus->parent->control);
}

static void say_farewell(lks_gpu_group *gpus) {
    int64_t deadline_ns = lksi_now_ns() + lksi_gpu_farewell_ns;
    lksi_nccl_state state = gpus->module->finalize(gpus->communicator);
    while (state == LKSI_NCCL_PENDING && may_wait(gpus, deadline_ns)) {
        lksi_sleep_ns(SLICE_NS);
        state = gpus->module->state(gpus->communicator);
    }
    begin(gpus, state == LKSI_NCCL_DONE ? gpus->module->destroy : gpus->module->abort);
    while (is_closing(gpus) && may_wait(gpus, deadline_ns)) lksi_sleep_ns(SLICE_NS);
}

/* What has not ended by then may never end: a rank is lost, or the program never destroys a graph. Thread and memory
 * are then leaked. They do not keep the process from ending. */
void lksi_gpu_close(lks_gpu_group *gpus) {
    if (gpus->communicator != NULL) say_farewell(gpus);
    lksi_gpu_closing *closing = gpus->closing;
    int64_t deadline_ns = lksi_now_ns() + lksi_gpu_patience_ns;
    if (closing == NULL) return;
    while (is_closing(gpus) && lksi_now_ns() < deadline_ns) lksi_sleep_ns(SLICE_NS);
    gpus->closing = NULL;
    if (!atomic_load(&closing->is_done)) {
        closing->left_before = atomic_exchange(&left, closing);
        return;
    }
    lksi_thread_join(closing->thread);
    lksi_free(closing);
}
