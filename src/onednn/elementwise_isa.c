#include "onednn/elementwise_loops.h"

static void add(const float *a, const float *b, float *y, size_t count) {
    for (size_t i = 0; i < count; i++) y[i] = a[i] + b[i];
}

static void relu(const float *x, const float *unused, float *y, size_t count) {
    (void)unused;
    for (size_t i = 0; i < count; i++) y[i] = x[i] < 0 ? 0 : x[i];
}

static void relu_grad(const float *y, const float *dy, float *dx, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float gradient = dy[i]; /* read always: a conditional read would keep the compiler from using vectors */
        dx[i] = y[i] > 0 ? gradient : 0;
    }
}

extern const lksi_elementwise_loops LKSI_ISA_NAME(lksi_elementwise_loops);
const lksi_elementwise_loops LKSI_ISA_NAME(lksi_elementwise_loops) = {add, relu, relu_grad};
