/* all_gather, bruck: in round k rank r sends all blocks that it has, r .. r + 2^k - 1, to rank r - 2^k.
 *
 *     round 0   0 <─1─ 1 <─2─ 2 <─3─ 3 <─4─ 4 <─0─ 0          steps: ceil(log2 n), for any n
 *     round 1   0 <─23─ 2    1 <─34─ 3    2 <─40─ 4 ...       messages: ceil(log2 n) per rank, n - 1 blocks together;
 *     round 2   0 <─4─ 4     (only what is missing)           one more in a round whose blocks go past the last rank
 *
 * Blocks are received directly at their places in `out`. A range of blocks that wraps around takes two messages.
 *
 * Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
 * message-passing systems", 1997.
 */
#include "comm/collective/collective.h"

static lks_status exchange_round(lks_group *group, const lksi_call *call, const lksi_block_layout *layout,
                                 int distance) {
    int n = group->size, count = n - distance < distance ? n - distance : distance;
    int to = lksi_rotate(group, group->rank, -distance), from = lksi_rotate(group, group->rank, distance);
    int sent_head = n - group->rank < count ? n - group->rank : count,
        received_head = n - from < count ? n - from : count;
    lksi_block_exchange head = {to, group->rank, sent_head, from, from, received_head};
    lksi_block_exchange tail = {to, 0, count - sent_head, from, 0, count - received_head};
    LKS_TRY(lksi_exchange_blocks(group, call, call->out, layout, &head));
    return lksi_exchange_blocks(group, call, call->out, layout, &tail);
}

static lks_status gather_blocks(lks_group *group, const lksi_call *call, void *buffer,
                                const lksi_block_layout *layout) {
    (void)buffer; /* always call->out */
    for (int distance = 1; distance < group->size; distance *= 2)
        LKS_TRY(exchange_round(group, call, layout, distance));
    return LKS_OK;
}

lks_status lksi_all_gather_bruck(lks_group *group, const lksi_call *call) {
    return lksi_all_gather_by(group, call, gather_blocks);
}

lksi_cost lksi_all_gather_bruck_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){lksi_log2(n_ranks), (double)(n_ranks - 1) * (double)nbytes, 0};
}
