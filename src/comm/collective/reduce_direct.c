/* reduce, direct: the root reads the inputs directly from the other ranks' memory and adds them in canonical order.
 *
 *     up to 1 KiB of accumulators: the lines of the first exchange carry them             steps: 1
 *
 *     ordinary buffers      each rank stages a chunk (S or wide), the root reduces         steps: 1 per chunk
 *                           all while the next chunk comes
 *     symmetric inputs      the root reduces them in place                                 steps: 2
 *     symmetric result too  slice r of all inputs ─ reduce on rank r ─> slice r of the     steps: 2
 *                           root's result                            bytes per rank: N read, N / n written
 *
 * Symmetric data is staged too if that is faster (collective.h, lksi_place_begin).
 *
 * Over messages: slice j goes to rank j, which adds all inputs and sends the result to the root.
 *
 *     slice j of every rank ──> rank j ──> root          steps: 2 (n - 1) per window of 1 MiB of accumulators
 *     messages: n - 1 per rank and window (at least one), A (n - 1) / n bytes; 1 more of N / n from each to the root
 */
#include "base/cache.h"
#include "comm/collective/collective.h"

static lks_status on_symmetric(lks_group *group, const lksi_call *call, lksi_reduction *sum) {
    uint64_t out_place = lksi_offer_of(group, call->root).out_place;
    group->outputs[0] = out_place != 0 ? lksi_place_address(group, out_place, call->root) : call->out;
    for (int rank = 0; rank < group->size; rank++)
        group->inputs[rank] = lksi_place_address(group, lksi_post_of(group, rank)->place, rank);
    if (out_place != 0) {
        size_t each = lksi_type_nbytes(call->type);
        lksi_block_layout slices = lksi_block_layout_slices(call->nbytes, group->size);
        lksi_extent mine = lksi_blocks(&slices, group->rank, 1);
        lksi_reduce_range(sum, mine.begin / each, mine.nbytes / each);
    } else if (group->rank == call->root) {
        lksi_reduce_range(sum, 0, call->count);
    }
    group->progress.done_nbytes = call->nbytes;
    return lksi_meet_having_read(group);
}

static unsigned char *slot_of(const lks_group *group, const lksi_call *call, int rank) {
    return lksi_area(group, rank) + lksi_place_in_slot(group, lksi_chunk_nbytes(group), call->nbytes);
}

/* The root reads its own input in place if it is aligned. The other ranks meet the root in every chunk, so they see
 * what their way costs the root. */
static lksi_chunk stage(lks_group *group, const lksi_call *call, size_t begin, size_t left_nbytes) {
    size_t nbytes = lksi_chunk_begin(group, &group->reduce_rounds, left_nbytes);
    bool is_wide = nbytes > lksi_chunk_nbytes(group);
    lksi_chunk staged = {begin, nbytes, lksi_turn_begin(group, &group->reduce_turns[is_wide], nbytes)};
    if (group->rank == call->root && lksi_is_aligned(call->in, call->type)) return staged;
    lksi_turn_put(&staged.turn, slot_of(group, call, group->rank), lksi_at(call->in, begin), nbytes);
    if (lksi_turn_is_past_caches(&staged.turn)) lksi_written_past_caches();
    return staged;
}

static lks_status take(lks_group *group, const lksi_call *call, const lksi_chunk *chunk, lksi_reduction *sum) {
    if (group->rank != call->root) return LKS_OK;
    for (int rank = 0; rank < group->size; rank++) group->inputs[rank] = slot_of(group, call, rank);
    if (lksi_is_aligned(call->in, call->type)) group->inputs[group->rank] = lksi_at(call->in, chunk->begin);
    group->outputs[0] = lksi_at(call->out, chunk->begin);
    lksi_reduce_range(sum, 0, chunk->nbytes / lksi_type_nbytes(call->type));
    return LKS_OK;
}

lks_status lksi_reduce_direct(lks_group *group, const lksi_call *call) {
    if (lksi_is_small(call->count, call->type))
        return lksi_reduce_small(group, call, call->count, 0, group->rank == call->root ? call->count : 0, call->out);
    lksi_agreement *place = lksi_place_begin(group, &group->reduce_places, call->nbytes);
    lksi_memory_way way = {on_symmetric,      stage, take, .nbytes = call->nbytes, .rounds = &group->reduce_rounds,
                           .agreement = place};
    if (lksi_is_in_place(place) && call->nbytes > LKSI_ANNEX_NBYTES && lksi_is_aligned(call->in, call->type)) {
        way.place = lksi_place_of(group, call->in, call->nbytes);
        if (group->rank == call->root) way.out_place = lksi_place_of(group, call->out, call->nbytes);
    }
    LKS_TRY(lksi_reduce_by_memory(group, call, &way));
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
