/* Element-wise operators in whatever layout their inputs have in common: each maps the padding's zeros to zeros. */
#ifndef LKSI_ONEDNN_ELEMENTWISE_H
#define LKSI_ONEDNN_ELEMENTWISE_H

#include "device/device.h"

/* Whether the lowering is such an operator, on f32 tensors of one shape. */
bool lksi_onednn_is_elementwise(const lksi_lowering *lowering);
lks_status lksi_onednn_lower_elementwise(const lksi_lowering *lowering, lksi_kernel *kernel);

/* y = max(y, 0). Not oneDNN's, which turns NaN into 0 and so hides a run that has gone wrong. */
void lksi_onednn_relu(float *y, const lksi_tensor *tensor, const lksi_layout *layout);

#endif
