/* Transport "thread": ranks are threads of one process. All memory is common, so a segment is one allocation to which
 * all ranks point. */
#include "comm/bootstrap/thread_world.h"
#include "comm/comm_internal.h"
#include "comm/world.h"

static lks_status memory_make(lks_group *group, size_t nbytes, void **base) {
    return lksi_thread_block_create(group->backing, nbytes, base);
}

static lks_status memory_attach(lks_group *group, size_t nbytes, void *base_on_0, void **base) {
    if (!lksi_thread_block_hold(group->backing, base_on_0))
        return lksi_error(LKS_ERR_PEER, "rank %d has released its %zu shared bytes", lksi_world_rank(group, 0), nbytes);
    *base = base_on_0;
    return LKS_OK;
}

static void memory_release(lks_group *group, void *base, size_t nbytes) {
    (void)nbytes;
    lksi_thread_block_release(group->backing, base);
}

static void leave(lks_group *group) { lksi_thread_block_release(group->backing, group->control); }

static const lksi_transport thread_transport = {.name = "thread",
                                                .memory_make = memory_make,
                                                .memory_attach = memory_attach,
                                                .memory_release = memory_release,
                                                .close = leave};

lks_status lksi_thread_transport_join(lks_group *group) {
    int *ranks = lksi_alloc_array((size_t)group->n_seats, sizeof *ranks);
    if (ranks == NULL) return LKS_ERR_MEMORY;
    for (int seat = 0; seat < group->n_seats; seat++) ranks[seat] = lksi_world_rank(group, group->rank_of[seat]);
    lks_status status =
        lksi_thread_world_join(group->world->threads, group->id, ranks, group->n_seats, &group->control);
    lksi_free(ranks);
    if (status != LKS_OK) return status;
    group->transport = &thread_transport;
    group->backing = group->world->threads;
    return LKS_OK;
}
