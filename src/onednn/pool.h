/* Pooling by Lockstep's own loops. They propagate NaN and break ties like PyTorch. oneDNN does neither. */
#ifndef LKSI_ONEDNN_POOL_H
#define LKSI_ONEDNN_POOL_H

#include "device/device.h"

/* MAX_POOL2D, AVG_POOL2D and their gradients. */
lks_status lksi_onednn_lower_pool(const lksi_lowering *lowering, lksi_kernel *kernel);

#endif
