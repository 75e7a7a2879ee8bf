/* Loops over one row: sums, maxima and the parts of softmax. */
#include "onednn/lanes.h"
#include "onednn/loops.h"
#include "onednn/vector_math.h"

#include <string.h>

/* The number of elements that stay in the L1 cache between two passes, and that are summed in float before a double. */
enum { BLOCK = 2048 };

static size_t block_count(size_t count, size_t begin) { return count - begin < BLOCK ? count - begin : BLOCK; }

static double sum_shifted(size_t count, float shift, const float *x) {
    double total = 0;
    for (size_t i = 0; i < count; i += BLOCK)
        total += (double)lksi_row_sum_shifted(block_count(count, i), shift, x + i);
    return total;
}

static double sum(size_t count, const float *x) { return sum_shifted(count, 0, x); }

static void accumulate(size_t count, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] += x[i];
}

static void add(size_t count, const float *restrict x, double *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] += (double)x[i];
}

/* y += the sum of up to four rows of x */
static void add_rows(size_t n_rows, size_t count, size_t row_length, const float *restrict x, double *restrict y) {
    if (n_rows < 4) {
        for (size_t k = 0; k < n_rows; k++)
            for (size_t i = 0; i < count; i++) y[i] += (double)x[k * row_length + i];
        return;
    }
    const float *a = x, *b = a + row_length, *c = b + row_length, *d = c + row_length;
    for (size_t i = 0; i < count; i++) y[i] += ((double)a[i] + (double)b[i]) + ((double)c[i] + (double)d[i]);
}

/* In double: the gradient of a bias over thousands of rows would otherwise lose more digits than all steps before. */
static void sum_rows(size_t n_rows, size_t n_columns, size_t row_length, const float *restrict x, float *restrict y) {
    enum { STRIP = 256, N_AT_ONCE = 4 };
    double strip[STRIP];
    if (n_columns == 1 && row_length == 1) {
        *y = (float)sum(n_rows, x);
        return;
    }
    for (size_t first = 0; first < n_columns; first += STRIP) {
        size_t count = n_columns - first < STRIP ? n_columns - first : STRIP;
        memset(strip, 0, count * sizeof *strip);
        for (size_t i = 0; i < n_rows; i += N_AT_ONCE)
            add_rows(n_rows - i < N_AT_ONCE ? n_rows - i : N_AT_ONCE, count, row_length, x + i * row_length + first,
                     strip);
        for (size_t i = 0; i < count; i++) y[first + i] = (float)strip[i];
    }
}

static void exp_block(size_t count, float shift, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = lksi_exp(x[i] - shift);
}

static float exp_shifted(size_t count, float shift, const float *x, float *y) {
    float total = 0;
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t n = block_count(count, i);
        exp_block(n, shift, x + i, y + i);
        total += lksi_row_sum(n, y + i);
    }
    return total;
}

static void softmax_grad(size_t count, const float *restrict y, const float *restrict dy, float *restrict dx) {
    const float mean = lksi_row_dot(count, y, dy);
    for (size_t i = 0; i < count; i++) dx[i] = y[i] * (dy[i] - mean);
}

static void log_softmax_grad(size_t count, const float *restrict y, const float *restrict dy, float *restrict dx) {
    const float total = lksi_row_sum(count, dy);
    for (size_t i = 0; i < count; i++) dx[i] = dy[i] - lksi_exp(y[i]) * total;
}

static void shift_and_scale(size_t count, float shift, float factor, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = (x[i] - shift) * factor;
}

/* Not x - (first + second): that sum is rounded if `first` is large. */
static void shift_twice(size_t count, float first, float second, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = (x[i] - first) - second;
}

static void scale_in_place(size_t count, float factor, float *y) {
    for (size_t i = 0; i < count; i++) y[i] *= factor;
}

static void relu_in_place(size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] = y[i] < 0 ? 0 : y[i];
}

const lksi_row_loops LKSI_ISA_NAME(lksi_row_loops) = {
    .sum = sum,
    .sum_shifted = sum_shifted,
    .accumulate = accumulate,
    .add = add,
    .sum_rows = sum_rows,
    .max = lksi_row_max,
    .exp_shifted = exp_shifted,
    .softmax_grad = softmax_grad,
    .log_softmax_grad = log_softmax_grad,
    .shift_and_scale = shift_and_scale,
    .shift_twice = shift_twice,
    .scale_in_place = scale_in_place,
    .relu_in_place = relu_in_place,
};
