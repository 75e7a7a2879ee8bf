/* scatter and scatterv, naive: the root sends every rank its block.
 *
 *     root ──> rank 1          steps: n - 1, all at the root
 *          ──> rank 2          messages: n - 1 at the root, each of the receiver's block
 *          ──> rank 3
 */
#include "comm/collective/collective.h"

lks_status lksi_scatter_naive(lks_group *group, const lksi_call *call) {
    lksi_block_layout layout = lksi_block_layout_of(group, call);
    lksi_extent mine = lksi_blocks(&layout, group->rank, 1);
    if (group->rank != call->root) return lksi_step_receive(group, call, call->root, call->out, mine.nbytes);
    for (int rank = 0; rank < group->size; rank++) {
        lksi_extent block = lksi_blocks(&layout, rank, 1);
        if (rank != call->root)
            LKS_TRY(lksi_step_send(group, call, rank, lksi_at(call->in, block.begin), block.nbytes));
    }
    lksi_copy_unless_same(call->out, lksi_at(call->in, mine.begin), mine.nbytes);
    return LKS_OK;
}

lksi_cost lksi_scatter_naive_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){n_ranks - 1, (double)(n_ranks - 1) * (double)nbytes, 0};
}
