/* Loops of layer normalisation, one row at a time. */
#include "onednn/lanes.h"
#include "onednn/loops.h"

static void subtract(size_t count, float mean, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = x[i] - mean;
}

static void scale_and_shift(size_t count, float inverse, const float *restrict w, const float *restrict b,
                            float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = y[i] * inverse * w[i] + b[i];
}

static void forward(size_t count, float epsilon, const float *x, const float *w, const float *b, float *y, float *mean,
                    float *inverse) {
    *mean = lksi_row_sum(count, x) / (float)count;
    subtract(count, *mean, x, y);
    *inverse = 1 / sqrtf(lksi_row_dot(count, y, y) / (float)count + epsilon);
    scale_and_shift(count, *inverse, w, b, y);
}

/* h = (x - mean) inverse; dx becomes dy w for now. */
static void collect(size_t count, const float *restrict x, const float *restrict dy, const float *restrict w,
                    float mean, float inverse, float *restrict dx, float *restrict dw, float *restrict db,
                    float *restrict h) {
    for (size_t i = 0; i < count; i++) {
        h[i] = (x[i] - mean) * inverse;
        dx[i] = dy[i] * w[i];
        dw[i] += dy[i] * h[i];
        db[i] += dy[i];
    }
}

/* dx = inverse (g - mean of g - h mean of g h), g = dy w. */
static void finish(size_t count, float inverse, float mean_g, float mean_gh, const float *restrict h,
                   float *restrict dx) {
    for (size_t i = 0; i < count; i++) dx[i] = inverse * (dx[i] - mean_g - h[i] * mean_gh);
}

static void backward(size_t count, const float *x, const float *dy, const float *w, float mean, float inverse,
                     float *dx, float *dw, float *db, float *normalized) {
    collect(count, x, dy, w, mean, inverse, dx, dw, db, normalized);
    float mean_g = lksi_row_sum(count, dx) / (float)count;
    float mean_gh = lksi_row_dot(count, dx, normalized) / (float)count;
    finish(count, inverse, mean_g, mean_gh, normalized, dx);
}

const lksi_layer_norm_loops LKSI_ISA_NAME(lksi_layer_norm_loops) = {.forward = forward, .backward = backward};
