/* The loops of batch_norm_isa.c. Each works on one group of adjacent channels. */
#ifndef LKSI_ONEDNN_BATCH_NORM_LOOPS_H
#define LKSI_ONEDNN_BATCH_NORM_LOOPS_H

#include "base/isa.h"

#include <stdbool.h>
#include <stdint.h>

enum { LKSI_NORM_LANES = 16 }; /* largest group; groups have 1, 8, or with AVX-512 16 channels */

/* The memory layout of a group: n samples `sample_stride` floats apart, each with `positions` positions
 * `position_stride` floats apart, each with `lanes` adjacent channels. */
typedef struct lksi_norm_group {
    int64_t n, positions, sample_stride, position_stride;
    int lanes;
} lksi_norm_group;

/* y = (x - mean) * scale + shift, then max(y, 0) if is_relu. sum = y + addend, then max(sum, 0) if is_sum_relu. */
typedef struct lksi_norm_affine {
    float mean[LKSI_NORM_LANES], scale[LKSI_NORM_LANES], shift[LKSI_NORM_LANES];
    bool is_relu, is_sum_relu;
} lksi_norm_affine;

/* dx = (dy - dy_mean - (x - mean) * slope) * scale */
typedef struct lksi_norm_gradient {
    float mean[LKSI_NORM_LANES], dy_mean[LKSI_NORM_LANES], slope[LKSI_NORM_LANES], scale[LKSI_NORM_LANES];
} lksi_norm_gradient;

typedef struct lksi_batch_norm_loops {
    /* Sums of x, per lane. */
    void (*sums)(const lksi_norm_group *group, const float *x, double *sum);
    /* The mean of x and the sum of squared deviations from it, per lane. */
    void (*moments)(const lksi_norm_group *group, const float *x, double *mean, double *squares);
    /* One of `y` and `sum` may be NULL. It is then not written. */
    void (*apply)(const lksi_norm_group *group, const lksi_norm_affine *affine, const float *x, const float *addend,
                  float *y, float *sum);
    /* Sums of dy and of dy * (x - mean). If `y` is given, dy counts only where y > 0, here and in `gradient`. */
    void (*products)(const lksi_norm_group *group, const float *mean, const float *x, const float *dy, const float *y,
                     double *dy_sum, double *product_sum);
    void (*gradient)(const lksi_norm_group *group, const lksi_norm_gradient *g, const float *x, const float *dy,
                     const float *y, float *dx);
} lksi_batch_norm_loops;

LKSI_ISA_DECLARE(lksi_batch_norm_loops, lksi_batch_norm_loops);

#endif
