/* Loops of the operators that map each element by itself. */
#include "onednn/loops.h"
#include "onednn/vector_math.h"

static void relu(size_t count, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = x[i] < 0 ? 0 : x[i];
}

static void relu_grad(size_t count, const float *restrict y, const float *restrict dy, float *restrict dx) {
    for (size_t i = 0; i < count; i++) {
        float gradient = dy[i]; /* read always: a conditional read would keep the compiler from using vectors */
        dx[i] = y[i] > 0 ? gradient : 0;
    }
}

static void leaky_relu(size_t count, float slope, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = x[i] > 0 ? x[i] : slope * x[i];
}

static void leaky_relu_grad(size_t count, float slope, const float *restrict y, const float *restrict dy,
                            float *restrict dx) {
    for (size_t i = 0; i < count; i++) dx[i] = (y[i] > 0 ? 1 : slope) * dy[i];
}

static void gelu(size_t count, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = x[i] * lksi_normal_below(x[i], lksi_exp(-0.5f * (x[i] * x[i])));
}

/* The derivative of x P(x) is P(x) + x p(x), p the density. */
static void gelu_grad(size_t count, const float *restrict x, const float *restrict dy, float *restrict dx) {
    for (size_t i = 0; i < count; i++) {
        float decay = lksi_exp(-0.5f * (x[i] * x[i]));
        dx[i] = dy[i] * (lksi_normal_below(x[i], decay) + x[i] * (0.398942280f * decay));
    }
}

static void tanh_grad(size_t count, const float *restrict y, const float *restrict dy, float *restrict dx) {
    for (size_t i = 0; i < count; i++) dx[i] = dy[i] * (1 - y[i] * y[i]);
}

static void sigmoid(size_t count, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = lksi_sigmoid(x[i]);
}

static void sigmoid_grad(size_t count, const float *restrict y, const float *restrict dy, float *restrict dx) {
    for (size_t i = 0; i < count; i++) dx[i] = dy[i] * y[i] * (1 - y[i]);
}

static void scale(size_t count, float factor, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < count; i++) y[i] = factor * x[i];
}

const lksi_elementwise_loops LKSI_ISA_NAME(lksi_elementwise_loops) = {
    .relu = relu,
    .relu_grad = relu_grad,
    .leaky_relu = leaky_relu,
    .leaky_relu_grad = leaky_relu_grad,
    .gelu = gelu,
    .gelu_grad = gelu_grad,
    .tanh_grad = tanh_grad,
    .sigmoid = sigmoid,
    .sigmoid_grad = sigmoid_grad,
    .scale = scale,
};
