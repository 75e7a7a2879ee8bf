/* Linear layers and batched matrix products of operands rounded to bf16. */
#ifndef LKSI_ONEDNN_ROUNDED_PRODUCT_H
#define LKSI_ONEDNN_ROUNDED_PRODUCT_H

#include "device/device.h"

/* LINEAR, LINEAR_GRAD_INPUT, LINEAR_GRAD_WEIGHT and MATMUL, on row-major tensors. */
lks_status lksi_onednn_lower_rounded_product(const lksi_lowering *lowering, lksi_kernel *kernel);

#endif
