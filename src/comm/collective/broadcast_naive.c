/* broadcast, naive: the root sends to one rank after the other.
 *
 *     root ──1──> rank 1          steps: n - 1, all at the root
 *          ──2──> rank 2          messages: n - 1, of N bytes
 *          ──3──> rank 3
 */
#include "comm/collective/collective.h"

lks_status lksi_send_to_all(lks_group *group, const lksi_call *call, int root, void *data, size_t nbytes) {
    if (group->rank != root) return lksi_step_receive(group, call, root, data, nbytes);
    for (int rank = 0; rank < group->size; rank++)
        if (rank != root) LKS_TRY(lksi_step_send(group, call, rank, data, nbytes));
    return LKS_OK;
}

lks_status lksi_broadcast_naive(lks_group *group, const lksi_call *call) {
    return lksi_send_to_all(group, call, call->root, call->out, call->nbytes);
}

lksi_cost lksi_broadcast_naive_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){n_ranks - 1, (double)(n_ranks - 1) * (double)nbytes, 0};
}
