/* broadcast, direct: every rank reads directly from the root's memory.
 *
 *     root ──> line, staging area or symmetric buffer ──> rank 1      N bytes, chunks of S
 *                                                     ──> rank 2
 *                                                     ──> rank 3
 *
 *     up to 1 KiB             the root's line carries them           steps: 1
 *     symmetric at the root   all read the root's, then a barrier    steps: 2          bytes: N read per rank
 *     2 processes, 8 KiB on   the other reads the root's buffer,     steps: 2          bytes: N read
 *                             then a barrier
 *     otherwise               the root stages a chunk, all copy it   steps: ceil(N/S)  bytes: N written by the root,
 *                             while it stages the next                                 N read per rank
 *
 * Above 1 KiB all data is staged if that is faster (collective.h, lksi_place_begin).
 *
 * Over messages: slice j goes from the root to rank j, which sends it to all the others.
 *
 *     root ──j──> rank j ──j──> all          steps: 2 (n - 1)
 *     messages: 2 (n - 1) at the root, n - 1 elsewhere, each of about N / n bytes
 */
#include "comm/collective/collective.h"

#include <string.h>

/* Does the same as lksi_move_blocks, which is slower because it handles more cases. */
static lks_status by_line(lks_group *group, const lksi_call *call) {
    if (group->rank == call->root) {
        if (call->nbytes > 0) memcpy(lksi_shown_next(group, call->nbytes), call->out, call->nbytes);
        return lksi_post_and_run_ahead(group, call, call->nbytes);
    }
    LKS_TRY(lksi_post_and_hear(group, call, call->root, (lksi_shown){call->nbytes, 0, call->nbytes}));
    if (call->nbytes > 0) memcpy(call->out, lksi_shown_by(group, call->root, call->nbytes), call->nbytes);
    return LKS_OK;
}

lks_status lksi_broadcast_direct(lks_group *group, const lksi_call *call) {
    if (call->nbytes <= LKSI_ANNEX_NBYTES && group->size > 1) return by_line(group, call);
    lksi_move move = {.in = call->out, .out = call->out, .sources = LKSI_ROOT, .readers = LKSI_EVERYONE};
    return lksi_move_blocks(group, call, &move);
}

lks_status lksi_broadcast_direct_remote(lks_group *group, const lksi_call *call) {
    lksi_block_layout layout = lksi_block_layout_slices(call->nbytes, group->size);
    for (int distance = 1; distance < group->size; distance++) {
        int to = lksi_rotate(group, call->root, distance);
        lksi_block_exchange slice = {.to = to,
                                     .first_sent = to,
                                     .n_sent = group->rank == call->root,
                                     .from = call->root,
                                     .first_received = to,
                                     .n_received = group->rank == to};
        LKS_TRY(lksi_exchange_blocks(group, call, call->out, &layout, &slice));
    }
    return lksi_gather_blocks_direct(group, call, call->out, &layout);
}

lksi_cost lksi_broadcast_direct_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){2 * (n_ranks - 1), 2.0 * (n_ranks - 1) / n_ranks * (double)nbytes, 0};
}
