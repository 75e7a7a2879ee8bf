/* Memory planning by liveness: values that are never live at the same time share bytes. The largest value is placed
 * first, each at the lowest offset that is free during its lifetime (greedy by size; Pisarchyk, Lee, "Efficient memory
 * management for deep neural net inference", 2020). */
#include "graph/graph_internal.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

static int larger_first(const void *a, const void *b) {
    const lksi_interval *x = *(lksi_interval *const *)a, *y = *(lksi_interval *const *)b;
    if (x->nbytes != y->nbytes) return x->nbytes > y->nbytes ? -1 : 1;
    return (x > y) - (x < y); /* qsort is not stable; the plan must be the same on all ranks */
}

static bool live_together(const lksi_interval *a, const lksi_interval *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset at which `interval` overlaps no placed interval that is live at the same time. `placed` is sorted
 * by offset. */
static size_t lowest_free(const lksi_interval *interval, lksi_interval *const *placed, size_t n_placed) {
    size_t offset = 0;
    for (size_t i = 0; i < n_placed; i++) {
        const lksi_interval *other = placed[i];
        if (!live_together(interval, other) || offset >= other->offset + other->nbytes) continue;
        if (other->offset >= offset + interval->nbytes) break;
        offset = (other->offset + other->nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return offset;
}

static void insert(lksi_interval **placed, size_t n_placed, lksi_interval *interval) {
    size_t i = n_placed;
    for (; i > 0 && placed[i - 1]->offset > interval->offset; i--) placed[i] = placed[i - 1];
    placed[i] = interval;
}

/* In iteration i, the first i entries of `order` are the placed intervals, sorted by offset. */
lks_status lksi_plan_memory(lksi_interval *intervals, size_t n_intervals, size_t *nbytes) {
    lksi_interval **order = lksi_alloc_array(n_intervals, sizeof(lksi_interval *));
    if (order == NULL) return LKS_ERR_MEMORY;
    size_t n_placed = 0; /* without the empty ones */
    for (size_t i = 0; i < n_intervals; i++) {
        intervals[i].offset = 0;
        if (intervals[i].nbytes > 0) order[n_placed++] = &intervals[i];
    }
    if (n_placed > 0) qsort(order, n_placed, sizeof(lksi_interval *), larger_first);
    *nbytes = 0;
    for (size_t i = 0; i < n_placed; i++) {
        lksi_interval *next = order[i];
        next->offset = lowest_free(next, order, i);
        if (next->offset + next->nbytes > *nbytes) *nbytes = next->offset + next->nbytes;
        insert(order, i, next);
    }
    lksi_free(order);
    return LKS_OK;
}
