/* all_reduce, naive: all ranks send to rank 0, which combines in canonical order and sends the result back to each.
 *
 *     rank 1 ──> rank 0 ──> rank 1         steps: 2 (n - 1), all at rank 0
 *     rank 2 ──>        ──> rank 2         messages: as reduce naive with root 0, then as broadcast naive from it
 *     rank 3 ──>        ──> rank 3
 */
#include "comm/collective/collective.h"

lks_status lksi_all_reduce_naive(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_reduce_at(group, call, 0, 0, call->count, call->out));
    return lksi_send_to_all(group, call, 0, call->out, call->nbytes);
}

lksi_cost lksi_all_reduce_naive_cost(int n_ranks, size_t nbytes) {
    lksi_cost in = lksi_reduce_naive_cost(n_ranks, nbytes), out = lksi_broadcast_naive_cost(n_ranks, nbytes);
    return (lksi_cost){in.steps + out.steps, in.nbytes + out.nbytes, 0};
}
