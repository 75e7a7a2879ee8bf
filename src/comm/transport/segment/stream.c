/* Byte streams over rings or the remote: opening, closing and waiting for them. */
#include "comm/transport/segment/stream.h"

static void destroy(lksi_streams *streams) {
    if (streams == NULL) return;
    lksi_free(streams->ends);
    lksi_free(streams->conditions);
    lksi_free(streams->remote);
    lksi_free(streams);
}

void lksi_streams_close(lks_group *group) {
    for (int context = 0; context < LKSI_N_CONTEXTS; context++) destroy(group->streams[context]);
}

lks_status lksi_streams_open(lks_group *group, lksi_context context) {
    if (group->streams[context] != NULL) return LKS_OK;
    size_t n = (size_t)group->size;
    lksi_streams *opened = lksi_alloc(sizeof *opened);
    if (opened == NULL) return LKS_ERR_MEMORY;
    opened->ends = lksi_alloc_array(n, sizeof *opened->ends);
    opened->conditions = lksi_alloc_array(2 * n, sizeof *opened->conditions);
    opened->remote = lksi_alloc_array(2 * n, sizeof *opened->remote);
    if (opened->ends == NULL || opened->conditions == NULL || opened->remote == NULL) {
        destroy(opened);
        return LKS_ERR_MEMORY;
    }
    for (int rank = 0; rank < group->size; rank++) {
        int seat = group->seat_of[rank];
        opened->ends[rank].seat = seat;
        opened->ends[rank].capacity = (size_t)group->control->ring_nbytes;
        if (seat < 0) continue;
        opened->ends[rank].out = lksi_control_ring(group->control, context, group->seat, seat);
        opened->ends[rank].in = lksi_control_ring(group->control, context, seat, group->seat);
    }
    group->streams[context] = opened;
    return LKS_OK;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A thread cannot sleep on rings and connections together. If both are awaited, the sleep is short. */
static lks_status wait_remote(lks_group *group, lksi_context context, const lksi_await *await, int n_remote,
                              lksi_pauses *pauses) {
    static const int64_t slice_ns = INT64_C(50) * 1000 * 1000;
    if (lksi_pause(group, context, pauses)) return LKS_OK;
    int64_t left_ns = 0;
    LKS_TRY(lksi_look(group, context, await->ranks, await->n_ranks, &left_ns));
    bool is_poking = lksi_poke(group, context);
    bool is_short = await->n_conditions > 0 || is_poking;
    int64_t since_ns = lksi_now_ns();
    group->remote->sleep(group, context, group->streams[context]->remote, n_remote,
                         least(is_short ? LKSI_POKE_NS : slice_ns, left_ns));
    int64_t until_ns = lksi_now_ns();
    lksi_activity_await(group, context, LKSI_AWAKE);
    lksi_forgive_stop(since_ns, until_ns);
    if (!is_short) lksi_was_woken(group, context, until_ns - since_ns);
    return LKS_OK;
}

lks_status lksi_streams_wait(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                             const int *ranks, int n_ranks, lksi_pauses *pauses) {
    lksi_streams *streams = group->streams[context];
    int n_conditions = 0, n_remote = 0;
    for (int i = 0; i < n_interests; i++) {
        const lksi_interest *each = &interests[i];
        const lksi_ring_end *end = &streams->ends[each->peer];
        if (end->seat < 0)
            streams->remote[n_remote++] = *each;
        else
            streams->conditions[n_conditions++] =
                each->is_write ? lksi_ring_has_room(end, each->peer) : lksi_ring_has_more(end, each->peer);
    }
    lksi_await await = {.context = context,
                        .conditions = streams->conditions,
                        .n_conditions = n_conditions,
                        .ranks = ranks,
                        .n_ranks = n_ranks,
                        /* the caller checks after each slice whether any rank is left to wait for */
                        .is_sliced = group->remote != NULL || n_ranks == 0};
    return n_remote > 0 ? wait_remote(group, context, &await, n_remote, pauses) : lksi_wait_for(group, &await);
}
