/* Sums and maxima over rows in 16 lanes, whatever the width of the machine's vectors: the same order of additions, and
 * so the same bits, on every instruction set. (Compilers may not reorder float additions themselves.) For NAME_isa.c
 * files. */
#ifndef LKSI_LANES_H
#define LKSI_LANES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { LKSI_VECTOR = 16 };
typedef float lksi_vector __attribute__((vector_size(64)));
typedef int32_t lksi_mask __attribute__((vector_size(64)));
#elif defined(__AVX__)
enum { LKSI_VECTOR = 8 };
typedef float lksi_vector __attribute__((vector_size(32)));
typedef int32_t lksi_mask __attribute__((vector_size(32)));
#else
enum { LKSI_VECTOR = 4 };
typedef float lksi_vector __attribute__((vector_size(16)));
typedef int32_t lksi_mask __attribute__((vector_size(16)));
#endif
enum { LKSI_LANES = 16, LKSI_LANE_VECTORS = LKSI_LANES / LKSI_VECTOR };

typedef struct lksi_lanes {
    lksi_vector v[LKSI_LANE_VECTORS];
} lksi_lanes;

static inline void lksi_lanes_fill(lksi_lanes *lanes, float value) {
    float all[LKSI_LANES];
    for (int i = 0; i < LKSI_LANES; i++) all[i] = value;
    memcpy(lanes, all, sizeof all);
}

/* The last `count` < 16 elements of a row; `value` in the lanes that are left. */
static inline void lksi_lanes_load_last(lksi_lanes *lanes, const float *x, size_t count, float value) {
    lksi_lanes_fill(lanes, value);
    memcpy(lanes, x, count * sizeof *x);
}

static inline void lksi_lanes_add(lksi_lanes *sum, const lksi_lanes *x) {
    for (int i = 0; i < LKSI_LANE_VECTORS; i++) sum->v[i] += x->v[i];
}

static inline void lksi_lanes_add_product(lksi_lanes *sum, const lksi_lanes *x, const lksi_lanes *y) {
    for (int i = 0; i < LKSI_LANE_VECTORS; i++) sum->v[i] += x->v[i] * y->v[i];
}

static inline void lksi_lanes_max(lksi_lanes *largest, const lksi_lanes *x) {
    for (int i = 0; i < LKSI_LANE_VECTORS; i++) {
        lksi_mask is_larger = x->v[i] > largest->v[i];
        largest->v[i] = (lksi_vector)((is_larger & (lksi_mask)x->v[i]) | (~is_larger & (lksi_mask)largest->v[i]));
    }
}

/* Halves fold onto each other: lane i and lane i + 8, then 4, 2, 1. */
static inline float lksi_lanes_total(const lksi_lanes *lanes) {
    float x[LKSI_LANES];
    memcpy(x, lanes, sizeof x);
    for (int width = LKSI_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}

static inline float lksi_row_sum(size_t count, const float *x) {
    lksi_lanes sum, part;
    lksi_lanes_fill(&sum, 0);
    size_t i = 0;
    for (; i + LKSI_LANES <= count; i += LKSI_LANES) {
        memcpy(&part, x + i, sizeof part);
        lksi_lanes_add(&sum, &part);
    }
    lksi_lanes_load_last(&part, x + i, count - i, 0);
    lksi_lanes_add(&sum, &part);
    return lksi_lanes_total(&sum);
}

static inline float lksi_row_dot(size_t count, const float *x, const float *y) {
    lksi_lanes sum, part, other;
    lksi_lanes_fill(&sum, 0);
    size_t i = 0;
    for (; i + LKSI_LANES <= count; i += LKSI_LANES) {
        memcpy(&part, x + i, sizeof part);
        memcpy(&other, y + i, sizeof other);
        lksi_lanes_add_product(&sum, &part, &other);
    }
    lksi_lanes_load_last(&part, x + i, count - i, 0);
    lksi_lanes_load_last(&other, y + i, count - i, 0);
    lksi_lanes_add_product(&sum, &part, &other);
    return lksi_lanes_total(&sum);
}

/* NaN counts as smaller than anything. */
static inline float lksi_row_max(size_t count, const float *x) {
    lksi_lanes largest, part;
    lksi_lanes_fill(&largest, -INFINITY);
    size_t i = 0;
    for (; i + LKSI_LANES <= count; i += LKSI_LANES) {
        memcpy(&part, x + i, sizeof part);
        lksi_lanes_max(&largest, &part);
    }
    lksi_lanes_load_last(&part, x + i, count - i, -INFINITY);
    lksi_lanes_max(&largest, &part);
    float all[LKSI_LANES], result = -INFINITY;
    memcpy(all, &largest, sizeof all);
    for (int k = 0; k < LKSI_LANES; k++) result = all[k] > result ? all[k] : result;
    return result;
}

#endif
