/* all_reduce, direct: every rank reads all inputs where they lie and adds them in canonical order.
 *
 *     up to 40 bytes of accumulators: the lines of the first exchange carry them          steps: 1
 *
 *     small, or two ranks                          staging areas        steps: 1 per chunk of S = 64 KiB
 *       rank 0 ─ copy ─> [0] ─┬─ reduce all ─> rank 0                   bytes per rank: N written, n N read
 *       rank 1 ─ copy ─> [1] ─┴─ reduce all ─> rank 1
 *
 *     larger, ordinary buffers                                          steps: 2 per chunk
 *       copy ─> [r], reduce slice r of all areas into slice r of [r],   bytes per rank: N (1 + 1/n) written,
 *       copy slice j from [j], all j                                                    2 N read
 *
 *     larger, symmetric buffers on all ranks: no staging                steps: 2
 *       slice r of every `in` ─ reduce on rank r ─> slice r of every `out`     bytes per rank: N read, N written
 *
 * Which way is taken is decided by what is the same on all ranks: the size, and the places in the exchanged lines.
 */
#include "comm/arithmetic/arithmetic.h"
#include "comm/comm_internal.h"
#include "comm/copy.h"

#include <string.h>

enum {
    STAGED_NBYTES = 8 * 1024,      /* up to here a copy costs less than the closing barrier of symmetric buffers */
    REDUCE_ALL_NBYTES = 16 * 1024, /* up to here reducing everything on all ranks costs less than a second barrier */
};

/* What a rank's line carries besides the place of `in`. */
typedef struct offer {
    double scale;
    uint64_t out_place;
} offer;

static lksi_reduction reduction_of(lks_group *group, const lksi_call *call) {
    return (lksi_reduction){.inputs = group->inputs,
                            .scales = group->scales,
                            .n_inputs = group->size,
                            .outputs = group->outputs,
                            .n_outputs = 1,
                            .type = call->type,
                            .op = call->op,
                            .divisor = lksi_divisor(call->op, group->size)};
}

static lks_status in_line(lks_group *group, const lksi_call *call) {
    lks_type wide = lksi_accumulator_type(call->type);
    _Alignas(16) unsigned char result[LKSI_PAYLOAD_NBYTES];
    void *output = result;
    lksi_contribute(lksi_post_next(group)->payload, call->in, call->scale, call->count, call->type);
    LKS_TRY(lksi_open(group, call));
    for (int rank = 0; rank < group->size; rank++) group->inputs[rank] = lksi_post_of(group, rank)->payload;
    lksi_reduction sum = {group->inputs, NULL, group->size, &output, 1, wide, call->op, 1};
    lksi_reduce_range(&sum, 0, call->count);
    lksi_conclude(call->out, result, lksi_divisor(call->op, group->size), call->count, call->type);
    return LKS_OK;
}

static lks_status alone(lks_group *group, const lksi_call *call) {
    LKS_TRY(lksi_open(group, call));
    group->inputs[0] = call->in, group->outputs[0] = call->out, group->scales[0] = call->scale;
    lksi_reduction sum = reduction_of(group, call);
    lksi_reduce_range(&sum, 0, call->count);
    return LKS_OK;
}

/* Slices begin at multiples of a line, so that no two ranks write to the same one. */
static void slice(const lks_group *group, size_t count, size_t each, int rank, size_t *first, size_t *n) {
    size_t per_line = LKSI_LINE_NBYTES / each, n_ranks = (size_t)group->size;
    size_t share = ((count + n_ranks - 1) / n_ranks + per_line - 1) / per_line * per_line;
    *first = share * (size_t)rank < count ? share * (size_t)rank : count;
    *n = count - *first < share ? count - *first : share;
}

/* --- symmetric buffers --- */

static bool is_symmetric_everywhere(const lks_group *group) {
    offer first, each;
    memcpy(&first, lksi_post_of(group, 0)->payload, sizeof first);
    uint64_t in_id = lksi_place_id(lksi_post_of(group, 0)->place), out_id = lksi_place_id(first.out_place);
    bool is_same = in_id != 0 && out_id != 0;
    for (int rank = 1; rank < group->size && is_same; rank++) {
        memcpy(&each, lksi_post_of(group, rank)->payload, sizeof each);
        is_same = lksi_place_id(lksi_post_of(group, rank)->place) == in_id && lksi_place_id(each.out_place) == out_id;
    }
    return is_same;
}

static lks_status on_symmetric(lks_group *group, const lksi_call *call) {
    offer each;
    size_t first, count;
    memcpy(&each, lksi_post_of(group, group->rank)->payload, sizeof each);
    const lksi_allocation *in = lksi_place_allocation(group, lksi_post_of(group, group->rank)->place);
    const lksi_allocation *out = lksi_place_allocation(group, each.out_place);
    for (int rank = 0; rank < group->size; rank++) {
        const lksi_post *post = lksi_post_of(group, rank);
        memcpy(&each, post->payload, sizeof each);
        group->inputs[rank] = in->base + in->stride * (size_t)rank + lksi_place_offset(post->place);
        group->outputs[rank] = out->base + out->stride * (size_t)rank + lksi_place_offset(each.out_place);
        group->scales[rank] = each.scale;
    }
    lksi_reduction sum = reduction_of(group, call);
    sum.n_outputs = group->size;
    slice(group, call->count, lks_type_nbytes(call->type), group->rank, &first, &count);
    lksi_reduce_range(&sum, first, count);
    group->progress.done_nbytes = call->nbytes / (size_t)group->size;
    return lksi_meet(group);
}

/* --- staged --- */

static unsigned char *area_of(const lks_group *group, int rank) {
    return lksi_control_staging(group->control, rank, (unsigned)(group->n_stagings + 1));
}

static void stage(const lks_group *group, const lksi_call *call, size_t first, size_t count) {
    size_t each = lks_type_nbytes(call->type);
    lksi_copy(area_of(group, group->rank), (const unsigned char *)call->in + first * each, count * each);
}

/* All areas hold their chunk. */
static lks_status reduce_chunk(lks_group *group, const lksi_call *call, size_t first, size_t count) {
    size_t each = lks_type_nbytes(call->type);
    unsigned char *out = (unsigned char *)call->out + first * each;
    lksi_reduction sum = reduction_of(group, call);
    for (int rank = 0; rank < group->size; rank++) group->inputs[rank] = area_of(group, rank);
    if (group->size == 2 || call->nbytes <= REDUCE_ALL_NBYTES) {
        group->outputs[0] = out;
        lksi_reduce_range(&sum, 0, count);
        return LKS_OK;
    }
    size_t begin, n;
    group->outputs[0] = area_of(group, group->rank); /* others read only their own slices of it */
    slice(group, count, each, group->rank, &begin, &n);
    lksi_reduce_range(&sum, begin, n);
    LKS_TRY(lksi_meet(group));
    for (int rank = 0; rank < group->size; rank++) {
        slice(group, count, each, rank, &begin, &n);
        lksi_copy(out + begin * each, area_of(group, rank) + begin * each, n * each);
    }
    return LKS_OK;
}

/* The first chunk is staged already. An area is written again two chunks later; by then all have met since. */
static lks_status staged(lks_group *group, const lksi_call *call) {
    size_t each = lks_type_nbytes(call->type), chunk = LKSI_STAGING_NBYTES / each;
    for (int rank = 0; rank < group->size; rank++) {
        offer heard;
        memcpy(&heard, lksi_post_of(group, rank)->payload, sizeof heard);
        group->scales[rank] = heard.scale;
    }
    for (size_t first = 0; first < call->count; first += chunk) {
        size_t count = call->count - first < chunk ? call->count - first : chunk;
        if (first > 0) {
            stage(group, call, first, count);
            LKS_TRY(lksi_meet(group));
        }
        LKS_TRY(reduce_chunk(group, call, first, count));
        group->n_stagings++;
        group->progress.done_nbytes = (first + count) * each;
    }
    return LKS_OK;
}

/* A buffer that is not aligned to its type is staged: memcpy takes it, the loops would not. */
static uint64_t usable_place(const lks_group *group, const lksi_call *call, const void *data) {
    if ((uintptr_t)data % lks_type_nbytes(call->type) != 0) return 0;
    return lksi_place_of(group, data, call->nbytes);
}

lks_status lksi_all_reduce_direct(lks_group *group, const lksi_call *call) {
    bool is_aligned = ((uintptr_t)call->in | (uintptr_t)call->out) % lks_type_nbytes(call->type) == 0;
    if (group->size == 1 && is_aligned) return alone(group, call);
    size_t wide = lks_type_nbytes(lksi_accumulator_type(call->type));
    if (call->count * wide <= LKSI_PAYLOAD_NBYTES) return in_line(group, call);
    size_t chunk = LKSI_STAGING_NBYTES / lks_type_nbytes(call->type);
    size_t first_chunk = call->count < chunk ? call->count : chunk;
    offer mine = {.scale = call->scale};
    uint64_t place = 0;
    if (call->nbytes > STAGED_NBYTES) {
        place = usable_place(group, call, call->in);
        mine.out_place = usable_place(group, call, call->out);
    }
    if (place == 0 || mine.out_place == 0) place = mine.out_place = 0;
    if (place == 0) stage(group, call, 0, first_chunk);
    memcpy(lksi_post_next(group)->payload, &mine, sizeof mine);
    LKS_TRY(lksi_post_and_collect(group, call, place));
    if (is_symmetric_everywhere(group)) return on_symmetric(group, call);
    bool is_mixed = false;
    for (int rank = 0; rank < group->size; rank++) is_mixed |= lksi_post_of(group, rank)->place != 0;
    if (is_mixed) {
        if (place != 0) stage(group, call, 0, first_chunk);
        LKS_TRY(lksi_meet(group));
    }
    return staged(group, call);
}
