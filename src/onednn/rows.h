/* Operands of sgemm whose rows would collide in the cache. Rows whose distance is a multiple of 512 bytes share few
 * sets of the L1 cache, and sgemm reads a column of rows at a time to pack them. Copying them to longer rows first is
 * faster (see linear.c). */
#ifndef LKSI_ROWS_H
#define LKSI_ROWS_H

#include <stdint.h>
#include <string.h>

enum { LKSI_COLLIDING_FLOATS = 128, LKSI_ROW_PADDING = 16 };

static inline int64_t lksi_padded_row(int64_t row_length) {
    return row_length % LKSI_COLLIDING_FLOATS == 0 ? row_length + LKSI_ROW_PADDING : row_length;
}

/* The number of floats of scratch that lksi_pad_rows needs for x (n,k). */
static inline int64_t lksi_padding_count(int64_t n, int64_t k) {
    return lksi_padded_row(k) != k ? n * lksi_padded_row(k) : 0;
}

/* Returns x (n,k) with row stride lksi_padded_row(k): x itself, or a copy at *scratch, which then moves on past the
 * copy. */
static inline const float *lksi_pad_rows(const float *x, int64_t n, int64_t k, float **scratch) {
    int64_t row = lksi_padded_row(k);
    if (row == k) return x;
    float *copy = *scratch;
    for (int64_t i = 0; i < n; i++) memcpy(copy + i * row, x + i * k, (size_t)k * sizeof *x);
    *scratch += n * row;
    return copy;
}

#endif
