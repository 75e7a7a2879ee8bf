/* The tree of gather and scatter: which blocks a rank handles, and the size of the pieces. */
#include "comm/collective/tree_blocks.h"

lks_status lksi_tree_blocks_start(lks_group *group, const lksi_call *call, int root, lksi_tree_blocks *tree) {
    int v = lksi_rotate(group, group->rank, -root);
    *tree = (lksi_tree_blocks){.group = group,
                               .layout = lksi_block_layout_of(group, call),
                               .root = root,
                               .v = v,
                               .span = v == 0 ? 1 << lksi_log2(group->size) : v & -v,
                               .piece_nbytes = LKSI_WINDOW_NBYTES / (size_t)group->size};
    size_t longest = lksi_block_layout_longest(group, &tree->layout);
    tree->n_pieces = lksi_piece_count(longest, tree->piece_nbytes);
    size_t n_blocks = lksi_least((size_t)tree->span, (size_t)(group->size - v));
    return lksi_group_scratch(group, n_blocks * lksi_least(longest, tree->piece_nbytes), &tree->scratch);
}

lksi_extent lksi_tree_piece(const lksi_tree_blocks *tree, size_t piece, int v) {
    size_t nbytes = lksi_blocks(&tree->layout, lksi_tree_rank(tree, v), 1).nbytes;
    size_t begin = lksi_least(piece * tree->piece_nbytes, nbytes);
    return (lksi_extent){begin, lksi_least(nbytes - begin, tree->piece_nbytes)};
}

size_t lksi_tree_nbytes(const lksi_tree_blocks *tree, size_t piece, int v, int n) {
    size_t nbytes = 0;
    for (int i = v; i < v + n && i < tree->group->size; i++) nbytes += lksi_tree_piece(tree, piece, i).nbytes;
    return nbytes;
}
