/* Recurrent layers with oneDNN. */
#ifndef LKSI_ONEDNN_RECURRENT_H
#define LKSI_ONEDNN_RECURRENT_H

#include "device/device.h"

lks_status lksi_onednn_lower_recurrent(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
lks_status lksi_onednn_lower_recurrent_grad(const lks_device *device, const lksi_lowering *lowering,
                                            lksi_kernel *kernel);

#endif
