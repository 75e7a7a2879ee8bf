/* reduce_scatter, direct: rank r reads block r of all inputs where they lie and adds them in canonical order.
 *
 *     1 KiB of accumulators in all: the lines of the first exchange carry them            steps: 1
 *
 *     symmetric inputs      block r of all inputs ─ reduce on rank r ─> its `out`         steps: 2
 *                                                              bytes per rank: N n read, N written
 *     ordinary buffers      each rank stages a piece of every block in a slot each, rank  steps: ceil(N n / S)
 *                           r reduces slot r of all     bytes per rank: N n written and read
 *
 * Where that is quicker, symmetric inputs are staged, too. What two ranks stage for each other changes places
 * (collective.h, lksi_place_begin, lksi_is_exchanged).
 *
 * Over messages: block j goes to rank j, which adds all inputs.
 *
 *     block j of every rank ──> rank j          steps: n - 1 per piece of W = 1 MiB / n of accumulators of every block
 *     messages: n - 1 per rank and piece (at least one), each of a block's piece: A (n - 1) bytes, A of a block
 */
#include "base/cache.h"
#include "comm/collective/collective.h"

static lks_status on_symmetric(lks_group *group, const lksi_call *call) {
    void *out = call->out;
    size_t block = (size_t)group->rank * call->nbytes;
    lksi_reduction sum = lksi_offered_reduction(group, call, &out, 1);
    for (int rank = 0; rank < group->size; rank++)
        group->inputs[rank] = lksi_place_address(group, lksi_post_of(group, rank)->place, rank) + block;
    lksi_reduce_range(&sum, 0, call->count);
    group->progress.done_nbytes = call->nbytes;
    return lksi_meet_having_read(group);
}

static size_t slot_nbytes(const lks_group *group) { return lksi_chunk_nbytes(group) / (size_t)group->size / 64 * 64; }

static unsigned char *slot_for(const lks_group *group, int source, int reader) {
    int owner = lksi_is_exchanged(group) ? reader : source, other = owner == source ? reader : source;
    return lksi_area(group, owner) + (size_t)lksi_rotate(group, other, -owner) * slot_nbytes(group);
}

static lksi_turn begin_turn(lks_group *group, const lksi_call *call, size_t begin) {
    size_t nbytes = lksi_least(call->nbytes - begin, slot_nbytes(group)) * (size_t)group->size;
    return lksi_turn_begin(group, &group->scatter_turns[nbytes > LKSI_TURN_MIDDLE_NBYTES], nbytes);
}

/* A rank reads its own block where it lies, if the loops can. */
static lksi_turn stage(lks_group *group, const lksi_call *call, size_t begin) {
    lksi_turn turn = begin_turn(group, call, begin);
    size_t nbytes = lksi_least(call->nbytes - begin, slot_nbytes(group));
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank || !lksi_is_aligned(call->in, call->type))
            lksi_turn_put(&turn, slot_for(group, group->rank, rank),
                          lksi_at(call->in, (size_t)rank * call->nbytes + begin), nbytes);
    if (lksi_turn_is_past_caches(&turn)) lksi_written_past_caches();
    return turn;
}

/* The first piece is staged already, and `turn` its turn. */
static lks_status staged(lks_group *group, const lksi_call *call, lksi_turn turn) {
    size_t each = lksi_type_nbytes(call->type), slot = slot_nbytes(group);
    void *out;
    lksi_reduction sum = lksi_offered_reduction(group, call, &out, 1);
    for (size_t begin = 0; begin < call->nbytes; begin += slot) {
        if (begin > 0) {
            turn = stage(group, call, begin);
            LKS_TRY(lksi_meet(group));
        }
        for (int rank = 0; rank < group->size; rank++) group->inputs[rank] = slot_for(group, rank, group->rank);
        if (lksi_is_aligned(call->in, call->type))
            group->inputs[group->rank] = lksi_at(call->in, (size_t)group->rank * call->nbytes + begin);
        out = lksi_at(call->out, begin);
        size_t nbytes = lksi_least(call->nbytes - begin, slot);
        lksi_reduce_range(&sum, 0, nbytes / each);
        lksi_turn_end(&turn);
        group->n_stagings++;
        group->progress.done_nbytes = begin + nbytes;
    }
    return LKS_OK;
}

static lks_status by_memory(lks_group *group, const lksi_call *call, lksi_agreement *place_of_call) {
    size_t n = (size_t)group->size;
    lksi_offer mine = {
        .scale = call->scale, .held = lksi_held(group), .is_in_place_better = lksi_place_word(place_of_call)};
    bool may_be_symmetric = lksi_is_in_place(place_of_call) && call->nbytes > LKSI_ANNEX_NBYTES;
    uint64_t place = 0;
    if (may_be_symmetric && lksi_is_aligned(call->in, call->type))
        place = lksi_place_of(group, call->in, n * call->nbytes);
    lksi_turn turn = {0};
    if (place == 0) turn = stage(group, call, 0);
    LKS_TRY(lksi_offer_collect(group, call, &mine, place));
    lksi_place_hear(place_of_call, lksi_offer_of(group, 0).is_in_place_better);
    if (lksi_are_all_symmetric(group)) return on_symmetric(group, call);
    if (lksi_is_some_symmetric(group)) {
        if (place != 0) turn = stage(group, call, 0);
        LKS_TRY(lksi_meet(group));
    }
    return staged(group, call, turn);
}

lks_status lksi_reduce_scatter_direct(lks_group *group, const lksi_call *call) {
    size_t n = (size_t)group->size;
    if (lksi_is_small(n * call->count, call->type))
        return lksi_reduce_small(group, call, n * call->count, (size_t)group->rank * call->count, call->count,
                                 call->out);
    lksi_agreement *place = lksi_place_begin(group, &group->scatter_places, call->nbytes);
    LKS_TRY(by_memory(group, call, place));
    lksi_place_end(place);
    return LKS_OK;
}

/* --- over messages --- */

/* Rank j's input in place j of the received blocks. */
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
