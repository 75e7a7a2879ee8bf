/* Helpers for convolutions on all devices: the positions of their operands, and which convolutions are matrix
 * products. */
#ifndef LKSI_DEVICE_CONVOLUTION_H
#define LKSI_DEVICE_CONVOLUTION_H

#include "device/device.h"

/* The positions of x, w, y (or their gradients) and b among an operator's inputs and outputs. */
typedef struct lksi_conv_places {
    int x, w, y, b; /* inputs count from 0, outputs from LKSI_FIRST_OUTPUT; LKSI_NOWHERE: none */
} lksi_conv_places;
enum { LKSI_FIRST_OUTPUT = LKSI_MAX_INPUTS, LKSI_NOWHERE = -1 };
lksi_conv_places lksi_conv_places_of(const lksi_lowering *lowering);
const lksi_tensor *lksi_conv_tensor(const lksi_lowering *lowering, int place);
void lksi_conv_set_layout(lksi_lowering *lowering, int place, lksi_layout layout);

/* Whether the gradient of the bias is needed. Many convolutions have no bias, because a batch norm follows. */
bool lksi_conv_has_bias_gradient(const lksi_lowering *lowering);

/* Whether a convolution, or the one whose gradient this is, has a single window that covers the whole image. With
 * images and weights in (N,H,W,C) and (M,h,w,C), a row of an image is W*C contiguous numbers, and so are the weights
 * that it meets. Then y (N,M) is a sum over the image's H rows of products x_row (N,W*C) w_row (M,W*C)^T. The rest of
 * the window lies in the padding, and its gradient is 0. */
bool lksi_conv_is_whole_window(const lksi_lowering *lowering);

/* The sizes of these products, and the offsets of row i of the image and of the row of the window that meets it. */
typedef struct lksi_window_rows {
    int64_t n, m, k;         /* samples, output channels, W*C */
    int64_t count;           /* number of rows; 1 if they are contiguous in both */
    int64_t x_row, x_sample; /* strides in elements: from row to row, from sample to sample */
    /* In w: the offset of the first element that is used; strides from row to row, from output channel to output
     * channel */
    int64_t w_begin, w_row, w_each;
} lksi_window_rows;
lksi_window_rows lksi_conv_window_rows(const lksi_lowering *lowering);

#endif
