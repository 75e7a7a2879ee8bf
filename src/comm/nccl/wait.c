/* How a rank waits for its GPU. It polls CUDA and NCCL, checks meanwhile what the group knows about the other ranks,
 * and gives up at the deadline. NCCL notices a lost rank late or never. Then the operations on the GPU are aborted, and
 * the error is that of the group, which names the rank. */
#include "comm/nccl/gpu_internal.h"

enum {
    POLL_NS = 20 * 1000,
    PATIENCE_MS = 500, /* NCCL may be the first to notice a death; the group learns soon after which rank it was */
    MOST_NAMED = 16
};

lks_status lksi_gpu_check(const lks_gpu_group *gpus, lksi_nccl_state state) {
    return state != LKSI_NCCL_FAILED
               ? LKS_OK
               : lksi_error(LKS_ERR_SYSTEM, "rank %d, GPU %d: %s", lksi_world_rank(gpus->parent, gpus->parent->rank),
                            gpus->gpu_index, gpus->module->error());
}

lks_status lksi_gpu_fail(lks_gpu_group *gpus, lks_status status) {
    (void)lksi_group_fail(gpus->group, status);
    (void)lksi_group_fail(gpus->parent, status);
    lksi_gpu_abort(gpus);
    return status;
}

lksi_nccl_state lksi_gpu_select(lks_gpu_group *gpus) {
    lksi_nccl_state state = LKSI_NCCL_DONE;
    if (gpus->callers_gpu == LKSI_GPU_NONE) state = gpus->module->selected(&gpus->callers_gpu);
    return state == LKSI_NCCL_DONE ? gpus->module->select(gpus->gpu_index) : state;
}

void lksi_gpu_deselect(lks_gpu_group *gpus) {
    if (gpus->callers_gpu != LKSI_GPU_NONE) (void)gpus->module->select(gpus->callers_gpu);
    gpus->callers_gpu = LKSI_GPU_NONE;
}

lks_status lksi_gpu_begin(lks_gpu_group *gpus, const char *name) {
    gpus->name = name;
    gpus->group->progress = (lksi_progress){.name = name, .sequence = lksi_n_calls(gpus->group)};
    lks_status status = lksi_start(gpus->group, LKSI_CONTEXT_COLLECTIVE);
    if (status == LKS_OK) status = lksi_gpu_check(gpus, lksi_gpu_select(gpus));
    if (status == LKS_OK) return LKS_OK;
    (void)lksi_gpu_fail(gpus, status);
    lksi_gpu_deselect(gpus);
    return status;
}

/* LKS_ERR_STATE is not fatal: a call that cannot be captured has put at most a wait on the stream. */
lks_status lksi_gpu_end(lks_gpu_group *gpus, lks_status status) {
    if (status != LKS_OK && status != LKS_ERR_STATE) (void)lksi_gpu_fail(gpus, status);
    lksi_gpu_deselect(gpus);
    return status;
}

/* The parent is checked separately, because its threads report errors of their own. */
static lks_status look_at_parent(const lks_gpu_group *gpus) {
    char doing[160];
    if (!lksi_control_is_aborted(gpus->parent->control)) return LKS_OK;
    lksi_progress_describe(gpus->group, LKSI_CONTEXT_COLLECTIVE, doing, sizeof doing);
    return lksi_control_abort_error(gpus->parent->control, doing);
}

/* A rank may leave before this one if it has made all the calls that this rank has made. */
static bool has_done_its_part(const lks_group *group, int rank) {
    int seat = group->seat_of[rank];
    return seat >= 0 && atomic_load(&group->control->seats[seat].presence.value) == LKSI_LEFT &&
           atomic_load(&group->control->seats[seat].activities[LKSI_CONTEXT_COLLECTIVE].sequence) >=
               group->progress.sequence;
}

/* It is unknown which GPU waits for which. Each rank reports that it waits for the next, and blame.c finds the rank
 * that is not in the circle or is behind. */
static lks_status look(lks_gpu_group *gpus) {
    int ranks[MOST_NAMED], n_ranks = 0, size = gpus->group->size;
    int64_t left_ns;
    for (int distance = 1; distance < size && n_ranks < MOST_NAMED; distance++) {
        int rank = (gpus->group->rank + distance) % size;
        if (!has_done_its_part(gpus->group, rank)) ranks[n_ranks++] = rank;
    }
    LKS_TRY(look_at_parent(gpus));
    return lksi_look(gpus->group, LKSI_CONTEXT_COLLECTIVE, ranks, n_ranks, &left_ns);
}

/* An error of CUDA or NCCL may only be a consequence of a rank's death, so this waits for the group to learn of one. */
static lks_status explain(lks_gpu_group *gpus) {
    LKS_TRY(look(gpus));
    lks_status status = lksi_gpu_check(gpus, LKSI_NCCL_FAILED);
    char text[LKSI_ABORT_TEXT_NBYTES];
    snprintf(text, sizeof text, "%s", lksi_error_text());
    for (int i = 0; i < PATIENCE_MS && gpus->group->size > 1; i++) {
        LKS_TRY(look(gpus));
        lksi_sleep_ns(1000000);
    }
    return lksi_error(status, "%s", text);
}

lks_status lksi_gpu_await(lks_gpu_group *gpus, lksi_gpu_poll poll, void *argument) {
    lks_status status = LKS_OK;
    lksi_pauses pauses = {0};
    for (;;) {
        lksi_nccl_state state = poll(gpus, argument); /* polled again after an error, because the operation may have
                                                       * finished just before */
        if (state == LKSI_NCCL_DONE) status = LKS_OK;
        if (state == LKSI_NCCL_FAILED && status == LKS_OK) status = explain(gpus);
        if (state != LKSI_NCCL_PENDING || status != LKS_OK) break;
        if (lksi_pause(gpus->group, LKSI_CONTEXT_COLLECTIVE, &pauses)) continue;
        status = look(gpus);
        if (status == LKS_OK) lksi_doze(POLL_NS);
    }
    if (status == LKS_OK) lksi_activity_await(gpus->group, LKSI_CONTEXT_COLLECTIVE, LKSI_AWAKE);
    return status;
}

static lksi_nccl_state communicator_state(lks_gpu_group *gpus, void *nothing) {
    (void)nothing;
    return gpus->module->state(gpus->communicator);
}

lks_status lksi_gpu_settle(lks_gpu_group *gpus) { return lksi_gpu_await(gpus, communicator_state, NULL); }

/* Also detects NCCL's errors, after which its kernels never end. */
static lksi_nccl_state stream_state(lks_gpu_group *gpus, void *stream) {
    lksi_nccl_state state = gpus->module->stream_state(stream);
    if (state != LKSI_NCCL_PENDING || gpus->communicator == NULL) return state;
    return gpus->module->state(gpus->communicator) == LKSI_NCCL_FAILED ? LKSI_NCCL_FAILED : LKSI_NCCL_PENDING;
}

lks_status lks_gpu_wait(lks_gpu_group *gpus, void *stream) {
    if (gpus == NULL) return lksi_error(LKS_ERR_ARGUMENT, "lks_gpu_wait: `gpus` is NULL");
    LKS_TRY(lksi_gpu_begin(gpus, gpus->name));
    lks_status status = lksi_gpu_await(gpus, stream_state, stream);
    if (status == LKS_OK) lksi_activity_end(gpus->group, LKSI_CONTEXT_COLLECTIVE);
    return lksi_gpu_end(gpus, status);
}
