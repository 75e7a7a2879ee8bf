/* Copies from one layout to another. */
#ifndef LKSI_ONEDNN_REORDER_H
#define LKSI_ONEDNN_REORDER_H

#include "device/device.h"

lks_status lksi_onednn_lower_reorder(const lksi_lowering *lowering, lksi_kernel *kernel);

#endif
