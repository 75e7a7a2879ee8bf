/* all_reduce, naive: all send to rank 0, which combines in canonical order and sends the result back to each.
 *
 *     rank 1 ──> rank 0 ──> rank 1         steps: 2 (n - 1), all at rank 0
 *     rank 2 ──>        ──> rank 2         messages: as reduce naive with root 0, then as broadcast naive from it
 *     rank 3 ──>        ──> rank 3
 */
#include "comm/comm_internal.h"

lks_status lksi_all_reduce_naive(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_collect_and_reduce(group, call, 0));
    return lksi_send_to_all(group, call, 0);
}
