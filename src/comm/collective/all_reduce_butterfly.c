/* all_reduce, butterfly (recursive doubling): pairs exchange all that they have, at distance 1, then 2, then 4.
 *
 *     0<─>1   2<─>3              after round k each rank has the sum of its 2^(k+1) neighbours, op(lower, higher)
 *     0<───>2 1<───>3
 *
 * Ranks past the largest power of two do the same among themselves. Their sum is combined with that of the others last,
 * as in the canonical tree: rank i of these t ranks exchanges with rank i of the first ranks, and sends to ranks i + t,
 * i + 2 t, ... of the first ranks.
 *
 *     5 ranks   0..3 as above; then 0 <─> 4, 4 ─> 1, 4 ─> 2, 4 ─> 3
 *
 *     steps: log2 n per piece of P = 256 KiB of accumulators if n is a power of two
 *     messages: one per partner and piece, at least one; A bytes to each
 *
 * Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005. The paper
 * differs for the ranks past a power of two: it folds them in first.
 */
#include "comm/collective/collective.h"

typedef struct butterfly {
    lks_group *group;
    const lksi_call *call;
    size_t first, count, nbytes;
    unsigned char *sum, *other;
    const void *partial;
} butterfly;

static lks_status swap(butterfly *b, int peer) {
    return lksi_step_exchange(b->group, b->call, peer, b->partial, b->nbytes, peer, b->other, b->nbytes);
}

/* Sends the sum of the higher part to all ranks of the lower part, and the sum of the lower part to all ranks of the
 * higher. */
static lks_status cross(butterfly *b, int low, int half, int n) {
    int rank = b->group->rank, n_high = n - half;
    if (rank < low + half) {
        int i = rank - low, peer = low + half + i % n_high;
        return i < n_high ? swap(b, peer) : lksi_step_receive(b->group, b->call, peer, b->other, b->nbytes);
    }
    int i = rank - low - half;
    LKS_TRY(swap(b, low + i));
    for (int to = i + n_high; to < half; to += n_high)
        LKS_TRY(lksi_step_send(b->group, b->call, low + to, b->partial, b->nbytes));
    return LKS_OK;
}

/* Combines the contributions of ranks low .. low + n - 1 on all of these ranks. The calling rank is one of them. */
static lks_status climb(butterfly *b, int low, int n) {
    if (n == 1) {
        b->partial = lksi_contribution(b->call, b->first, b->count, b->sum);
        return LKS_OK;
    }
    int half = lksi_split(n);
    bool is_low = b->group->rank < low + half;
    LKS_TRY(is_low ? climb(b, low, half) : climb(b, low + half, n - half));
    LKS_TRY(cross(b, low, half, n));
    lksi_combine(b->call, b->sum, is_low ? b->partial : b->other, is_low ? b->other : b->partial, b->count);
    b->partial = b->sum;
    return LKS_OK;
}

lks_status lksi_all_reduce_butterfly(lks_group *group, const lksi_call *call) {
    size_t each = lksi_type_nbytes(call->type), wide_each = lksi_type_nbytes(lksi_accumulator_type(call->type));
    size_t step = LKSI_PIECE_NBYTES / wide_each;
    butterfly b = {.group = group, .call = call};
    LKS_TRY(lksi_group_scratch(group, 2 * LKSI_PIECE_NBYTES, &b.sum));
    b.other = b.sum + LKSI_PIECE_NBYTES;
    do {
        b.count = lksi_least(call->count - b.first, step), b.nbytes = b.count * wide_each;
        LKS_TRY(climb(&b, 0, group->size));
        lksi_conclude(lksi_at(call->out, b.first * each), b.partial, lksi_divisor(call->op, group->size), b.count,
                      call->type);
        b.first += b.count;
    } while (b.first < call->count);
    return LKS_OK;
}

lksi_cost lksi_all_reduce_butterfly_cost(int n_ranks, size_t nbytes) {
    bool is_power = (n_ranks & (n_ranks - 1)) == 0;
    double rounds = is_power ? lksi_log2(n_ranks) : n_ranks; /* a single last rank sends to all others */
    double n_pieces = (double)lksi_piece_count(nbytes, LKSI_PIECE_NBYTES);
    return (lksi_cost){rounds * n_pieces, rounds * (double)nbytes, (3 * rounds + 2) * (double)nbytes};
}
