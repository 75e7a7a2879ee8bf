/* Convolutions with oneDNN. */
#ifndef LKSI_ONEDNN_CONVOLUTION_H
#define LKSI_ONEDNN_CONVOLUTION_H

#include "device/convolution.h"

lks_status lksi_onednn_lower_convolution(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
/* The layout of the weights that is fastest for the forward pass. Row-major for bf16, because the passes read rounded
 * copies. */
lks_status lksi_onednn_choose_convolution_storage(const lks_device *device, const lksi_lowering *user,
                                                  lksi_layout *storage);

#endif
