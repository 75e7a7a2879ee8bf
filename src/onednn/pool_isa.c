/* Pooling's loops. The innermost loop goes over channels, element by element: the same bits on every instruction
 * set. */
#include "onednn/pool_loops.h"

#include <string.h>

/* The part of the window of output (p,q) that lies inside x. */
typedef struct window {
    int64_t row, column; /* of element 0; negative in the padding */
    int64_t k, k_end, l, l_end;
} window;

static int64_t at_least(int64_t value, int64_t least) { return value < least ? least : value; }
static int64_t at_most(int64_t value, int64_t most) { return value > most ? most : value; }

static window window_of(const lksi_pool_shape *s, int64_t p, int64_t q) {
    int64_t row = p * s->stride[0] - s->padding[0], column = q * s->stride[1] - s->padding[1];
    return (window){.row = row,
                    .column = column,
                    .k = at_least(-row, 0),
                    .k_end = at_most(s->h - row, s->window[0]),
                    .l = at_least(-column, 0),
                    .l_end = at_most(s->w - column, s->window[1])};
}

static const float *element(const lksi_pool_shape *s, const window *w, int64_t k, int64_t l, const float *x) {
    return x + ((w->row + k) * s->w + w->column + l) * s->lanes;
}

static void take_larger(const float *restrict x, int32_t k, int64_t lanes, float *restrict y, int32_t *restrict index) {
    for (int64_t i = 0; i < lanes; i++) {
        int is_larger = !(x[i] <= y[i]) & (y[i] == y[i]);
        y[i] = is_larger ? x[i] : y[i];
        index[i] = is_larger ? k : index[i];
    }
}

static void largest_at(const lksi_pool_shape *s, const window *w, const float *x, float *y, int32_t *index) {
    int32_t width = (int32_t)s->window[1], first = (int32_t)w->k * width + (int32_t)w->l;
    memcpy(y, element(s, w, w->k, w->l, x), (size_t)s->lanes * sizeof *y);
    for (int64_t i = 0; i < s->lanes; i++) index[i] = first;
    for (int64_t k = w->k; k < w->k_end; k++)
        for (int64_t l = w->l; l < w->l_end; l++)
            take_larger(element(s, w, k, l, x), (int32_t)k * width + (int32_t)l, s->lanes, y, index);
}

static void largest(const lksi_pool_shape *s, const float *x, float *y, int32_t *index) {
    for (int64_t p = 0; p < s->out_h; p++)
        for (int64_t q = 0; q < s->out_w; q++, y += s->lanes, index += s->lanes) {
            window w = window_of(s, p, q);
            largest_at(s, &w, x, y, index);
        }
}

static void clear(const lksi_pool_shape *s, float *dx) { memset(dx, 0, (size_t)(s->h * s->w * s->lanes) * sizeof *dx); }

static void largest_gradient(const lksi_pool_shape *s, const float *dy, const int32_t *index, float *dx) {
    clear(s, dx);
    for (int64_t p = 0; p < s->out_h; p++)
        for (int64_t q = 0; q < s->out_w; q++, dy += s->lanes, index += s->lanes) {
            window w = window_of(s, p, q);
            for (int64_t i = 0; i < s->lanes; i++) {
                int64_t row = w.row + index[i] / s->window[1], column = w.column + index[i] % s->window[1];
                dx[(row * s->w + column) * s->lanes + i] += dy[i];
            }
        }
}

static void mean(const lksi_pool_shape *s, const float *x, float *y) {
    float n_window = (float)(s->window[0] * s->window[1]);
    for (int64_t p = 0; p < s->out_h; p++)
        for (int64_t q = 0; q < s->out_w; q++, y += s->lanes) {
            window w = window_of(s, p, q);
            memset(y, 0, (size_t)s->lanes * sizeof *y);
            for (int64_t k = w.k; k < w.k_end; k++)
                for (int64_t l = w.l; l < w.l_end; l++) {
                    const float *restrict from = element(s, &w, k, l, x);
                    for (int64_t i = 0; i < s->lanes; i++) y[i] += from[i];
                }
            for (int64_t i = 0; i < s->lanes; i++) y[i] /= n_window;
        }
}

static void mean_gradient(const lksi_pool_shape *s, const float *dy, float *dx) {
    float share = 1 / (float)(s->window[0] * s->window[1]);
    clear(s, dx);
    for (int64_t p = 0; p < s->out_h; p++)
        for (int64_t q = 0; q < s->out_w; q++, dy += s->lanes) {
            window w = window_of(s, p, q);
            for (int64_t k = w.k; k < w.k_end; k++)
                for (int64_t l = w.l; l < w.l_end; l++) {
                    float *restrict to = dx + (element(s, &w, k, l, dx) - dx);
                    for (int64_t i = 0; i < s->lanes; i++) to[i] += dy[i] * share;
                }
        }
}

const lksi_pool_loops LKSI_ISA_NAME(lksi_pool_loops) = {largest, largest_gradient, mean, mean_gradient};
