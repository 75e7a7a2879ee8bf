/* What follows the products in one step of a recurrent layer, for one sample of M units. */
#ifndef LKSI_CELL_H
#define LKSI_CELL_H

#include "base/isa.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct lksi_cell_kernels {
    /* gates (4M), the products, to the activated i f g o; c (M), h (M) of this step. */
    void (*lstm)(int64_t m, const float *bias, const float *c_before, float *gates, float *c, float *h);
    /* From dh (M) and dc (M), which moves one step back, to dgates (4M), which may not overlap others. tanh_c (M) is
     * scratch. */
    void (*lstm_gradient)(int64_t m, const float *gates, const float *c_before, const float *c, const float *dh,
                          float *dc, float *tanh_c, float *dgates);
    /* h (M), the product, to tanh (or relu) of it with the bias. */
    void (*rnn)(int64_t m, bool is_relu, const float *bias, float *h);
    void (*rnn_gradient)(int64_t m, bool is_relu, const float *h, const float *dh, float *dgates);
} lksi_cell_kernels;

LKSI_ISA_DECLARE(lksi_cell_kernels, lksi_cell_loops);

#endif
