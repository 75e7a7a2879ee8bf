/* Transposition of a matrix, in blocks of four by four. */
#ifndef LKSI_TRANSPOSE_H
#define LKSI_TRANSPOSE_H

#include <stdint.h>

/* y[i y_row + j] = x[i + j x_row] + addend[j], i < n_i, j < n_j; addend NULL: none. */
void lksi_transpose(int64_t n_i, int64_t n_j, const float *x, int64_t x_row, const float *addend, float *y,
                    int64_t y_row);

#endif
