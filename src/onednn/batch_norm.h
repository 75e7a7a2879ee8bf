/* Batch norm by Lockstep's own loops. They compute the statistics in one pass, where oneDNN needs two. They include
 * ReLU, its gradient, and the sum with another image. */
#ifndef LKSI_ONEDNN_BATCH_NORM_H
#define LKSI_ONEDNN_BATCH_NORM_H

#include "device/device.h"

/* Lowers all batch norm operators. */
lks_status lksi_onednn_lower_batch_norm(const lksi_lowering *lowering, lksi_kernel *kernel);

/* sum[c] = the sum over channel c of the image x, which is `data` in `layout`. */
void lksi_onednn_sum_channels(const lksi_tensor *x, const lksi_layout *layout, const float *data, float *sum);

#endif
