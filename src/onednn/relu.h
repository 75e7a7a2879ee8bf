/* ReLU as an epilogue. */
#ifndef LKSI_ONEDNN_RELU_H
#define LKSI_ONEDNN_RELU_H

#include <stdint.h>

/* y = max(y, 0). Not oneDNN's, which turns NaN into 0 and so hides a run that has gone wrong. */
static inline void lksi_relu_in_place(float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = y[i] < 0 ? 0 : y[i];
}

#endif
