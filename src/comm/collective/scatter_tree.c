/* scatter and scatterv, tree: the root sends half of the blocks to another rank, and both repeat this with the blocks
 * that they have.
 *
 *     0 ────────> 4          rank v, counted from the root, receives from v without its lowest set bit 2^k
 *     0 ──> 2     4 ──> 6    the blocks of v .. v + 2^k - 1
 *     0─>1  2─>3  4─>5  6─>7
 *
 *     steps: ceil(log2 n) per piece of P = 1 MiB / n of every block
 *     messages: ceil(longest block / P), at least one, to every child, of all the blocks that it handles
 */
#include "comm/collective/tree_blocks.h"

static void pack(const lks_group *group, const lksi_call *call, const lksi_tree_blocks *tree, size_t piece) {
    unsigned char *next = tree->scratch;
    for (int v = 0; v < group->size; v++) {
        lksi_extent part = lksi_tree_piece(tree, piece, v);
        size_t block = lksi_blocks(&tree->layout, lksi_tree_rank(tree, v), 1).begin;
        lksi_copy(next, lksi_at(call->in, block + part.begin), part.nbytes);
        next += part.nbytes;
    }
}

static lks_status hand_down(lks_group *group, const lksi_call *call, const lksi_tree_blocks *tree, size_t piece) {
    int v = tree->v;
    if (v == 0)
        pack(group, call, tree, piece);
    else
        LKS_TRY(lksi_step_receive(group, call, lksi_tree_rank(tree, v - tree->span), tree->scratch,
                                  lksi_tree_nbytes(tree, piece, v, tree->span)));
    for (int distance = tree->span / 2; distance > 0; distance /= 2) {
        if (v + distance >= group->size) continue;
        size_t before = lksi_tree_nbytes(tree, piece, v, distance);
        size_t nbytes = lksi_tree_nbytes(tree, piece, v + distance, distance);
        LKS_TRY(lksi_step_send(group, call, lksi_tree_rank(tree, v + distance), tree->scratch + before, nbytes));
    }
    return LKS_OK;
}

lks_status lksi_scatter_tree(lks_group *group, const lksi_call *call) {
    lksi_tree_blocks tree;
    LKS_TRY(lksi_tree_blocks_start(group, call, call->root, &tree));
    for (size_t piece = 0; piece < tree.n_pieces; piece++) {
        LKS_TRY(hand_down(group, call, &tree, piece));
        lksi_extent mine = lksi_tree_piece(&tree, piece, tree.v);
        lksi_copy(lksi_at(call->out, mine.begin), tree.scratch, mine.nbytes);
    }
    return LKS_OK;
}

lksi_cost lksi_scatter_tree_cost(int n_ranks, size_t nbytes) {
    size_t n_pieces = lksi_piece_count(nbytes, LKSI_WINDOW_NBYTES / (size_t)n_ranks);
    return (lksi_cost){lksi_log2(n_ranks) * (double)n_pieces, (double)(n_ranks - 1) * (double)nbytes, 0};
}
