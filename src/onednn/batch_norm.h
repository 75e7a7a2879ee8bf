/* Batch norm by loops of ours: one pass for the statistics where oneDNN takes two, ReLU and its gradient included, and
 * the sum with another image. */
#ifndef LKSI_ONEDNN_BATCH_NORM_H
#define LKSI_ONEDNN_BATCH_NORM_H

#include "device/device.h"

/* BATCH_NORM and its kin. */
lks_status lksi_onednn_lower_batch_norm(const lksi_lowering *lowering, lksi_kernel *kernel);

/* sum[c] = what channel c of the image x, `data` in `layout`, adds up to. */
void lksi_onednn_sum_channels(const lksi_tensor *x, const lksi_layout *layout, const float *data, float *sum);

#endif
