/* Loops of layer normalisation, one row at a time, in double: the gradient of a row with little spread is a small
 * difference of large terms. Sums use 16 lanes (lanes.h). All sums of a row are made in one pass, over d = x - x[0], so
 * that subtracting the mean afterwards loses almost no digits. */
#include "onednn/lanes.h"
#include "onednn/loops.h"

enum { WIDTH = LKSI_VECTOR / 2, N_VECTORS = LKSI_LANES / WIDTH }; /* in vectors of doubles */

typedef double doubles __attribute__((vector_size(8 * WIDTH)));
typedef float as_many_floats __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

static inline doubles widen(const float *x) { return __builtin_convertvector(*(const as_many_floats *)x, doubles); }

static inline double total(const doubles sum[N_VECTORS]) {
    double lanes[LKSI_LANES];
    memcpy(lanes, sum, sizeof lanes);
    for (int width = LKSI_LANES / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++) lanes[k] += lanes[k + width];
    return lanes[0];
}

typedef struct statistics {
    double mean, inverse; /* 1 / deviation */
} statistics;

static statistics statistics_of(size_t count, float epsilon, double shift, double d, double dd) {
    double mean = d / (double)count, variance = dd / (double)count - mean * mean;
    return (statistics){shift + mean, 1 / sqrt((variance > 0 ? variance : 0) + (double)epsilon)};
}

static statistics look_at(size_t count, float epsilon, const float *x) {
    doubles sum_d[N_VECTORS] = {{0}}, sum_dd[N_VECTORS] = {{0}};
    double shift = (double)x[0];
    size_t i = 0;
    for (; i + LKSI_LANES <= count; i += LKSI_LANES)
        for (int k = 0; k < N_VECTORS; k++) {
            doubles d = widen(x + i + k * WIDTH) - shift;
            sum_d[k] += d;
            sum_dd[k] += d * d;
        }
    double all_d = total(sum_d), all_dd = total(sum_dd);
    for (; i < count; i++) {
        double d = (double)x[i] - shift;
        all_d += d;
        all_dd += d * d;
    }
    return statistics_of(count, epsilon, shift, all_d, all_dd);
}

static void forward(size_t count, float epsilon, const float *x, const float *w, const float *b, float *restrict y,
                    float *mean, float *inverse) {
    statistics s = look_at(count, epsilon, x);
    for (size_t i = 0; i < count; i++) y[i] = (float)(((double)x[i] - s.mean) * s.inverse) * w[i] + b[i];
    *mean = (float)s.mean;
    *inverse = (float)s.inverse;
}

/* The statistics of a row, and the means of g and of g h, where h = (x - mean) inverse and g = dy w. */
static statistics look_back(size_t count, float epsilon, const float *x, const float *dy, const float *w,
                            double *mean_g, double *mean_gh) {
    doubles sum_d[N_VECTORS] = {{0}}, sum_dd[N_VECTORS] = {{0}}, sum_g[N_VECTORS] = {{0}}, sum_gd[N_VECTORS] = {{0}};
    double shift = (double)x[0];
    size_t i = 0;
    for (; i + LKSI_LANES <= count; i += LKSI_LANES)
        for (int k = 0; k < N_VECTORS; k++) {
            size_t at = i + (size_t)(k * WIDTH);
            doubles d = widen(x + at) - shift, g = widen(dy + at) * widen(w + at);
            sum_d[k] += d;
            sum_dd[k] += d * d;
            sum_g[k] += g;
            sum_gd[k] += g * d;
        }
    double all_d = total(sum_d), all_dd = total(sum_dd), all_g = total(sum_g), all_gd = total(sum_gd);
    for (; i < count; i++) {
        double d = (double)x[i] - shift, g = (double)dy[i] * (double)w[i];
        all_d += d;
        all_dd += d * d;
        all_g += g;
        all_gd += g * d;
    }
    statistics s = statistics_of(count, epsilon, shift, all_d, all_dd);
    *mean_g = all_g / (double)count;
    *mean_gh = (all_gd / (double)count - (s.mean - shift) * *mean_g) * s.inverse;
    return s;
}

/* dx = inverse (g - mean of g - h mean of g h) */
static void backward(size_t count, float epsilon, const float *x, const float *dy, const float *w, float *restrict dx,
                     double *restrict dw, double *restrict db) {
    double mean_g, mean_gh;
    statistics s = look_back(count, epsilon, x, dy, w, &mean_g, &mean_gh);
    for (size_t i = 0; i < count; i++) {
        double h = ((double)x[i] - s.mean) * s.inverse, each = (double)dy[i];
        dx[i] = (float)(s.inverse * (each * (double)w[i] - mean_g - h * mean_gh));
        dw[i] += each * h;
        db[i] += each;
    }
}

const lksi_layer_norm_loops LKSI_ISA_NAME(lksi_layer_norm_loops) = {.forward = forward, .backward = backward};
