/* Convolutions on oneDNN. */
#ifndef LKSI_ONEDNN_CONVOLUTION_H
#define LKSI_ONEDNN_CONVOLUTION_H

#include "device/device.h"

/* Where x, w, y (or their gradients) and b are among an operator's inputs and outputs. */
typedef struct lksi_conv_places {
    int x, w, y, b; /* inputs from 0 on, outputs from LKSI_FIRST_OUTPUT on; LKSI_NOWHERE */
} lksi_conv_places;
enum { LKSI_FIRST_OUTPUT = LKSI_MAX_INPUTS, LKSI_NOWHERE = -1 };
lksi_conv_places lksi_conv_places_of(const lksi_lowering *lowering);
const lksi_tensor *lksi_conv_tensor(const lksi_lowering *lowering, int place);
void lksi_conv_set_layout(lksi_lowering *lowering, int place, lksi_layout layout);

lks_status lksi_onednn_lower_convolution(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
/* The layout that the forward pass likes its weights in. Row-major for bf16: the passes read rounded copies. */
lks_status lksi_onednn_choose_convolution_storage(const lks_device *device, const lksi_lowering *user,
                                                  lksi_layout *storage);

#endif
