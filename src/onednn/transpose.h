/* Transposition of a matrix, in blocks of four by four. */
#ifndef LKSI_TRANSPOSE_H
#define LKSI_TRANSPOSE_H

#include "base/isa.h"

#include <stdint.h>

typedef struct lksi_transpose_kernel {
    /* y[i y_row + j] = x[i + j x_row] + addend[j], i < n_i, j < n_j; addend NULL: none. */
    void (*run)(int64_t n_i, int64_t n_j, const float *x, int64_t x_row, const float *addend, float *y, int64_t y_row);
} lksi_transpose_kernel;

LKSI_ISA_DECLARE(lksi_transpose_kernel, lksi_transpose_loops);

static inline void lksi_transpose(int64_t n_i, int64_t n_j, const float *x, int64_t x_row, const float *addend,
                                  float *y, int64_t y_row) {
    LKSI_ISA_PICK(lksi_transpose_loops)->run(n_i, n_j, x, x_row, addend, y, y_row);
}

#endif
