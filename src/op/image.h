/* Samples in bytes, as loaders give them and IMAGES reads them. */
#ifndef LKSI_OP_IMAGE_H
#define LKSI_OP_IMAGE_H

#include <stdint.h>

enum { LKSI_IMAGE_MAX_CHANNELS = 4 };

/* How a sample is drawn, behind its pixels, wherever that is: it need not be aligned. */
typedef struct lksi_draw {
    int16_t down, right; /* pixel (y, x) is the original's (y + down, x + right), outside of which all is 0 */
    int16_t is_flipped;  /* left-right, after that */
    int16_t unused;
} lksi_draw;

enum { LKSI_DRAW_NBYTES = sizeof(lksi_draw) };

#endif
