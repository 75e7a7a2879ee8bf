/* The element-wise part of one step of a recurrent layer, after the products, for one sample of M units. */
#ifndef LKSI_CELL_H
#define LKSI_CELL_H

#include "base/isa.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct lksi_cell_kernels {
    /* Replaces gates (4M), the products, by the activated i f g o. Computes c (M) and h (M) of this step. */
    void (*lstm)(int64_t m, const float *bias, const float *c_before, float *gates, float *c, float *h);
    /* Computes dgates (4M) from dh (M) and dc (M). dc becomes that of the step before. dgates must not overlap other
     * arrays. tanh_c (M) is scratch. */
    void (*lstm_gradient)(int64_t m, const float *gates, const float *c_before, const float *c, const float *dh,
                          float *dc, float *tanh_c, float *dgates);
    /* Replaces h (M), the product, by tanh (or relu) of the product plus bias. */
    void (*rnn)(int64_t m, bool is_relu, const float *bias, float *h);
    void (*rnn_gradient)(int64_t m, bool is_relu, const float *h, const float *dh, float *dgates);
} lksi_cell_kernels;

LKSI_ISA_DECLARE(lksi_cell_kernels, lksi_cell_loops);

#endif
