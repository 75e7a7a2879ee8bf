/* all_gather and all_gatherv, ring: in every step each rank sends to the next rank the block that it received last.
 *
 *     0 ──0──> 1 ──1──> 2 ──2──> 3 ──3──> 0         then 0 sends block 3 to 1, and so on
 *
 *     steps: n - 1
 *     messages: n - 1 per rank: all blocks but that of the next rank
 */
#include "comm/collective/collective.h"

lks_status lksi_pass_blocks_ring(lks_group *group, const lksi_call *call, void *buffer, const lksi_block_layout *layout,
                                 int own) {
    int next = lksi_rotate(group, group->rank, 1), previous = lksi_rotate(group, group->rank, -1);
    for (int round = 0; round < group->size - 1; round++) {
        lksi_block_exchange blocks = {.to = next,
                                      .first_sent = lksi_rotate(group, own, -round),
                                      .n_sent = 1,
                                      .from = previous,
                                      .first_received = lksi_rotate(group, own, -round - 1),
                                      .n_received = 1};
        LKS_TRY(lksi_exchange_blocks(group, call, buffer, layout, &blocks));
    }
    return LKS_OK;
}

lks_status lksi_gather_blocks_ring(lks_group *group, const lksi_call *call, void *buffer,
                                   const lksi_block_layout *layout) {
    return lksi_pass_blocks_ring(group, call, buffer, layout, group->rank);
}

lks_status lksi_all_gather_by(lks_group *group, const lksi_call *call, lksi_gather_core core) {
    lksi_block_layout layout = lksi_block_layout_of(group, call);
    lksi_extent mine = lksi_blocks(&layout, group->rank, 1);
    lksi_copy_unless_same(lksi_at(call->out, mine.begin), call->in, mine.nbytes);
    return core(group, call, call->out, &layout);
}

lks_status lksi_all_gather_ring(lks_group *group, const lksi_call *call) {
    return lksi_all_gather_by(group, call, lksi_gather_blocks_ring);
}

lksi_cost lksi_all_gather_ring_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){n_ranks - 1, (double)(n_ranks - 1) * (double)nbytes, 0};
}
