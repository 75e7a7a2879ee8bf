/* barrier, dissemination: in round k rank r sends to rank r + 2^k and receives from rank r - 2^k. After ceil(log2 n)
 * rounds every rank has heard of every other, directly or indirectly.
 *
 *     round 0   0 ─> 1 ─> 2 ─> 3 ─> 4 ─> 0       steps: ceil(log2 n)
 *     round 1   0 ─> 2 ─> 4 ─> 1 ─> 3 ─> 0       messages: ceil(log2 n) per rank, of 0 bytes
 *     round 2   0 ─> 4 ─> 3 ─> 2 ─> 1 ─> 0
 *
 * Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.
 */
#include "comm/collective/collective.h"

lks_status lksi_barrier_dissemination(lks_group *group, const lksi_call *call) {
    for (int distance = 1; distance < group->size; distance *= 2) {
        int to = lksi_rotate(group, group->rank, distance), from = lksi_rotate(group, group->rank, -distance);
        LKS_TRY(lksi_step_exchange(group, call, to, NULL, 0, from, NULL, 0));
    }
    return LKS_OK;
}

lksi_cost lksi_barrier_dissemination_cost(int n_ranks, size_t nbytes) {
    (void)nbytes;
    return (lksi_cost){lksi_log2(n_ranks), 0, 0};
}
