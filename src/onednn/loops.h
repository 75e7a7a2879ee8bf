/* The cpu device's own loops, one table per *_isa.c file, for operators that oneDNN does not compute faster. They work
 * on f32, on rows and flat arrays. Results never overlap operands. */
#ifndef LKSI_LOOPS_H
#define LKSI_LOOPS_H

#include "base/isa.h"
#include "op/op.h"

#include <stddef.h>
#include <stdint.h>

/* Element-wise loops over `count` elements, by operator: y from x, or dx from dy and the other operand that the
 * catalogue names. `number` is the operator's attribute. */
typedef void lksi_elementwise_loop(size_t count, float number, const float *x, const float *dy, float *y);
typedef struct lksi_elementwise_loops {
    lksi_elementwise_loop *of[LKSI_OP_COUNT];
} lksi_elementwise_loops;
LKSI_ISA_DECLARE(lksi_elementwise_loops, lksi_elementwise_loops);

/* Loops over two operands, by operator. A step is 1, or 0 if the operand repeats its only element. At most one of the
 * steps is 0, unless `count` is 1. */
typedef void lksi_binary_loop(size_t count, const float *a, int step_a, const float *b, int step_b, float *y);
typedef struct lksi_binary_loops {
    lksi_binary_loop *of[LKSI_OP_COUNT];
} lksi_binary_loops;
LKSI_ISA_DECLARE(lksi_binary_loops, lksi_binary_loops);

/* Over one row of `count` > 0 elements. */
typedef struct lksi_row_loops {
    double (*sum)(size_t count, const float *x);
    double (*sum_shifted)(size_t count, float shift, const float *x); /* of x - shift */
    void (*accumulate)(size_t count, const float *x, float *y);       /* y += x */
    void (*add)(size_t count, const float *x, double *y);             /* y += x, in double */
    /* y (columns) = the sums over the rows of x (rows, columns), whose stride is row_length */
    void (*sum_rows)(size_t n_rows, size_t n_columns, size_t row_length, const float *x, float *y);
    float (*max)(size_t count, const float *x);
    /* y = e^(x - shift). Returns the sum of y. */
    float (*exp_shifted)(size_t count, float shift, const float *x, float *y);
    void (*softmax_grad)(size_t count, const float *y, const float *dy, float *dx);
    void (*log_softmax_grad)(size_t count, const float *y, const float *dy, float *dx);
    void (*shift_and_scale)(size_t count, float shift, float factor, const float *x, float *y); /* (x - shift) factor */
    void (*shift_twice)(size_t count, float first, float second, const float *x, float *y); /* (x - first) - second */
    void (*scale_in_place)(size_t count, float factor, float *y);
    /* max(y, 0). oneDNN's turns NaN into 0, which would hide a run that has diverged. */
    void (*relu_in_place)(size_t count, float *y);
} lksi_row_loops;
LKSI_ISA_DECLARE(lksi_row_loops, lksi_row_loops);

typedef struct lksi_layer_norm_loops {
    void (*forward)(size_t count, float epsilon, const float *x, const float *w, const float *b, float *y, float *mean,
                    float *inverse);
    /* Adds to dw and db. */
    void (*backward)(size_t count, float epsilon, const float *x, const float *dy, const float *w, float *dx,
                     double *dw, double *db);
} lksi_layer_norm_loops;
LKSI_ISA_DECLARE(lksi_layer_norm_loops, lksi_layer_norm_loops);

typedef struct lksi_dropout_loops {
    /* mask[i] = word i of Philox >= threshold, for the blocks (0, sample, stream), (1, sample, stream), ... of `key` */
    void (*draw)(size_t count, const uint32_t key[2], uint32_t sample, const uint32_t stream[2], uint32_t threshold,
                 uint8_t *mask);
    void (*apply)(size_t count, float factor, const float *x, const uint8_t *mask, float *y); /* mask x factor */
} lksi_dropout_loops;
LKSI_ISA_DECLARE(lksi_dropout_loops, lksi_dropout_loops);

#endif
