/* What the direct algorithms share: addresses of other ranks' buffers, small reductions, and turns of staging. */
#include "base/cache.h"
#include "comm/collective/collective.h"

#include <string.h>

enum { TRIAL_PERIOD = 4096 }; /* calls, chunks or rounds of chunks between two choices */

uint64_t lksi_held(const lks_group *group) {
    uint64_t held = 0;
    for (size_t i = 0; i < group->n_allocations; i++) held += lksi_mix(LKSI_HASH_START, group->allocations[i].id);
    return held;
}

lksi_offer lksi_offer_of(const lks_group *group, int rank) {
    lksi_offer heard;
    memcpy(&heard, lksi_post_of(group, rank)->payload, sizeof heard);
    return heard;
}

static bool is_some_symmetric(const lks_group *group) {
    for (int rank = 0; rank < group->size; rank++)
        if (lksi_post_of(group, rank)->place != 0) return true;
    return false;
}

bool lksi_are_all_symmetric(const lks_group *group) {
    uint64_t held = lksi_offer_of(group, 0).held;
    for (int rank = 0; rank < group->size; rank++)
        if (lksi_post_of(group, rank)->place == 0 || lksi_offer_of(group, rank).held != held) return false;
    return true;
}

lksi_reduction lksi_offered_reduction(lks_group *group, const lksi_call *call) {
    for (int rank = 0; rank < group->size; rank++) group->scales[rank] = lksi_offer_of(group, rank).scale;
    return (lksi_reduction){.inputs = group->inputs,
                            .scales = group->scales,
                            .n_inputs = group->size,
                            .outputs = group->outputs,
                            .n_outputs = 1,
                            .type = call->type,
                            .op = call->op,
                            .divisor = lksi_divisor(call->op, group->size)};
}

static size_t shown_nbytes(const lksi_call *call, size_t total) {
    return total * lksi_type_nbytes(lksi_accumulator_type(call->type));
}

void lksi_shown_put(lks_group *group, const lksi_call *call, size_t total) {
    size_t nbytes = shown_nbytes(call, total);
    lksi_contribute(group->own_shown, call->in, call->scale, total, call->type);
    memcpy(lksi_shown_next(group, nbytes), group->own_shown, nbytes);
}

void lksi_shown_reduce(lks_group *group, const lksi_call *call, size_t total, size_t first, size_t count, void *out) {
    size_t nbytes = shown_nbytes(call, total), each = lksi_type_nbytes(lksi_accumulator_type(call->type));
    lksi_shown_take_over(group, (lksi_shown){nbytes, first * each, (first + count) * each});
    for (int rank = 0; rank < group->size; rank++)
        group->inputs[rank] = rank == group->rank ? group->own_shown : lksi_shown_by(group, rank, nbytes);
    lksi_reduce_contributions(out, group->inputs, group->size, first, count, call->type, call->op,
                              lksi_divisor(call->op, group->size));
}

lks_status lksi_reduce_small(lks_group *group, const lksi_call *call, size_t total, size_t first, size_t count,
                             void *out) {
    size_t each = lksi_type_nbytes(lksi_accumulator_type(call->type));
    lksi_shown_put(group, call, total);
    if (count == 0 && call->operation->is_rooted) return lksi_post_and_run_ahead(group, call, total * each);
    LKS_TRY(lksi_post_wait_and_collect(group, call, (lksi_shown){total * each, first * each, (first + count) * each}));
    lksi_shown_reduce(group, call, total, first, count, out);
    return LKS_OK;
}

lksi_turn lksi_turn_begin(const lks_group *group, lksi_trial *trial, size_t nbytes) {
    if (nbytes <= LKSI_ANNEX_NBYTES || !lksi_can_pass_caches()) return (lksi_turn){0};
    lksi_turn turn = {.trial = trial};
    if (group->is_place_tried)
        lksi_trial_rest(trial);
    else
        lksi_trial_begin(trial, TRIAL_PERIOD);
    if (trial->is_timed) turn.began_ns = lksi_now_ns();
    return turn;
}

void lksi_turn_end(const lksi_turn *turn) {
    lksi_trial *trial = turn->trial;
    if (trial != NULL && trial->is_timed) lksi_trial_end(trial, lksi_now_ns() - turn->began_ns);
}

bool lksi_turn_is_past_caches(const lksi_turn *turn) { return turn->trial != NULL && turn->trial->is_second; }

void lksi_turn_put(const lksi_turn *turn, void *to, const void *from, size_t nbytes) {
    (lksi_turn_is_past_caches(turn) ? lksi_write_past_caches : lksi_copy)(to, from, nbytes);
}

static void begin_agreement(lksi_agreement *agreement) {
    lksi_call_trial_begin(&agreement->trial, TRIAL_PERIOD);
    agreement->is_second =
        agreement->trial.turn.is_tried ? agreement->trial.turn.is_second : agreement->is_second_known;
}

static void rest_agreement(lksi_agreement *agreement) {
    lksi_trial_rest(&agreement->trial.turn);
    agreement->is_second = agreement->is_second_known;
}

/* The first calls only find out whether chunks go through the caches or past them (turns). That trial is suspended
 * later while the place is tried, so that reading in place is compared with the better of the two. The put-off is the
 * number of calls in which both ways of the first trial have had their chunks. */
lksi_agreement *lksi_place_begin(lks_group *group, lksi_places *places, size_t nbytes) {
    size_t size = nbytes / LKSI_IN_PLACE_NBYTES;
    group->is_place_tried = false;
    if (!lksi_has_each_a_cpu(group) || group->size == 1 || size == 0 || size >= (size_t)1 << LKSI_PLACE_SIZES)
        return NULL;
    lksi_agreement *place = &places->by_size[lksi_log2((int)size + 1) - 1];
    if (!place->is_begun) {
        int n_chunks = (int)lksi_piece_count(nbytes, lksi_chunk_nbytes(group));
        lksi_call_trial_put_off(&place->trial, 1 + 2 * LKSI_TRIAL_EACH / n_chunks);
        place->is_begun = true;
    }
    begin_agreement(place);
    group->is_place_tried = place->trial.turn.is_tried;
    return place;
}

void lksi_place_end(lksi_agreement *place) {
    if (place != NULL) lksi_call_trial_end(&place->trial);
}

/* A round is one wide chunk, or as many chunks of S as make up a wide one. Trials are timed per round. */
size_t lksi_chunk_begin(const lks_group *group, lksi_rounds *rounds, size_t left_nbytes) {
    size_t chunk = lksi_chunk_nbytes(group), wide = group->control->wide_chunk_nbytes;
    if (rounds->left == 0 && wide > chunk && left_nbytes >= wide) {
        if (group->is_place_tried)
            rest_agreement(&rounds->wide);
        else
            begin_agreement(&rounds->wide);
        rounds->left = wide;
    }
    return lksi_least(left_nbytes, rounds->left > 0 && rounds->wide.is_second ? wide : chunk);
}

static void end_chunk(lks_group *group, lksi_rounds *rounds, const lksi_chunk *chunk) {
    lksi_turn_end(&chunk->turn);
    group->n_stagings++;
    group->progress.done_nbytes = chunk->begin + chunk->nbytes;
    if (rounds->left == 0) return;
    rounds->left -= chunk->nbytes;
    if (rounds->left == 0) lksi_call_trial_end(&rounds->wide.trial);
}

/* `chunk`, the first chunk, is staged already. An area is written again two chunks later. By then all ranks have met
 * since they read it. */
static lks_status staged(lks_group *group, const lksi_call *call, const lksi_memory_way *way, lksi_chunk chunk,
                         lksi_reduction *sum) {
    bool is_wide_better = lksi_offer_of(group, 0).is_wide_better != 0;
    for (;;) {
        LKS_TRY(way->take(group, call, &chunk, sum));
        end_chunk(group, way->rounds, &chunk);
        size_t end = chunk.begin + chunk.nbytes;
        if (end == way->nbytes) break;
        chunk = way->stage(group, call, end, way->nbytes - end);
        LKS_TRY(lksi_meet(group));
    }
    way->rounds->wide.is_second_known = is_wide_better;
    return LKS_OK;
}

lks_status lksi_reduce_by_memory(lks_group *group, const lksi_call *call, const lksi_memory_way *way) {
    lksi_offer mine = {.scale = call->scale,
                       .held = lksi_held(group),
                       .out_place = way->out_place,
                       .is_wide_better = way->rounds->wide.trial.turn.is_second_better,
                       .is_in_place_better = lksi_place_word(way->agreement)};
    lksi_chunk chunk = {0};
    if (way->place == 0) chunk = way->stage(group, call, 0, way->nbytes);
    LKS_TRY(lksi_offer_collect(group, call, &mine, way->place));
    lksi_place_hear(way->agreement, lksi_offer_of(group, 0).is_in_place_better);
    lksi_reduction sum = lksi_offered_reduction(group, call);
    if (lksi_are_all_symmetric(group)) return way->in_place(group, call, &sum);
    if (is_some_symmetric(group)) {
        if (way->place != 0) chunk = way->stage(group, call, 0, way->nbytes);
        LKS_TRY(lksi_meet(group));
    }
    return staged(group, call, way, chunk, &sum);
}
