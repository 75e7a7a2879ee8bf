/* The exchange of a higher room's call where the group spans hosts: the first rank collects what everyone hands over and
 * gives all of it to everyone.
 *
 *     rank 1 ──> rank 0 ──> rank 1        steps: 2 (n - 1), all at rank 0
 *     rank 2 ──>        ──> rank 2        messages: n - 1 of up to 40 bytes, n - 1 of up to 40 n bytes
 */
#include "comm/comm_internal.h"

#include <string.h>

lks_status lksi_exchange_messages(lks_group *group, const lksi_call *call, const void *mine, size_t nbytes, void *all) {
    size_t n = (size_t)group->size;
    if (group->rank != 0) {
        LKS_TRY(lksi_step_send(group, call, 0, mine, nbytes));
        return lksi_step_receive(group, call, 0, all, n * nbytes);
    }
    if (nbytes > 0) memcpy(all, mine, nbytes);
    for (int rank = 1; rank < group->size; rank++)
        LKS_TRY(lksi_step_receive(group, call, rank, (char *)all + (size_t)rank * nbytes, nbytes));
    for (int rank = 1; rank < group->size; rank++) LKS_TRY(lksi_step_send(group, call, rank, all, n * nbytes));
    return LKS_OK;
}
