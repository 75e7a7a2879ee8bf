/* The cells of recurrent layers. Every activation is a tanh over a whole row: sigmoid x = (1 + tanh(x / 2)) / 2. Its
 * error is that of rounding a number near 1, which is sufficient for gates. */
#include "onednn/cell.h"

#include "onednn/libm.h"

#include <string.h>

static void tanh_all(float *y, int64_t count) { LKSI_ISA_PICK(lksi_libm_loops)->of[LKSI_OP_TANH](0, y, (size_t)count); }

static void add_and_scale(int64_t count, const float *restrict bias, float factor, float *restrict y) {
    for (int64_t i = 0; i < count; i++) y[i] = factor * (y[i] + bias[i]);
}

static void lstm_states(int64_t m, const float *restrict c_before, float *restrict gates, float *restrict c,
                        float *restrict h) {
    float *restrict i = gates, *restrict f = gates + m, *restrict g = gates + 2 * m, *restrict o = gates + 3 * m;
    for (int64_t j = 0; j < m; j++) {
        i[j] = 0.5f * i[j] + 0.5f, f[j] = 0.5f * f[j] + 0.5f, o[j] = 0.5f * o[j] + 0.5f;
        h[j] = c[j] = f[j] * c_before[j] + i[j] * g[j];
    }
}

static void multiply(int64_t m, const float *restrict x, float *restrict y) {
    for (int64_t j = 0; j < m; j++) y[j] *= x[j];
}

static void lstm(int64_t m, const float *bias, const float *c_before, float *gates, float *c, float *h) {
    add_and_scale(2 * m, bias, 0.5f, gates);
    add_and_scale(m, bias + 2 * m, 1.0f, gates + 2 * m);
    add_and_scale(m, bias + 3 * m, 0.5f, gates + 3 * m);
    tanh_all(gates, 4 * m);
    lstm_states(m, c_before, gates, c, h);
    tanh_all(h, m);
    multiply(m, gates + 3 * m, h);
}

static void lstm_gates_gradient(int64_t m, const float *restrict gates, const float *restrict c_before,
                                const float *restrict tanh_c, const float *restrict dh, float *restrict dc,
                                float *restrict dgates) {
    const float *i = gates, *f = gates + m, *g = gates + 2 * m, *o = gates + 3 * m;
    float *restrict di = dgates, *restrict df = dgates + m, *restrict dg = dgates + 2 * m,
                    *restrict d_o = dgates + 3 * m;
    for (int64_t j = 0; j < m; j++) {
        float dcell = dc[j] + dh[j] * o[j] * (1 - tanh_c[j] * tanh_c[j]);
        di[j] = dcell * g[j] * i[j] * (1 - i[j]);
        df[j] = dcell * c_before[j] * f[j] * (1 - f[j]);
        dg[j] = dcell * i[j] * (1 - g[j] * g[j]);
        d_o[j] = dh[j] * tanh_c[j] * o[j] * (1 - o[j]);
        dc[j] = dcell * f[j];
    }
}

static void lstm_gradient(int64_t m, const float *gates, const float *c_before, const float *c, const float *dh,
                          float *dc, float *tanh_c, float *dgates) {
    memcpy(tanh_c, c, (size_t)m * sizeof *c);
    tanh_all(tanh_c, m);
    lstm_gates_gradient(m, gates, c_before, tanh_c, dh, dc, dgates);
}

static void rnn(int64_t m, bool is_relu, const float *bias, float *h) {
    add_and_scale(m, bias, 1.0f, h);
    if (!is_relu)
        tanh_all(h, m);
    else
        for (int64_t j = 0; j < m; j++) h[j] = h[j] < 0 ? 0 : h[j];
}

static void rnn_gradient(int64_t m, bool is_relu, const float *restrict h, const float *restrict dh,
                         float *restrict dgates) {
    if (is_relu)
        for (int64_t j = 0; j < m; j++) {
            float gradient = dh[j]; /* read unconditionally, so that the loop can be vectorised */
            dgates[j] = h[j] > 0 ? gradient : 0;
        }
    else
        for (int64_t j = 0; j < m; j++) dgates[j] = dh[j] * (1 - h[j] * h[j]);
}

const lksi_cell_kernels LKSI_ISA_NAME(lksi_cell_loops) = {lstm, lstm_gradient, rnn, rnn_gradient};
