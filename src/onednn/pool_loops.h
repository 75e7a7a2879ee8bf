/* The loops of pool_isa.c: windows over one sample's block of adjacent channels. */
#ifndef LKSI_ONEDNN_POOL_LOOPS_H
#define LKSI_ONEDNN_POOL_LOOPS_H

#include "base/isa.h"

#include <stdint.h>

typedef struct lksi_pool_shape {
    int64_t h, w, out_h, out_w; /* x (h,w,lanes), y (out_h,out_w,lanes) */
    int64_t window[2], stride[2], padding[2];
    int64_t lanes;
} lksi_pool_shape;

typedef struct lksi_pool_loops {
    /* The first of the largest elements, and its index in its window (row-major). NaN counts as the largest. */
    void (*largest)(const lksi_pool_shape *shape, const float *x, float *y, int32_t *index);
    void (*largest_gradient)(const lksi_pool_shape *shape, const float *dy, const int32_t *index, float *dx);
    void (*mean)(const lksi_pool_shape *shape, const float *x, float *y);
    void (*mean_gradient)(const lksi_pool_shape *shape, const float *dy, float *dx);
} lksi_pool_loops;

LKSI_ISA_DECLARE(lksi_pool_loops, lksi_pool_loops);

#endif
