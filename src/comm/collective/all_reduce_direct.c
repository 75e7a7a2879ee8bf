/* all_reduce, direct: every rank reads the inputs directly from the other ranks' memory and adds them in canonical
 * order.
 *
 *     up to 1 KiB of accumulators: the lines of the first exchange carry them             steps: 1
 *
 *     up to 4 KiB if ranks share CPUs              staging areas        steps: 1
 *       rank 0 ─ copy ─> [0] ─┬─ reduce all ─> rank 0                   bytes per rank: N written, n N read
 *       rank 1 ─ copy ─> [1] ─┴─ reduce all ─> rank 1
 *
 *     larger, ordinary buffers                                          steps: 2 per chunk of S or a wide one
 *       copy all but slice r ─> [r], reduce slice r of `in` and of      bytes of areas per rank:
 *       every [j] into slice r of `out` and of every [j], copy the      2 N (1 - 1/n) written and read
 *       others' slices from [r]
 *
 *     from 512 bytes on (1 KiB if ranks share CPUs), symmetric          steps: 2
 *       buffers on all ranks: no staging                                  bytes per rank: N read,
 *       slice r of every `in` ─ reduce on rank r ─> slice r of every `out`     N written
 *
 * The choice depends only on values that are the same on all ranks: the size, the places in the exchanged lines,
 * whether every rank has its own CPU, and rank 0's word on what is faster. Symmetric buffers are staged too if that is
 * faster.
 *
 * Over messages: slice j goes to rank j, which adds all inputs in canonical order and sends the result to the others.
 *
 *     slice j of every rank ──> rank j ──> slice j of every rank        steps: 2 (n - 1) per window of 1 MiB of
 *                                                                       accumulators
 *     messages: 2 (n - 1) per rank and window (at least one), (A + N) (n - 1) / n bytes
 */
#include "base/cache.h"
#include "comm/collective/collective.h"

enum {
    /* From this size on, reading in place costs less than the annexes, although ranks meet twice: the input need not be
     * written to the annex, and the others' inputs need not be fetched from there. This does not hold if ranks share a
     * CPU, because every meeting then takes a context switch. */
    IN_PLACE_NBYTES = LKSI_IN_PLACE_NBYTES,
    /* If ranks share a CPU, up to this size it costs less to reduce everything on every rank than to meet a second
     * time. If they do not, slices are faster already. */
    REDUCE_ALL_NBYTES = 4 * 1024,
    SMALL_TURN_NBYTES = 8 * 1024
};

static lks_status alone(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_offer_collect(group, call, &(lksi_offer){.scale = call->scale}, 0));
    group->inputs[0] = call->in, group->outputs[0] = call->out;
    lksi_reduction sum = lksi_offered_reduction(group, call);
    lksi_reduce_range(&sum, 0, call->count);
    return LKS_OK;
}

/* Slices begin at multiples of a line, so that no two ranks write to the same line. */
static void slice(const lks_group *group, size_t count, size_t each, int rank, size_t *first, size_t *n) {
    size_t per_line = LKSI_LINE_NBYTES / each, n_ranks = (size_t)group->size;
    size_t share = ((count + n_ranks - 1) / n_ranks + per_line - 1) / per_line * per_line;
    *first = share * (size_t)rank < count ? share * (size_t)rank : count;
    *n = count - *first < share ? count - *first : share;
}

/* --- symmetric buffers --- */

/* Uses both buffers of every rank. A rank publishes both places or none. */
static lks_status on_symmetric(lks_group *group, const lksi_call *call, lksi_reduction *sum) {
    size_t first, count;
    for (int rank = 0; rank < group->size; rank++) {
        group->inputs[rank] = lksi_place_address(group, lksi_post_of(group, rank)->place, rank);
        group->outputs[rank] = lksi_place_address(group, lksi_offer_of(group, rank).out_place, rank);
    }
    sum->n_outputs = group->size;
    slice(group, call->count, lksi_type_nbytes(call->type), group->rank, &first, &count);
    lksi_reduce_range(sum, first, count);
    group->progress.done_nbytes = call->nbytes / (size_t)group->size;
    return lksi_meet_having_read(group);
}

/* --- staged --- */

/* False: every rank reduces all elements. True: every rank reduces its slice for all ranks. */
static bool is_sliced(const lks_group *group, const lksi_call *call) {
    return lksi_has_each_a_cpu(group) || call->nbytes > REDUCE_ALL_NBYTES;
}

static lksi_turn begin_turn(lks_group *group, size_t nbytes) {
    int size = (nbytes > SMALL_TURN_NBYTES) + (nbytes > LKSI_TURN_MIDDLE_NBYTES) + (nbytes > lksi_chunk_nbytes(group));
    return lksi_turn_begin(group, &group->turns[size], nbytes);
}

/* Stages what the other ranks will read. A rank reads its own slice in place if the buffer is aligned. */
static lksi_chunk stage(lks_group *group, const lksi_call *call, size_t at, size_t left_nbytes) {
    size_t nbytes = lksi_chunk_begin(group, &group->all_reduce_rounds, left_nbytes);
    size_t each = lksi_type_nbytes(call->type), count = nbytes / each, begin = count, n = 0;
    lksi_chunk staged = {at, nbytes, begin_turn(group, nbytes)};
    const unsigned char *in = (const unsigned char *)call->in + at;
    unsigned char *area = lksi_area(group, group->rank);
    if (is_sliced(group, call) && lksi_is_aligned(call->in, call->type))
        slice(group, count, each, group->rank, &begin, &n);
    lksi_turn_put(&staged.turn, area, in, begin * each);
    lksi_turn_put(&staged.turn, area + (begin + n) * each, in + (begin + n) * each, (count - begin - n) * each);
    if (lksi_turn_is_past_caches(&staged.turn)) lksi_written_past_caches();
    return staged;
}

/* Writes slice r of the sum to where its inputs were read: every other rank's area, and this rank's `out` if that is
 * aligned. So a line of an area moves to this core once for both reading and writing. It moves back when its owner
 * reads it, who then holds it for the next write. Writing a line that another core still holds takes several times as
 * long. */
static void reduce_slice(const lks_group *group, const lksi_reduction *sum, size_t begin, size_t n, size_t each,
                         const lksi_turn *t) {
    if (!lksi_turn_is_past_caches(t)) {
        lksi_reduce_range(sum, begin, n);
        return;
    }
    lksi_reduction own = *sum;
    own.outputs = &sum->outputs[group->rank], own.n_outputs = 1;
    lksi_reduce_range(&own, begin, n);
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank)
            lksi_write_past_caches(lksi_at(sum->outputs[rank], begin * each), lksi_at(own.outputs[0], begin * each),
                                   n * each);
    lksi_written_past_caches();
}

/* At the call all areas hold inputs. Afterwards each holds the sum. */
static lks_status reduce_in_slices(lks_group *group, const lksi_call *call, const lksi_chunk *chunk,
                                   lksi_reduction *sum) {
    size_t each = lksi_type_nbytes(call->type), count = chunk->nbytes / each, begin, n;
    unsigned char *out = (unsigned char *)call->out + chunk->begin, *area = lksi_area(group, group->rank);
    for (int rank = 0; rank < group->size; rank++) group->outputs[rank] = lksi_area(group, rank);
    if (lksi_is_aligned(call->in, call->type))
        group->inputs[group->rank] = (const unsigned char *)call->in + chunk->begin;
    if (lksi_is_aligned(out, call->type)) group->outputs[group->rank] = out;
    sum->n_outputs = group->size;
    slice(group, count, each, group->rank, &begin, &n);
    reduce_slice(group, sum, begin, n, each, &chunk->turn);
    LKS_TRY(lksi_meet(group));
    if (group->outputs[group->rank] == area) begin = count, n = 0;
    lksi_copy(out, area, begin * each);
    lksi_copy(out + (begin + n) * each, area + (begin + n) * each, (count - begin - n) * each);
    return LKS_OK;
}

static lks_status take(lks_group *group, const lksi_call *call, const lksi_chunk *chunk, lksi_reduction *sum) {
    for (int rank = 0; rank < group->size; rank++) group->inputs[rank] = lksi_area(group, rank);
    if (is_sliced(group, call)) return reduce_in_slices(group, call, chunk, sum);
    group->outputs[0] = (unsigned char *)call->out + chunk->begin;
    lksi_reduce_range(sum, 0, chunk->nbytes / lksi_type_nbytes(call->type));
    return LKS_OK;
}

/* A buffer that is not aligned to its type is staged, because the loops need alignment and memcpy does not. */
static uint64_t usable_place(const lks_group *group, const lksi_call *call, const void *data) {
    if (!lksi_is_aligned(data, call->type)) return 0;
    return lksi_place_of(group, data, call->nbytes);
}

/* Through the annexes, unless all buffers are symmetric. */
static lks_status small(lks_group *group, const lksi_call *call, const lksi_memory_way *way) {
    lksi_offer mine = {.scale = call->scale,
                       .held = lksi_held(group),
                       .out_place = way->out_place,
                       .is_in_place_better = lksi_place_word(way->agreement)};
    lksi_shown_put(group, call, call->count);
    lksi_offer_put(group, &mine);
    LKS_TRY(lksi_post_small_and_collect(group, call, way->place));
    lksi_place_hear(way->agreement, lksi_offer_of(group, 0).is_in_place_better);
    if (lksi_are_all_symmetric(group)) {
        lksi_reduction sum = lksi_offered_reduction(group, call);
        return on_symmetric(group, call, &sum);
    }
    lksi_shown_reduce(group, call, call->count, 0, call->count, call->out);
    return LKS_OK;
}

lks_status lksi_all_reduce_direct(lks_group *group, const lksi_call *call) {
    if (group->size == 1 && lksi_is_aligned(call->in, call->type) && lksi_is_aligned(call->out, call->type))
        return alone(group, call);
    bool is_small = lksi_is_small(call->count, call->type);
    if (is_small && (call->nbytes < IN_PLACE_NBYTES || !lksi_has_each_a_cpu(group)))
        return lksi_reduce_small(group, call, call->count, 0, call->count, call->out);
    lksi_agreement *place = lksi_place_begin(group, &group->all_reduce_places, call->nbytes);
    lksi_memory_way way = {on_symmetric,      stage, take, .nbytes = call->nbytes, .rounds = &group->all_reduce_rounds,
                           .agreement = place};
    if (lksi_is_in_place(place)) {
        way.place = usable_place(group, call, call->in);
        way.out_place = usable_place(group, call, call->out);
        if (way.place == 0 || way.out_place == 0) way.place = way.out_place = 0;
    }
    LKS_TRY((is_small ? small : lksi_reduce_by_memory)(group, call, &way));
    lksi_place_end(place);
    return LKS_OK;
}

lks_status lksi_all_reduce_direct_remote(lks_group *group, const lksi_call *call) {
    return lksi_all_reduce_by(group, call, lksi_reduce_blocks_direct, lksi_gather_blocks_direct);
}

lksi_cost lksi_all_reduce_direct_cost(int n_ranks, size_t nbytes) {
    double n_windows = (double)lksi_piece_count(nbytes, LKSI_WINDOW_NBYTES);
    return (lksi_cost){2 * (n_ranks - 1) * n_windows, 2.0 * (n_ranks - 1) / n_ranks * (double)nbytes,
                       (1 + 3.0 / n_ranks) * (double)nbytes};
}
