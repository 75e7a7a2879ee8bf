/* The format of samples in bytes, which loaders write and IMAGES reads. */
#ifndef LKSI_OP_IMAGE_H
#define LKSI_OP_IMAGE_H

#include <stdint.h>

enum { LKSI_IMAGE_MAX_CHANNELS = 4 };

/* How to draw a sample. It follows the sample's pixels and need not be aligned. */
typedef struct lksi_draw {
    int16_t down, right; /* pixel (y, x) is the original's (y + down, x + right); outside of the image it is 0 */
    int16_t is_flipped;  /* mirrored left-right, after the shift */
    int16_t unused;
} lksi_draw;

enum { LKSI_DRAW_NBYTES = sizeof(lksi_draw) };

#endif
