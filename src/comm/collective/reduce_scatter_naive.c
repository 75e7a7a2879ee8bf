/* reduce_scatter, naive: rank 0 combines block after block and sends each to its rank.
 *
 *     rank 1 ──> rank 0 ──> block 1 to rank 1          steps: n (n - 1) + n - 1, all at rank 0
 *     rank 2 ──>        ──> block 2 to rank 2          messages: for every block and piece of P = 256 KiB of
 *                                                      accumulators (at least one) those of reduce naive with root 0,
 *                                                      then one from rank 0 to the block's rank
 */
#include "comm/collective/collective.h"

/* The part of block `block` in the window. */
static lks_status piece(lks_group *group, const lksi_call *call, const lksi_window *window, int block) {
    size_t each = lksi_type_nbytes(call->type), count = lksi_window_count(window, block);
    unsigned char *out = lksi_at(call->out, window->first * each), *result = out;
    if (group->rank == 0 && block != 0) result = group->scratch + (size_t)group->size * LKSI_PIECE_NBYTES;
    LKS_TRY(lksi_reduce_at(group, call, 0, lksi_window_begin(window, block), count, result));
    if (block == 0) return LKS_OK;
    if (group->rank == 0) return lksi_step_send(group, call, block, result, count * each);
    return group->rank == block ? lksi_step_receive(group, call, 0, out, count * each) : LKS_OK;
}

lks_status lksi_reduce_scatter_naive(lks_group *group, const lksi_call *call) {
    size_t step = LKSI_PIECE_NBYTES / lksi_type_nbytes(lksi_accumulator_type(call->type));
    unsigned char *scratch;
    if (group->rank == 0) LKS_TRY(lksi_group_scratch(group, (size_t)(group->size + 1) * LKSI_PIECE_NBYTES, &scratch));
    for (int block = 0; block < group->size; block++) {
        size_t first = 0, n_block = call->counts != NULL ? call->counts[block] : call->count;
        do {
            lksi_window window = lksi_scatter_window(group, call, first, lksi_least(n_block - first, step));
            LKS_TRY(piece(group, call, &window, block));
            first += window.length;
        } while (first < n_block);
    }
    return LKS_OK;
}

lksi_cost lksi_reduce_scatter_naive_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){(double)(n_ranks - 1) * (n_ranks + 1), (double)(n_ranks - 1) * (n_ranks + 1) * (double)nbytes,
                       0};
}
