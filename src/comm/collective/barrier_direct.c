/* barrier, direct: the exchange that begins every call is already a barrier.
 *
 *     rank 0 ─┬─ line ─┬─ rank 0        steps: 1
 *     rank 1 ─┤        ├─ rank 1        bytes: one cache line per rank, read by all; no messages
 *     rank 2 ─┘        └─ rank 2
 *
 * Over messages: every rank sends to every other.       messages: n - 1 per rank, of 0 bytes
 */
#include "comm/collective/collective.h"

lks_status lksi_barrier_direct(lks_group *group, const lksi_call *call) {
    return lksi_post_wait_and_collect(group, call, (lksi_shown){0});
}

lks_status lksi_barrier_direct_remote(lks_group *group, const lksi_call *call) {
    for (int distance = 1; distance < group->size; distance++)
        LKS_TRY(lksi_step_exchange(group, call, lksi_rotate(group, group->rank, distance), NULL, 0,
                                   lksi_rotate(group, group->rank, -distance), NULL, 0));
    return LKS_OK;
}

lksi_cost lksi_barrier_direct_cost(int n_ranks, size_t nbytes) {
    (void)nbytes;
    return (lksi_cost){n_ranks - 1, 0, 0};
}
