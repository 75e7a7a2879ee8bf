/* broadcast, scatter_allgather: the root's data is cut into n slices, which are scattered down a tree. Then a ring
 * all_gather brings all slices to all ranks.
 *
 *     [abcd]                 [a b c d] ─cd─> [c d]        scatter: a rank that has slices of several ranks
 *     root        scatter:   [a] ─b─> [b]   [c] ─d─> [d]  sends half of them on
 *                 ring:      every rank sends on the slice that it received last, n - 1 times
 *
 *     steps: ceil(log2 n) + n - 1
 *     messages: up to ceil(log2 n) at the root, of N (n - 1) / n bytes together; then n - 1 per rank, of N (n - 1) / n
 *     (slices are whole lines of 128 bytes, so the last ones may be shorter or empty)
 *
 * Source: Barnett, Gupta, Payne, Shuler, van de Geijn, Watts, "Interprocessor collective communication library", 1994.
 */
#include "comm/collective/collective.h"

/* Rank v, counted from the root, receives slices v .. v + span - 1. It keeps its own and sends on the others. */
static lks_status scatter(lks_group *group, const lksi_call *call, const lksi_block_layout *layout, int v) {
    int span = v == 0 ? 1 << lksi_log2(group->size) : v & -v;
    lksi_extent all = lksi_blocks(layout, v, (int)lksi_least((size_t)span, (size_t)(group->size - v)));
    if (v != 0)
        LKS_TRY(lksi_step_receive(group, call, lksi_rotate(group, v - span, call->root), lksi_at(call->out, all.begin),
                                  all.nbytes));
    for (int distance = span / 2; distance > 0; distance /= 2) {
        int child = v + distance;
        if (child >= group->size) continue;
        lksi_extent part = lksi_blocks(layout, child, (int)lksi_least((size_t)distance, (size_t)(group->size - child)));
        LKS_TRY(lksi_step_send(group, call, lksi_rotate(group, child, call->root), lksi_at(call->out, part.begin),
                               part.nbytes));
    }
    return LKS_OK;
}

lks_status lksi_broadcast_scatter_allgather(lks_group *group, const lksi_call *call) {
    int v = lksi_rotate(group, group->rank, -call->root);
    lksi_block_layout layout = lksi_block_layout_slices(call->nbytes, group->size);
    LKS_TRY(scatter(group, call, &layout, v));
    return lksi_pass_blocks_ring(group, call, call->out, &layout, v);
}

lksi_cost lksi_broadcast_scatter_allgather_cost(int n_ranks, size_t nbytes) {
    double share = (double)(n_ranks - 1) / n_ranks;
    return (lksi_cost){lksi_log2(n_ranks) + n_ranks - 1, 2 * share * (double)nbytes, 0};
}
