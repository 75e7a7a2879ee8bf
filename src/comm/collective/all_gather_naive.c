/* all_gather and all_gatherv, naive: rank 0 gathers all blocks, then sends them to every other rank.
 *
 *     rank 1 ──> rank 0 ──> rank 1         steps: 2 (n - 1), all at rank 0
 *     rank 2 ──>        ──> rank 2         messages: 1 per rank of its block; then n - 1 at rank 0, each of all blocks
 *     rank 3 ──>        ──> rank 3
 */
#include "comm/collective/collective.h"

lks_status lksi_all_gather_naive(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_gather_to(group, call, 0));
    return lksi_send_to_all(group, call, 0, call->out, lksi_block_layout_of(group, call).total);
}

lksi_cost lksi_all_gather_naive_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){2 * (n_ranks - 1), (double)(n_ranks - 1) * (n_ranks + 1) * (double)nbytes, 0};
}
