/* broadcast, naive: the root sends to one rank after the other.
 *
 *     root ──1──> rank 1          steps: n - 1, all at the root
 *          ──2──> rank 2          messages: n - 1, of N bytes
 *          ──3──> rank 3
 */
#include "comm/comm_internal.h"

lks_status lksi_send_to_all(lks_group *group, const lksi_call *call, int root) {
    if (group->rank != root) return lksi_step_receive(group, call, root, call->out, call->nbytes);
    for (int rank = 0; rank < group->size; rank++)
        if (rank != root) LKS_TRY(lksi_step_send(group, call, rank, call->out, call->nbytes));
    return LKS_OK;
}

lks_status lksi_broadcast_naive(lks_group *group, const lksi_call *call) {
    return lksi_send_to_all(group, call, call->root);
}
