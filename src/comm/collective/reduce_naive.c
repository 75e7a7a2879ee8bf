/* reduce, naive: all ranks send to the root, which combines in canonical order.
 *
 *     rank 1 ──> root             steps: n - 1 per piece of P = 32 KiB, all at the root
 *     rank 2 ──> root             messages: ceil(A / P), at least one, per rank but the root, A bytes together
 *     rank 3 ──> root
 *
 * Contributions are scaled and rounded to the accumulator type before they are sent, so the bits are the same as with
 * any other algorithm.
 */
#include "comm/collective/collective.h"

enum { PIECE_NBYTES = 32 * 1024 };

/* Combines one piece of every rank. group->inputs[r] points to the piece of rank r. */
static lks_status combine_piece(lks_group *group, const lksi_call *call, size_t first, size_t count, void *out) {
    lks_type wide = lksi_accumulator_type(call->type);
    for (int rank = 0; rank < group->size; rank++) {
        unsigned char *piece = group->scratch + (size_t)rank * PIECE_NBYTES;
        group->inputs[rank] = piece;
        if (rank == group->rank)
            group->inputs[rank] = lksi_contribution(call, first, count, piece);
        else
            LKS_TRY(lksi_step_receive(group, call, rank, piece, count * lksi_type_nbytes(wide)));
    }
    void *sum = group->scratch;
    lksi_reduction reduction = {group->inputs, NULL, group->size, &sum, 1, wide, call->op, 1};
    lksi_reduce_range(&reduction, 0, count);
    lksi_conclude(out, sum, lksi_divisor(call->op, group->size), count, call->type);
    return LKS_OK;
}

lks_status lksi_reduce_at(lks_group *group, const lksi_call *call, int root, size_t first, size_t count, void *out) {
    size_t each = lksi_type_nbytes(call->type), wide_each = lksi_type_nbytes(lksi_accumulator_type(call->type));
    size_t step = PIECE_NBYTES / wide_each, n_done = 0;
    unsigned char *scratch;
    LKS_TRY(lksi_group_scratch(group, (group->rank == root ? (size_t)group->size : 1) * PIECE_NBYTES, &scratch));
    do {
        size_t n = lksi_least(count - n_done, step);
        if (group->rank == root)
            LKS_TRY(combine_piece(group, call, first + n_done, n, lksi_at(out, n_done * each)));
        else
            LKS_TRY(
                lksi_step_send(group, call, root, lksi_contribution(call, first + n_done, n, scratch), n * wide_each));
        n_done += n;
    } while (n_done < count);
    return LKS_OK;
}

lks_status lksi_reduce_naive(lks_group *group, const lksi_call *call) {
    return lksi_reduce_at(group, call, call->root, 0, call->count, call->out);
}

lksi_cost lksi_reduce_naive_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){(n_ranks - 1) * (double)lksi_piece_count(nbytes, PIECE_NBYTES),
                       (double)(n_ranks - 1) * (double)nbytes, 0};
}
