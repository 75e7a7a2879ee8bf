/* Giving a communicator up. NCCL's abort tells its kernels to quit, and then waits until every CUDA graph that has
 * captured one of its operations is destroyed. Whoever is to destroy them has to get its error first, and soon: so the
 * abort has a thread of its own, and only the end of the GPU group waits for that. */
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

/* Those that nobody waits for any more: nobody reads the list, but they are not lost. */
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

/* Without a thread it may wait for ever; but so would the GPU, for a rank that is lost. */
void lksi_gpu_abort_begin(lks_gpu_group *gpus) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    if (gpus->communicator == NULL) return;
    lksi_error_keep(text);
    if (start(gpus) != LKS_OK) gpus->module->abort(gpus->communicator);
    gpus->communicator = NULL;
    lksi_error_restore(text);
}

/* Where it goes on, a graph of the program's lives still: thread and block are left to themselves, for what they wait
 * for may never come. */
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
