/* broadcast, tree: every rank that has the data sends it on, so that the number of ranks that have it doubles.
 *
 *     0 ───────> 4          rank v, counted from the root, receives from v without its lowest set bit
 *     0 ──> 2    4 ──> 6    and sends to v + 2^k for every 2^k below that bit, the largest first
 *     0─>1  2─>3 4─>5  6─>7
 *
 *     steps: ceil(log2 n). The pieces of P = 256 KiB follow each other through the tree
 *     messages: ceil(N / P), at least one, to each of up to ceil(log2 n) children; N bytes to each
 */
#include "comm/collective/collective.h"

lks_status lksi_send_down_tree(lks_group *group, const lksi_call *call, int root, void *data, size_t nbytes) {
    int v = lksi_rotate(group, group->rank, -root), lowest = v == 0 ? 1 << lksi_log2(group->size) : v & -v;
    size_t n_pieces = lksi_piece_count(nbytes, LKSI_PIECE_NBYTES);
    for (size_t i = 0; i < n_pieces; i++) {
        unsigned char *piece = lksi_at(data, i * LKSI_PIECE_NBYTES);
        size_t n = lksi_least(nbytes - i * LKSI_PIECE_NBYTES, LKSI_PIECE_NBYTES);
        if (v != 0) LKS_TRY(lksi_step_receive(group, call, lksi_rotate(group, v - lowest, root), piece, n));
        for (int distance = lowest / 2; distance > 0; distance /= 2)
            if (v + distance < group->size)
                LKS_TRY(lksi_step_send(group, call, lksi_rotate(group, v + distance, root), piece, n));
    }
    return LKS_OK;
}

lks_status lksi_broadcast_tree(lks_group *group, const lksi_call *call) {
    return lksi_send_down_tree(group, call, call->root, call->out, call->nbytes);
}

lksi_cost lksi_broadcast_tree_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){lksi_log2(n_ranks), lksi_log2(n_ranks) * (double)nbytes, 0};
}
