/* gather and gatherv, naive: all ranks send to the root, which receives the blocks in rank order.
 *
 *     rank 1 ──> root          steps: n - 1, all at the root
 *     rank 2 ──> root          messages: 1 per rank but the root, of its block
 *     rank 3 ──> root
 */
#include "comm/collective/collective.h"

lks_status lksi_gather_to(lks_group *group, const lksi_call *call, int root) {
    lksi_block_layout layout = lksi_block_layout_of(group, call);
    lksi_extent mine = lksi_blocks(&layout, group->rank, 1);
    if (group->rank != root) return lksi_step_send(group, call, root, call->in, mine.nbytes);
    for (int rank = 0; rank < group->size; rank++) {
        lksi_extent block = lksi_blocks(&layout, rank, 1);
        if (rank != root) LKS_TRY(lksi_step_receive(group, call, rank, lksi_at(call->out, block.begin), block.nbytes));
    }
    lksi_copy_unless_same(lksi_at(call->out, mine.begin), call->in, mine.nbytes);
    return LKS_OK;
}

lks_status lksi_gather_naive(lks_group *group, const lksi_call *call) {
    return lksi_gather_to(group, call, call->root);
}

lksi_cost lksi_gather_naive_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){n_ranks - 1, (double)(n_ranks - 1) * (double)nbytes, 0};
}
