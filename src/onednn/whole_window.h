/* Convolutions with a single window that covers the whole image (device/convolution.h): matrix products of rows that
 * are contiguous in memory. */
#ifndef LKSI_ONEDNN_WHOLE_WINDOW_H
#define LKSI_ONEDNN_WHOLE_WINDOW_H

#include "device/convolution.h"

lks_status lksi_onednn_lower_whole_window(const lksi_lowering *lowering, lksi_kernel *kernel);
/* The best layout for the weights (M,C,h,w): (M,h,w,C). */
lksi_layout lksi_onednn_whole_window_storage(const lksi_tensor *w);

#endif
