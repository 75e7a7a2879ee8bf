/* The tree of gather and scatter. Rank v, counted from the root, handles the blocks of ranks v .. v + span - 1. They
 * pass through it one piece of every block at a time, so that scratch memory stays bounded. */
#ifndef LKSI_TREE_BLOCKS_H
#define LKSI_TREE_BLOCKS_H

#include "comm/collective/collective.h"

typedef struct lksi_tree_blocks {
    const lks_group *group;
    lksi_block_layout layout;
    int root, v, span; /* span: ranks of the subtree of v, not cut off at n */
    size_t piece_nbytes, n_pieces;
    unsigned char *scratch; /* one piece of each block of the subtree, packed */
} lksi_tree_blocks;

lks_status lksi_tree_blocks_start(lks_group *group, const lksi_call *call, int root, lksi_tree_blocks *tree);
/* Piece `piece` of v's block: its offset in the block and its size. */
lksi_extent lksi_tree_piece(const lksi_tree_blocks *tree, size_t piece, int v);
/* Size of that piece in blocks v .. v + n - 1 together. Blocks past the last rank are skipped. */
size_t lksi_tree_nbytes(const lksi_tree_blocks *tree, size_t piece, int v, int n);
static inline int lksi_tree_rank(const lksi_tree_blocks *tree, int v) {
    return lksi_rotate(tree->group, v, tree->root);
}

#endif
