/* all_reduce, tree: reduce up the canonical tree to rank 0, then broadcast down the tree.
 *
 *     3 ─> 2 ─┐           ┌─> 2 ─> 3          steps: 2 ceil(log2 n)
 *         1 ──┴─> 0 ──────┴─> 1               messages: as reduce tree with root 0, then as broadcast tree from it
 */
#include "comm/collective/collective.h"

lks_status lksi_all_reduce_tree(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_reduce_up_tree(group, call, 0));
    return lksi_send_down_tree(group, call, 0, call->out, call->nbytes);
}

lksi_cost lksi_all_reduce_tree_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){2 * lksi_log2(n_ranks), 2 * lksi_log2(n_ranks) * (double)nbytes,
                       (3 * lksi_log2(n_ranks) + 2) * (double)nbytes};
}
