/* Aborting a communicator. ncclCommAbort tells NCCL's kernels to quit. Then it waits until every CUDA graph that has
 * captured one of its operations is destroyed. The code that would destroy them must get its error first, and soon. So
 * the abort runs in a thread of its own, and only the destruction of the GPU group waits for it. */
#include "comm/nccl/gpu_internal.h"

#include <stdatomic.h>

struct lksi_gpu_abort {
    const lksi_nccl_module *module;
    lksi_nccl_communicator *communicator;
    int gpu_index;
    lksi_thread *thread;
    atomic_bool is_done;
    lksi_gpu_abort *left_before;
};

/* Aborts that nobody waits for any more. The list is never read, but keeps their memory reachable. */
static _Atomic(lksi_gpu_abort *) left;

enum { SLICE_NS = 100 * 1000 };

static void run(void *opaque) {
    lksi_gpu_abort *abort = opaque;
    (void)abort->module->select(abort->gpu_index);
    abort->module->abort(abort->communicator);
    atomic_store(&abort->is_done, true);
}

static lks_status start(lks_gpu_group *gpus) {
    lksi_gpu_abort *begun = lksi_alloc(sizeof *begun);
    if (begun == NULL) return LKS_ERR_MEMORY;
    *begun = (lksi_gpu_abort){.module = gpus->module, .communicator = gpus->communicator, .gpu_index = gpus->gpu_index};
    lks_status status = lksi_thread_create(&begun->thread, run, begun, "lks-gpu-abort");
    if (status == LKS_OK)
        gpus->abort = begun;
    else
        lksi_free(begun);
    return status;
}

/* If there is no thread, the abort runs here and may wait for ever. So would the GPU wait for a rank that is lost. */
void lksi_gpu_abort_begin(lks_gpu_group *gpus) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    if (gpus->communicator == NULL) return;
    lksi_error_keep(text);
    if (start(gpus) != LKS_OK) gpus->module->abort(gpus->communicator);
    gpus->communicator = NULL;
    lksi_error_restore(text);
}

/* If the abort is still running after the wait, a graph of the program still exists and may never be destroyed. Thread
 * and memory are then leaked. */
void lksi_gpu_abort_end(lks_gpu_group *gpus) {
    lksi_gpu_abort *abort = gpus->abort;
    int64_t deadline_ns = lksi_now_ns() + lksi_gpu_patience_ns;
    if (abort == NULL) return;
    gpus->abort = NULL;
    while (!atomic_load(&abort->is_done) && lksi_now_ns() < deadline_ns) lksi_sleep_ns(SLICE_NS);
    if (!atomic_load(&abort->is_done)) {
        abort->left_before = atomic_exchange(&left, abort);
        return;
    }
    lksi_thread_join(abort->thread);
    lksi_free(abort);
}
