/* The three products of the linear layer with oneDNN. */
#ifndef LKSI_ONEDNN_LINEAR_H
#define LKSI_ONEDNN_LINEAR_H

#include "device/device.h"

lks_status lksi_onednn_lower_linear(const lksi_lowering *lowering, lksi_kernel *kernel);
lks_status lksi_onednn_lower_linear_grad_input(const lksi_lowering *lowering, lksi_kernel *kernel);
lks_status lksi_onednn_lower_linear_grad_weight(const lksi_lowering *lowering, lksi_kernel *kernel);
const lksi_row_product *lksi_onednn_row_product(const lks_device *device);

#endif
