/* Sums and maxima over rows in 16 lanes, for every vector width of the machine. The order of additions is therefore the
 * same, and so are the bits, on every instruction set. (Compilers may not reorder float additions.) For NAME_isa.c
 * files. */
#ifndef LKSI_LANES_H
#define LKSI_LANES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LKSI_LANES = 16 };

#if defined(__AVX512F__)
enum { LKSI_VECTOR = 16 };
#elif defined(__AVX__)
enum { LKSI_VECTOR = 8 };
#else
enum { LKSI_VECTOR = 4 };
#endif
enum { LKSI_VECTORS = LKSI_LANES / LKSI_VECTOR };

typedef float lksi_vector __attribute__((vector_size(4 * LKSI_VECTOR)));
typedef int32_t lksi_vector_mask __attribute__((vector_size(4 * LKSI_VECTOR)));
/* The same type without alignment requirements. */
typedef float lksi_floats __attribute__((vector_size(4 * LKSI_VECTOR), aligned(4), may_alias));

static inline const lksi_floats *lksi_floats_at(const float *x) { return (const lksi_floats *)x; }

/* Adds the lanes pairwise: lane i and lane i + 8, then 4, 2, 1. */
static inline float lksi_lanes_total(const lksi_vector sum[LKSI_VECTORS]) {
    float lanes[LKSI_LANES];
    memcpy(lanes, sum, sizeof lanes);
    for (int width = LKSI_LANES / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++) lanes[k] += lanes[k + width];
    return lanes[0];
}

/* The sum of x - shift. */
static inline float lksi_row_sum_shifted(size_t count, float shift, const float *x) {
    lksi_vector sum[LKSI_VECTORS] = {{0}};
    size_t i = 0;
    for (; i + LKSI_LANES <= count; i += LKSI_LANES)
        for (int k = 0; k < LKSI_VECTORS; k++) sum[k] += *lksi_floats_at(x + i + k * LKSI_VECTOR) - shift;
    float total = i > 0 ? lksi_lanes_total(sum) : 0;
    for (; i < count; i++) total += x[i] - shift; /* masked vectors would be slower */
    return total;
}

static inline float lksi_row_sum(size_t count, const float *x) { return lksi_row_sum_shifted(count, 0, x); }

static inline float lksi_row_dot(size_t count, const float *x, const float *y) {
    lksi_vector sum[LKSI_VECTORS] = {{0}};
    size_t i = 0;
    for (; i + LKSI_LANES <= count; i += LKSI_LANES)
        for (int k = 0; k < LKSI_VECTORS; k++)
            sum[k] += *lksi_floats_at(x + i + k * LKSI_VECTOR) * *lksi_floats_at(y + i + k * LKSI_VECTOR);
    float total = i > 0 ? lksi_lanes_total(sum) : 0;
    for (; i < count; i++) total += x[i] * y[i];
    return total;
}

/* NaN counts as smaller than all numbers. */
static inline float lksi_row_max(size_t count, const float *x) {
    lksi_vector largest[LKSI_VECTORS];
    float lanes[LKSI_LANES], result = -INFINITY;
    size_t i = 0;
    for (int k = 0; k < LKSI_VECTORS; k++) largest[k] = (lksi_vector){0} - INFINITY;
    for (; i + LKSI_LANES <= count; i += LKSI_LANES)
        for (int k = 0; k < LKSI_VECTORS; k++) {
            lksi_vector part = *lksi_floats_at(x + i + k * LKSI_VECTOR);
            lksi_vector_mask is_larger = part > largest[k], kept = ~is_larger & (lksi_vector_mask)largest[k];
            largest[k] = (lksi_vector)((is_larger & (lksi_vector_mask)part) | kept);
        }
    memcpy(lanes, largest, sizeof lanes);
    for (int k = 0; i > 0 && k < LKSI_LANES; k++) result = lanes[k] > result ? lanes[k] : result;
    for (; i < count; i++) result = x[i] > result ? x[i] : result;
    return result;
}

#endif
