/* The matrix products of MATMUL and of the linear layer, for all devices. */
#ifndef LKSI_DEVICE_PRODUCT_H
#define LKSI_DEVICE_PRODUCT_H

#include "device/device.h"

/* `count` products y (m,n) = a (m,k) b (k,n) [+ bias (n)], all row-major, one after the other in memory. transpose_*:
 * the matrix is stored transposed. */
typedef struct lksi_product {
    int64_t count, m, n, k;
    bool transpose_a, transpose_b, has_bias;
} lksi_product;

/* Of MATMUL, LINEAR, LINEAR_GRAD_INPUT or LINEAR_GRAD_WEIGHT. a and b are inputs 0 and 1, the bias is input 2. */
lksi_product lksi_product_of(const lksi_lowering *lowering);

#endif
