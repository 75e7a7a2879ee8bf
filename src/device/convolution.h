/* What devices ask about convolutions: where their operands are, and which of them are matrix products. */
#ifndef LKSI_DEVICE_CONVOLUTION_H
#define LKSI_DEVICE_CONVOLUTION_H

#include "device/device.h"

/* Where x, w, y (or their gradients) and b are among an operator's inputs and outputs. */
typedef struct lksi_conv_places {
    int x, w, y, b; /* inputs from 0 on, outputs from LKSI_FIRST_OUTPUT on; LKSI_NOWHERE */
} lksi_conv_places;
enum { LKSI_FIRST_OUTPUT = LKSI_MAX_INPUTS, LKSI_NOWHERE = -1 };
lksi_conv_places lksi_conv_places_of(const lksi_lowering *lowering);
const lksi_tensor *lksi_conv_tensor(const lksi_lowering *lowering, int place);
void lksi_conv_set_layout(lksi_lowering *lowering, int place, lksi_layout layout);

/* Many a convolution has no bias, for a batch norm follows. */
bool lksi_conv_has_bias_gradient(const lksi_lowering *lowering);

/* Whether the only window of a convolution, or of one whose gradient this is, covers the whole image. With images and
 * weights in (N,H,W,C) and (M,h,w,C), an image's row is W*C numbers in a row, and so is what the window sets against
 * it: y (N,M) is a sum over the image's H rows of products x_row (N,W*C) w_row (M,W*C)^T. The rest of the window lies
 * in the padding; its gradient is 0. */
bool lksi_conv_is_whole_window(const lksi_lowering *lowering);

/* Those products' sizes, and where row i of the image and the window's row that meets it begin. */
typedef struct lksi_window_rows {
    int64_t n, m, k;                /* samples, output channels, W*C */
    int64_t count;                  /* rows; 1 where they meet without gaps */
    int64_t x_row, x_sample;        /* elements from row to row, from sample to sample */
    int64_t w_begin, w_row, w_each; /* to the first element that is used, from row to row, from channel to channel */
} lksi_window_rows;
lksi_window_rows lksi_conv_window_rows(const lksi_lowering *lowering);

#endif
