/* Convolutions whose only window covers the whole image: matrix products of rows that lie in memory as they are. */
#ifndef LKSI_ONEDNN_WHOLE_WINDOW_H
#define LKSI_ONEDNN_WHOLE_WINDOW_H

#include "device/device.h"

/* Whether a convolution or a gradient of one is of this kind. */
bool lksi_onednn_is_whole_window(const lksi_lowering *lowering);
lks_status lksi_onednn_lower_whole_window(const lksi_lowering *lowering, lksi_kernel *kernel);
/* How the weights (M,C,h,w) lie best: (M,h,w,C). */
lksi_layout lksi_onednn_whole_window_storage(const lksi_tensor *w);

#endif
