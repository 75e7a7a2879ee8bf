/* reduce_scatter, ring: block j starts at rank j + 1, and every rank on the way to j adds its contribution.
 *
 *     block 0   1 ──> 2 ──> 3 ──> 0          all blocks at once: each rank sends one and receives another
 *     block 1   2 ──> 3 ──> 0 ──> 1
 *
 *     steps: n - 1 per piece of W = 1 MiB / n of accumulators of every block
 *     messages: n - 1 per rank and piece (at least one), each of a block's piece: A (n - 1) bytes, A of a block
 *
 * Order: ((x[j+1] + x[j+2]) + ...) + x[j]. It differs between blocks, and for floats it is not the canonical one. The
 * bits are the same on repetition. Integers, min and max are exact.
 */
#include "comm/collective/collective.h"

lks_status lksi_reduce_blocks_ring(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                   void **own) {
    size_t wide_each = lksi_type_nbytes(lksi_accumulator_type(call->type)), room = window->length * wide_each;
    unsigned char *sum, *received, *mine, *last;
    LKS_TRY(lksi_group_scratch(group, 3 * room, &sum));
    received = sum + room, mine = received + room, last = place != NULL ? place : sum;
    int block = lksi_rotate(group, group->rank, -1);
    size_t count = lksi_window_count(window, block);
    const void *partial = lksi_contribution(call, lksi_window_begin(window, block), count, sum);
    for (int round = 1; round < group->size; round++) {
        int coming = lksi_rotate(group, block, -1);
        size_t n_coming = lksi_window_count(window, coming);
        LKS_TRY(lksi_step_exchange(group, call, lksi_rotate(group, group->rank, 1), partial, count * wide_each,
                                   lksi_rotate(group, group->rank, -1), received, n_coming * wide_each));
        block = coming, count = n_coming;
        const void *added = lksi_contribution(call, lksi_window_begin(window, block), count, mine);
        unsigned char *into = round + 1 < group->size ? sum : last;
        lksi_combine(call, into, received, added, count);
        partial = into;
    }
    lksi_copy_unless_same(last, partial, count * wide_each);
    *own = last;
    return LKS_OK;
}

lks_status lksi_reduce_scatter_ring(lks_group *group, const lksi_call *call) {
    return lksi_reduce_scatter_by(group, call, lksi_reduce_blocks_ring);
}

lksi_cost lksi_reduce_scatter_ring_cost(int n_ranks, size_t nbytes) {
    double n_windows = (double)lksi_piece_count(nbytes * (size_t)n_ranks, LKSI_WINDOW_NBYTES);
    return (lksi_cost){(n_ranks - 1) * n_windows, (double)(n_ranks - 1) * (double)nbytes,
                       (3.0 * (n_ranks - 1) + 2) * (double)nbytes};
}
