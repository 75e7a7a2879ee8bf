/* The loops of batch_norm_isa.c: one group of adjacent channels at a time. */
#ifndef LKSI_ONEDNN_BATCH_NORM_LOOPS_H
#define LKSI_ONEDNN_BATCH_NORM_LOOPS_H

#include "base/isa.h"

#include <stdbool.h>
#include <stdint.h>

enum { LKSI_NORM_LANES = 16 }; /* most channels of a group: 1, 8, or with AVX-512 16 */

/* Where the elements of a group lie: n samples `sample_stride` floats apart, in each `positions` positions
 * `position_stride` apart, in each `lanes` adjacent channels. */
typedef struct lksi_norm_group {
    int64_t n, positions, sample_stride, position_stride;
    int lanes;
} lksi_norm_group;

/* y = (x - mean) * scale + shift, and max(y, 0) where is_relu; sum = y + addend, and max(sum, 0) where is_sum_relu. */
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
    /* Sums of x and of the squares around the mean, per lane. */
    void (*moments)(const lksi_norm_group *group, const float *x, double *mean, double *squares);
    /* Either of `y` and `sum` may be NULL: it is then written nowhere. */
    void (*apply)(const lksi_norm_group *group, const lksi_norm_affine *affine, const float *x, const float *addend,
                  float *y, float *sum);
    /* Sums of dy and of dy * (x - mean). Where `y` is given, dy counts only where y > 0, here and in `gradient`. */
    void (*products)(const lksi_norm_group *group, const float *mean, const float *x, const float *dy, const float *y,
                     double *dy_sum, double *product_sum);
    void (*gradient)(const lksi_norm_group *group, const lksi_norm_gradient *g, const float *x, const float *dy,
                     const float *y, float *dx);
} lksi_batch_norm_loops;

LKSI_ISA_DECLARE(lksi_batch_norm_loops, lksi_batch_norm_loops);

#endif
