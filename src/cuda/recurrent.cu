/* The cells of recurrent layers: one thread per sample and unit. */
#include "cuda/bf16.cuh"
#include "cuda/recurrent.h"

static __device__ void put(lksi_cuda_written to, size_t i, float x) {
    if (to.plain != NULL) to.plain[i] = x;
    if (to.rounded != NULL) to.rounded[i] = lksi_bf16_of(x);
}

static __device__ float logistic(float x) { return 1 / (1 + expf(-x)); }

/* --- forward --- */

__global__ void lstm_forward(lksi_cuda_forward_step s) {
    LKSI_FOR_EACH(unit, (size_t)(s.n * s.m)) {
        int64_t m = s.m, j = (int64_t)unit % m, at = (int64_t)unit / m * s.n_steps + s.t, gate[4];
        float a[4];
        for (int g = 0; g < 4; g++) {
            gate[g] = at * 4 * m + g * m + j;
            a[g] = s.gates[gate[g]] + s.b_ih[g * m + j] + s.b_hh[g * m + j];
            a[g] = g == 2 ? tanhf(a[g]) : logistic(a[g]); /* i f g o */
            s.gates[gate[g]] = a[g];
        }
        float c = a[1] * (s.t == 0 ? s.c0[unit] : s.cells[(at - 1) * m + j]) + a[0] * a[2], h = a[3] * tanhf(c);
        s.cells[at * m + j] = c;
        s.y[at * m + j] = h;
        put(s.h, unit, h);
        if (s.t + 1 < s.n_steps) continue;
        s.h_last[unit] = h;
        s.c_last[unit] = c;
    }
}

__global__ void rnn_forward(lksi_cuda_forward_step s) {
    LKSI_FOR_EACH(unit, (size_t)(s.n * s.m)) {
        int64_t j = (int64_t)unit % s.m, at = ((int64_t)unit / s.m * s.n_steps + s.t) * s.m + j;
        float sum = s.gates[at] + s.b_ih[j] + s.b_hh[j], h = !s.is_relu ? tanhf(sum) : sum < 0 ? 0.0f : sum;
        s.y[at] = h;
        put(s.h, unit, h);
        if (s.t + 1 == s.n_steps) s.h_last[unit] = h;
    }
}

lks_status lksi_cuda_step_forward(lksi_cuda *cuda, const lksi_cuda_forward_step *step) {
    unsigned grid = lksi_grid((size_t)(step->n * step->m));
    if (step->c0 != NULL)
        LKSI_LAUNCH(lstm_forward, grid, LKSI_BLOCK, cuda->stream, *step);
    else
        LKSI_LAUNCH(rnn_forward, grid, LKSI_BLOCK, cuda->stream, *step);
    return lksi_cuda_launched("a recurrent step");
}

/* --- backward --- */

__global__ void lstm_backward(lksi_cuda_backward_step s) {
    LKSI_FOR_EACH(unit, (size_t)(s.n * s.m)) {
        int64_t m = s.m, j = (int64_t)unit % m, at = (int64_t)unit / m * s.n_steps + s.t, first = at * 4 * m + j;
        bool is_last = s.t + 1 == s.n_steps;
        float i = s.gates[first], f = s.gates[first + m], g = s.gates[first + 2 * m], o = s.gates[first + 3 * m];
        float c_before = s.t == 0 ? s.c0[unit] : s.cells[(at - 1) * m + j], tanh_c = tanhf(s.cells[at * m + j]);
        float dh = s.dy[at * m + j] + (is_last ? 0.0f : s.dh[unit]);
        float dc = (is_last ? 0.0f : s.dc[unit]) + dh * o * (1 - tanh_c * tanh_c);
        put(s.dgates, (size_t)first, dc * g * i * (1 - i));
        put(s.dgates, (size_t)(first + m), dc * c_before * f * (1 - f));
        put(s.dgates, (size_t)(first + 2 * m), dc * i * (1 - g * g));
        put(s.dgates, (size_t)(first + 3 * m), dh * tanh_c * o * (1 - o));
        s.dc[unit] = dc * f;
    }
}

__global__ void rnn_backward(lksi_cuda_backward_step s) {
    LKSI_FOR_EACH(unit, (size_t)(s.n * s.m)) {
        int64_t at = ((int64_t)unit / s.m * s.n_steps + s.t) * s.m + (int64_t)unit % s.m;
        float h = s.y[at], dh = s.dy[at] + (s.t + 1 == s.n_steps ? 0.0f : s.dh[unit]);
        put(s.dgates, (size_t)at, dh * (!s.is_relu ? 1 - h * h : h > 0 ? 1.0f : 0.0f));
    }
}

lks_status lksi_cuda_step_backward(lksi_cuda *cuda, const lksi_cuda_backward_step *step) {
    unsigned grid = lksi_grid((size_t)(step->n * step->m));
    if (step->c0 != NULL)
        LKSI_LAUNCH(lstm_backward, grid, LKSI_BLOCK, cuda->stream, *step);
    else
        LKSI_LAUNCH(rnn_backward, grid, LKSI_BLOCK, cuda->stream, *step);
    return lksi_cuda_launched("a recurrent step's gradient");
}

__global__ void states_before(const float *h0, const float *y, int64_t n_steps, int64_t m, lksi_cuda_written to,
                              size_t count) {
    LKSI_FOR_EACH(i, count) {
        int64_t row = (int64_t)i / m, j = (int64_t)i % m;
        put(to, i, row % n_steps == 0 ? h0[row / n_steps * m + j] : y[(row - 1) * m + j]);
    }
}

lks_status lksi_cuda_states_before(lksi_cuda *cuda, const lksi_cuda_backward_step *step, const float *h0,
                                   lksi_cuda_written to) {
    size_t count = (size_t)(step->n * step->n_steps * step->m);
    LKSI_LAUNCH(states_before, lksi_grid(count), LKSI_BLOCK, cuda->stream, h0, step->y, step->n_steps, step->m, to,
                count);
    return lksi_cuda_launched("a recurrent layer's states");
}
