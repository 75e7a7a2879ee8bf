/* reduce, direct: the root reads all inputs where they lie and adds them in canonical order.
 *
 *     up to 1 KiB of accumulators: the lines of the first exchange carry them             steps: 1
 *
 *     ordinary buffers      each rank stages a chunk (S or wide), the root reduces         steps: 1 per chunk
 *                           all while the next chunk comes
 *     symmetric inputs      the root reduces from where they lie                           steps: 2
 *     symmetric result too  slice r of all inputs ─ reduce on rank r ─> slice r of the     steps: 2
 *                           root's result                            bytes per rank: N read, N / n written
 *
 * Where that is quicker, symmetric data is staged, too (collective.h, lksi_place_begin).
 *
 * Over messages: slice j goes to rank j, which adds all inputs and sends the result to the root.
 *
 *     slice j of every rank ──> rank j ──> root          steps: 2 (n - 1) per window of 1 MiB of accumulators
 *     messages: n - 1 per rank and window (at least one), A (n - 1) / n bytes; 1 more of N / n from each to the root
 */
#include "base/cache.h"
#include "comm/collective/collective.h"

static lks_status on_symmetric(lks_group *group, const lksi_call *call) {
    uint64_t out_place = lksi_offer_of(group, call->root).out_place;
    void *out = out_place != 0 ? lksi_place_address(group, out_place, call->root) : call->out;
    lksi_reduction sum = lksi_offered_reduction(group, call, &out, 1);
    for (int rank = 0; rank < group->size; rank++)
        group->inputs[rank] = lksi_place_address(group, lksi_post_of(group, rank)->place, rank);
    if (out_place != 0) {
        size_t each = lksi_type_nbytes(call->type);
        lksi_block_layout slices = lksi_block_layout_slices(call->nbytes, group->size);
        lksi_extent mine = lksi_blocks(&slices, group->rank, 1);
        lksi_reduce_range(&sum, mine.begin / each, mine.nbytes / each);
    } else if (group->rank == call->root) {
        lksi_reduce_range(&sum, 0, call->count);
    }
    group->progress.done_nbytes = call->nbytes;
    return lksi_meet_having_read(group);
}

typedef struct chunk {
    size_t begin, nbytes;
    lksi_turn turn; /* whoever gives meets the root in each, so that it sees what its way costs the root */
} chunk;

static unsigned char *slot_of(const lks_group *group, const lksi_call *call, int rank) {
    return lksi_area(group, rank) + lksi_place_in_slot(group, lksi_chunk_nbytes(group), call->nbytes);
}

/* The root reads its own input where it lies, if the loops can. */
static chunk stage(lks_group *group, const lksi_call *call, size_t begin) {
    size_t nbytes = lksi_chunk_begin(group, &group->reduce_rounds, call->nbytes - begin);
    bool is_wide = nbytes > lksi_chunk_nbytes(group);
    chunk staged = {begin, nbytes, lksi_turn_begin(group, &group->reduce_turns[is_wide], nbytes)};
    if (group->rank == call->root && lksi_is_aligned(call->in, call->type)) return staged;
    lksi_turn_put(&staged.turn, slot_of(group, call, group->rank), lksi_at(call->in, begin), nbytes);
    if (lksi_turn_is_past_caches(&staged.turn)) lksi_written_past_caches();
    return staged;
}

/* The first chunk is staged already. */
static lks_status staged(lks_group *group, const lksi_call *call, chunk c) {
    void *out;
    lksi_reduction sum = lksi_offered_reduction(group, call, &out, 1);
    bool is_wide_better = lksi_offer_of(group, 0).is_wide_better != 0;
    for (;;) {
        if (group->rank == call->root) {
            for (int rank = 0; rank < group->size; rank++) group->inputs[rank] = slot_of(group, call, rank);
            if (lksi_is_aligned(call->in, call->type)) group->inputs[group->rank] = lksi_at(call->in, c.begin);
            out = lksi_at(call->out, c.begin);
            lksi_reduce_range(&sum, 0, c.nbytes / lksi_type_nbytes(call->type));
        }
        lksi_turn_end(&c.turn);
        lksi_chunk_end(group, &group->reduce_rounds, c.nbytes);
        group->progress.done_nbytes = c.begin + c.nbytes;
        if (c.begin + c.nbytes == call->nbytes) break;
        c = stage(group, call, c.begin + c.nbytes);
        LKS_TRY(lksi_meet(group));
    }
    group->reduce_rounds.wide.is_second_known = is_wide_better;
    return LKS_OK;
}

static lks_status by_memory(lks_group *group, const lksi_call *call, lksi_agreement *place_of_call) {
    lksi_offer mine = {.scale = call->scale,
                       .held = lksi_held(group),
                       .is_wide_better = group->reduce_rounds.wide.trial.turn.is_second_better,
                       .is_in_place_better = lksi_place_word(place_of_call)};
    uint64_t place = 0;
    if (lksi_is_in_place(place_of_call) && call->nbytes > LKSI_ANNEX_NBYTES && lksi_is_aligned(call->in, call->type)) {
        place = lksi_place_of(group, call->in, call->nbytes);
        if (group->rank == call->root) mine.out_place = lksi_place_of(group, call->out, call->nbytes);
    }
    chunk c = {0};
    if (place == 0) c = stage(group, call, 0);
    LKS_TRY(lksi_offer_collect(group, call, &mine, place));
    lksi_place_hear(place_of_call, lksi_offer_of(group, 0).is_in_place_better);
    if (lksi_are_all_symmetric(group)) return on_symmetric(group, call);
    if (lksi_is_some_symmetric(group)) {
        if (place != 0) c = stage(group, call, 0);
        LKS_TRY(lksi_meet(group));
    }
    return staged(group, call, c);
}

lks_status lksi_reduce_direct(lks_group *group, const lksi_call *call) {
    if (lksi_is_small(call->count, call->type))
        return lksi_reduce_small(group, call, call->count, 0, group->rank == call->root ? call->count : 0, call->out);
    lksi_agreement *place = lksi_place_begin(group, &group->reduce_places, call->nbytes);
    LKS_TRY(by_memory(group, call, place));
    lksi_place_end(place);
    return LKS_OK;
}

lks_status lksi_reduce_direct_remote(lks_group *group, const lksi_call *call) {
    return lksi_reduce_by(group, call, lksi_reduce_blocks_direct);
}

lksi_cost lksi_reduce_direct_cost(int n_ranks, size_t nbytes) {
    double n_windows = (double)lksi_piece_count(nbytes, LKSI_WINDOW_NBYTES);
    return (lksi_cost){2 * (n_ranks - 1) * n_windows, 2.0 * (n_ranks - 1) / n_ranks * (double)nbytes,
                       (1 + 3.0 / n_ranks) * (double)nbytes};
}
