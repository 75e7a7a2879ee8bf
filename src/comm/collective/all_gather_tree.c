/* all_gather, tree: gather up the tree to rank 0, then broadcast down the tree.
 *
 *     3 ─> 2 ─┐           ┌─> 2 ─> 3          steps: 2 ceil(log2 n)
 *         1 ──┴─> 0 ──────┴─> 1               messages: those of gather tree with root 0, then of broadcast tree with
 *                                             n N bytes
 */
#include "comm/collective/collective.h"

lks_status lksi_all_gather_tree(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_gather_up_tree(group, call, 0));
    return lksi_send_down_tree(group, call, 0, call->out, lksi_block_layout_of(group, call).total);
}

lksi_cost lksi_all_gather_tree_cost(int n_ranks, size_t nbytes) {
    lksi_cost up = lksi_gather_tree_cost(n_ranks, nbytes);
    lksi_cost down = lksi_broadcast_tree_cost(n_ranks, nbytes * (size_t)n_ranks);
    return (lksi_cost){up.steps + down.steps, up.nbytes + down.nbytes, 0};
}
