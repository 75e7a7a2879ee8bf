/* gather and gatherv, tree: neighbours send first, then pairs, then groups of four. Each rank sends all blocks that it
 * has.
 *
 *     0<─1  2<─3  4<─5  6<─7          rank v, counted from the root, sends to v without its lowest set bit 2^k
 *     0 <── 2     4 <── 6             the blocks of v .. v + 2^k - 1
 *     0 <──────── 4
 *
 *     steps: ceil(log2 n) per piece of P = 1 MiB / n of every block
 *     messages: ceil(longest block / P), at least one, per rank but the root, of all the blocks that it handles
 */
#include "comm/collective/tree_blocks.h"

static lks_status collect(lks_group *group, const lksi_call *call, const lksi_tree_blocks *tree, size_t piece) {
    lksi_extent mine = lksi_tree_piece(tree, piece, tree->v);
    lksi_copy(tree->scratch, lksi_at(call->in, mine.begin), mine.nbytes);
    for (int distance = 1; distance < tree->span && tree->v + distance < group->size; distance *= 2) {
        size_t before = lksi_tree_nbytes(tree, piece, tree->v, distance);
        size_t nbytes = lksi_tree_nbytes(tree, piece, tree->v + distance, distance);
        LKS_TRY(
            lksi_step_receive(group, call, lksi_tree_rank(tree, tree->v + distance), tree->scratch + before, nbytes));
    }
    if (tree->v == 0) return LKS_OK;
    return lksi_step_send(group, call, lksi_tree_rank(tree, tree->v - tree->span), tree->scratch,
                          lksi_tree_nbytes(tree, piece, tree->v, tree->span));
}

static void unpack(const lks_group *group, const lksi_call *call, const lksi_tree_blocks *tree, size_t piece) {
    const unsigned char *next = tree->scratch;
    for (int v = 0; v < group->size; v++) {
        lksi_extent part = lksi_tree_piece(tree, piece, v);
        size_t block = lksi_blocks(&tree->layout, lksi_tree_rank(tree, v), 1).begin;
        lksi_copy(lksi_at(call->out, block + part.begin), next, part.nbytes);
        next += part.nbytes;
    }
}

lks_status lksi_gather_up_tree(lks_group *group, const lksi_call *call, int root) {
    lksi_tree_blocks tree;
    LKS_TRY(lksi_tree_blocks_start(group, call, root, &tree));
    for (size_t piece = 0; piece < tree.n_pieces; piece++) {
        LKS_TRY(collect(group, call, &tree, piece));
        if (tree.v == 0) unpack(group, call, &tree, piece);
    }
    return LKS_OK;
}

lks_status lksi_gather_tree(lks_group *group, const lksi_call *call) {
    return lksi_gather_up_tree(group, call, call->root);
}

lksi_cost lksi_gather_tree_cost(int n_ranks, size_t nbytes) {
    size_t n_pieces = lksi_piece_count(nbytes, LKSI_WINDOW_NBYTES / (size_t)n_ranks);
    return (lksi_cost){lksi_log2(n_ranks) * (double)n_pieces, (double)(n_ranks - 1) * (double)nbytes, 0};
}
