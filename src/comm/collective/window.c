/* Reductions built from a block reducer, one window of elements after the other, so that scratch memory stays bounded:
 *
 *     reduce_scatter   window = the same piece of every rank's block      reduce, conclude into `out`
 *     all_reduce       window = a piece of the buffer, cut into n slices  reduce, conclude into slice r, gather slices
 *     reduce           as all_reduce                                      ..., slices to the root
 *
 * In place: a window of `in` has been read before the same window of `out` is written. If `out` can hold accumulators,
 * the reducer writes them there, which saves a copy.
 */
#include "comm/collective/collective.h"

size_t lksi_window_begin(const lksi_window *window, int block) {
    if (window->counts == NULL) return lksi_least(window->first + (size_t)block * window->stride, window->end);
    size_t begin = lksi_least(window->first, window->counts[block]);
    for (int before = 0; before < block; before++) begin += window->counts[before];
    return begin;
}

size_t lksi_window_count(const lksi_window *window, int block) {
    if (window->counts == NULL) return lksi_least(window->length, window->end - lksi_window_begin(window, block));
    return lksi_least(window->length, window->counts[block] - lksi_least(window->first, window->counts[block]));
}

lksi_window lksi_scatter_window(const lks_group *group, const lksi_call *call, size_t first, size_t length) {
    if (call->counts != NULL) return (lksi_window){.first = first, .length = length, .counts = call->counts};
    size_t end = (size_t)group->size * call->count;
    return (lksi_window){.first = first, .stride = call->count, .length = length, .end = end};
}

size_t lksi_longest_count(const lks_group *group, const lksi_call *call) {
    size_t longest = call->counts != NULL ? 0 : call->count;
    for (int rank = 0; rank < group->size && call->counts != NULL; rank++)
        if (call->counts[rank] > longest) longest = call->counts[rank];
    return longest;
}

size_t lksi_own_count(const lks_group *group, const lksi_call *call) {
    return call->counts != NULL ? call->counts[group->rank] : call->count;
}

/* The number of elements whose accumulators fill the scratch memory of a window. */
static size_t capacity_of(const lksi_call *call) {
    return LKSI_WINDOW_NBYTES / lksi_type_nbytes(lksi_accumulator_type(call->type));
}

/* The address of element `first` of `out` if accumulators can be stored there without conversion, else NULL. */
static void *place_at(const lksi_call *call, size_t first) {
    unsigned char *out = lksi_at(call->out, first * lksi_type_nbytes(call->type));
    return lksi_accumulator_type(call->type) == call->type && lksi_is_aligned(out, call->type) ? out : NULL;
}

lks_status lksi_reduce_scatter_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer) {
    size_t each = lksi_type_nbytes(call->type), first = 0, step = capacity_of(call) / (size_t)group->size;
    size_t longest = lksi_longest_count(group, call), own_count = lksi_own_count(group, call);
    do {
        lksi_window window = lksi_scatter_window(group, call, first, lksi_least(longest - first, step));
        size_t begin = lksi_least(first, own_count);
        void *own;
        LKS_TRY(reducer(group, call, &window, place_at(call, begin), &own));
        lksi_conclude(lksi_at(call->out, begin * each), own, lksi_divisor(call->op, group->size),
                      lksi_window_count(&window, group->rank), call->type);
        first += window.length;
    } while (first < longest);
    return LKS_OK;
}

/* The window of `call` that begins at `first`. *layout describes its slices in bytes of the call's type. */
static lksi_window slices_of(const lks_group *group, const lksi_call *call, size_t first, lksi_block_layout *layout) {
    size_t each = lksi_type_nbytes(call->type), count = lksi_least(call->count - first, capacity_of(call));
    *layout = lksi_block_layout_slices(count * each, group->size);
    size_t share = layout->share / each;
    return (lksi_window){.first = first, .stride = share, .length = share, .end = first + count};
}

lks_status lksi_all_reduce_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer,
                              lksi_gather_core gather) {
    size_t each = lksi_type_nbytes(call->type), first = 0;
    do {
        lksi_block_layout layout;
        lksi_window window = slices_of(group, call, first, &layout);
        size_t begin = lksi_window_begin(&window, group->rank), count = lksi_window_count(&window, group->rank);
        void *own;
        LKS_TRY(reducer(group, call, &window, place_at(call, begin), &own));
        lksi_conclude(lksi_at(call->out, begin * each), own, lksi_divisor(call->op, group->size), count, call->type);
        LKS_TRY(gather(group, call, lksi_at(call->out, first * each), &layout));
        first = window.end;
    } while (first < call->count);
    return LKS_OK;
}

static lks_status collect_slices(lks_group *group, const lksi_call *call, unsigned char *out,
                                 const lksi_block_layout *layout, const void *own) {
    lksi_extent mine = lksi_blocks(layout, group->rank, 1);
    if (group->rank != call->root) return lksi_step_send(group, call, call->root, own, mine.nbytes);
    lksi_copy(lksi_at(out, mine.begin), own, mine.nbytes);
    for (int rank = 0; rank < group->size; rank++) {
        lksi_extent slice = lksi_blocks(layout, rank, 1);
        if (rank != group->rank) LKS_TRY(lksi_step_receive(group, call, rank, lksi_at(out, slice.begin), slice.nbytes));
    }
    return LKS_OK;
}

lks_status lksi_reduce_by(lks_group *group, const lksi_call *call, lksi_block_reducer reducer) {
    size_t each = lksi_type_nbytes(call->type), first = 0;
    do {
        lksi_block_layout layout;
        lksi_window window = slices_of(group, call, first, &layout);
        void *own;
        LKS_TRY(reducer(group, call, &window, NULL, &own));
        lksi_conclude(own, own, lksi_divisor(call->op, group->size), lksi_window_count(&window, group->rank),
                      call->type);
        LKS_TRY(collect_slices(group, call, lksi_at(call->out, first * each), &layout, own));
        first = window.end;
    } while (first < call->count);
    return LKS_OK;
}
