/* broadcast, naive: the root sends to one rank after the other.
 *
 *     root ──1──> rank 1          steps: n - 1, all at the root
 *          ──2──> rank 2          messages: n - 1, of N bytes
 *          ──3──> rank 3
 */
#include "comm/comm_internal.h"

lksi_message lksi_collective_message(const lks_group *group, int peer, lks_type type, void *data, size_t nbytes) {
    return (lksi_message){.context = LKSI_CONTEXT_COLLECTIVE,
                          .peer = peer,
                          .tag = (int)(group->counters.n_calls & INT32_MAX),
                          .type = type,
                          .data = data,
                          .nbytes = nbytes};
}

lks_status lksi_send_to_all(lks_group *group, const lksi_call *call, int root) {
    if (group->rank != root) {
        lksi_message message = lksi_collective_message(group, root, call->type, call->out, call->nbytes);
        return group->transport->receive(group, &message);
    }
    for (int rank = 0; rank < group->size; rank++) {
        if (rank == root) continue;
        lksi_message message = lksi_collective_message(group, rank, call->type, call->out, call->nbytes);
        LKS_TRY(group->transport->send(group, &message));
    }
    return LKS_OK;
}

lks_status lksi_broadcast_naive(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_open(group, call));
    return lksi_send_to_all(group, call, call->root);
}
