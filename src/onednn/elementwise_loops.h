/* The loops of elementwise_isa.c. Inputs and output may be the same memory. */
#ifndef LKSI_ONEDNN_ELEMENTWISE_LOOPS_H
#define LKSI_ONEDNN_ELEMENTWISE_LOOPS_H

#include "base/isa.h"

#include <stddef.h>

typedef struct lksi_elementwise_loops {
    void (*add)(const float *a, const float *b, float *y, size_t count);
    void (*relu)(const float *x, const float *unused, float *y, size_t count);
    void (*relu_grad)(const float *y, const float *dy, float *dx, size_t count);
} lksi_elementwise_loops;

LKSI_ISA_DECLARE(lksi_elementwise_loops, lksi_elementwise_loops);

#endif
