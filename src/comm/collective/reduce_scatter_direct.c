/* reduce_scatter, direct: rank r reads block r of all inputs directly from the other ranks' memory and adds them in
 * canonical order.
 *
 *     1 KiB of accumulators in all: the lines of the first exchange carry them            steps: 1
 *
 *     symmetric inputs      block r of all inputs ─ reduce on rank r ─> its `out`         steps: 2
 *                                                              bytes per rank: N n read, N written
 *     ordinary buffers      each rank stages a piece of every block in a slot each, rank  steps: ceil(N n / S)
 *                           r reduces slot r of all     bytes per rank: N n written and read
 *
 * In reduce_scatterv, whose blocks have their own lengths, N is that of the longest block in the number of steps.
 *
 * Symmetric inputs are staged too if that is faster (collective.h, lksi_place_begin). Each pair of ranks
 * swaps its slots every two chunks (lksi_is_exchanged).
 *
 * Over messages: block j goes to rank j, which adds all inputs.
 *
 *     block j of every rank ──> rank j          steps: n - 1 per piece of W = 1 MiB / n of accumulators of every block
 *     messages: n - 1 per rank and piece (at least one), each of a block's piece: A (n - 1) bytes, A of a block
 */
#include "base/cache.h"
#include "comm/collective/collective.h"

/* A rank's block, in elements. An lksi_block_layout is in bytes; its divisions made small calls 5 to 15 % slower. */
typedef struct rank_block {
    size_t first, count;
} rank_block;

static rank_block block_of(const lksi_call *call, int rank) {
    if (call->counts == NULL) return (rank_block){(size_t)rank * call->count, call->count};
    rank_block found = {0, call->counts[rank]};
    for (int before = 0; before < rank; before++) found.first += call->counts[before];
    return found;
}

/* Bytes [begin, begin + nbytes) of the rank's block, as far as the block has them. */
static lksi_extent piece_of(const lksi_call *call, int rank, size_t begin, size_t nbytes) {
    size_t each = lksi_type_nbytes(call->type);
    rank_block whole = block_of(call, rank);
    size_t before = lksi_least(begin, whole.count * each);
    return (lksi_extent){whole.first * each + before, lksi_least(nbytes, whole.count * each - before)};
}

static lks_status on_symmetric(lks_group *group, const lksi_call *call, lksi_reduction *sum) {
    rank_block own = block_of(call, group->rank);
    size_t begin = own.first * lksi_type_nbytes(call->type);
    group->outputs[0] = call->out;
    for (int rank = 0; rank < group->size; rank++)
        group->inputs[rank] = lksi_place_address(group, lksi_post_of(group, rank)->place, rank) + begin;
    lksi_reduce_range(sum, 0, own.count);
    group->progress.done_nbytes = call->nbytes;
    return lksi_meet_having_read(group);
}

static size_t slot_nbytes(const lks_group *group) { return lksi_chunk_nbytes(group) / (size_t)group->size / 64 * 64; }

static unsigned char *slot_for(const lks_group *group, int source, int reader) {
    int owner = lksi_is_exchanged(group) ? reader : source, other = owner == source ? reader : source;
    return lksi_area(group, owner) + (size_t)lksi_rotate(group, other, -owner) * slot_nbytes(group);
}

/* A rank reads its own block in place if it is aligned. */
static lksi_chunk stage(lks_group *group, const lksi_call *call, size_t begin, size_t left_nbytes) {
    size_t nbytes = lksi_least(left_nbytes, slot_nbytes(group)), all_nbytes = nbytes * (size_t)group->size;
    lksi_trial *trial = &group->scatter_turns[all_nbytes > LKSI_TURN_MIDDLE_NBYTES];
    lksi_chunk staged = {begin, nbytes, lksi_turn_begin(group, trial, all_nbytes)};
    for (int rank = 0; rank < group->size; rank++) {
        if (rank == group->rank && lksi_is_aligned(call->in, call->type)) continue;
        lksi_extent piece = piece_of(call, rank, begin, nbytes);
        if (piece.nbytes > 0)
            lksi_turn_put(&staged.turn, slot_for(group, group->rank, rank), lksi_at(call->in, piece.begin),
                          piece.nbytes);
    }
    if (lksi_turn_is_past_caches(&staged.turn)) lksi_written_past_caches();
    return staged;
}

static lks_status take(lks_group *group, const lksi_call *call, const lksi_chunk *chunk, lksi_reduction *sum) {
    lksi_extent piece = piece_of(call, group->rank, chunk->begin, chunk->nbytes);
    if (piece.nbytes == 0) return LKS_OK;
    for (int rank = 0; rank < group->size; rank++) group->inputs[rank] = slot_for(group, rank, group->rank);
    if (lksi_is_aligned(call->in, call->type)) group->inputs[group->rank] = lksi_at(call->in, piece.begin);
    group->outputs[0] = lksi_at(call->out, chunk->begin);
    lksi_reduce_range(sum, 0, piece.nbytes / lksi_type_nbytes(call->type));
    return LKS_OK;
}

lks_status lksi_reduce_scatter_direct(lks_group *group, const lksi_call *call) {
    rank_block own = block_of(call, group->rank);
    size_t total = call->counts != NULL ? call->count : (size_t)group->size * call->count;
    if (lksi_is_small(total, call->type)) return lksi_reduce_small(group, call, total, own.first, own.count, call->out);
    size_t each = lksi_type_nbytes(call->type), longest_nbytes = lksi_longest_count(group, call) * each;
    lksi_agreement *place = lksi_place_begin(group, &group->scatter_places, longest_nbytes);
    lksi_rounds none = {0}; /* chunks are never wide here */
    lksi_memory_way way = {on_symmetric, stage, take, .nbytes = longest_nbytes, .rounds = &none, .agreement = place};
    if (lksi_is_in_place(place) && longest_nbytes > LKSI_ANNEX_NBYTES && lksi_is_aligned(call->in, call->type))
        way.place = lksi_place_of(group, call->in, total * each);
    LKS_TRY(lksi_reduce_by_memory(group, call, &way));
    lksi_place_end(place);
    return LKS_OK;
}

/* --- over messages --- */

/* The input of rank j is received at place j. */
lks_status lksi_reduce_blocks_direct(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                     void **own) {
    lks_type wide = lksi_accumulator_type(call->type);
    size_t wide_each = lksi_type_nbytes(wide), room = window->length * wide_each;
    size_t begin = lksi_window_begin(window, group->rank), count = lksi_window_count(window, group->rank);
    unsigned char *received, *sent;
    LKS_TRY(lksi_group_scratch(group, ((size_t)group->size + 1) * room, &received));
    sent = received + (size_t)group->size * room;
    for (int distance = 1; distance < group->size; distance++) {
        int to = lksi_rotate(group, group->rank, distance), from = lksi_rotate(group, group->rank, -distance);
        size_t n_sent = lksi_window_count(window, to);
        const void *block = lksi_contribution(call, lksi_window_begin(window, to), n_sent, sent);
        unsigned char *theirs = received + (size_t)from * room;
        group->inputs[from] = theirs;
        LKS_TRY(lksi_step_exchange(group, call, to, block, n_sent * wide_each, from, theirs, count * wide_each));
    }
    group->inputs[group->rank] = lksi_contribution(call, begin, count, received + (size_t)group->rank * room);
    void *sum = place != NULL ? place : sent;
    lksi_reduction reduction = {group->inputs, NULL, group->size, &sum, 1, wide, call->op, 1};
    lksi_reduce_range(&reduction, 0, count);
    *own = sum;
    return LKS_OK;
}

lks_status lksi_reduce_scatter_direct_remote(lks_group *group, const lksi_call *call) {
    return lksi_reduce_scatter_by(group, call, lksi_reduce_blocks_direct);
}

lksi_cost lksi_reduce_scatter_direct_cost(int n_ranks, size_t nbytes) {
    double n_windows = (double)lksi_piece_count(nbytes * (size_t)n_ranks, LKSI_WINDOW_NBYTES);
    return (lksi_cost){(n_ranks - 1) * n_windows, (double)(n_ranks - 1) * (double)nbytes,
                       (double)(n_ranks + 3) * (double)nbytes};
}
