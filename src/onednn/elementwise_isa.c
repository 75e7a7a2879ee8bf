/* Loops of the element-wise operators. */
#include "onednn/loops.h"
#include "onednn/vector_math.h"

/* All reads are unconditional, because a conditional read would prevent vectorisation. */
#define MAP(name, expression)                                                                                          \
    static void name(size_t count, float p, const float *restrict from, const float *restrict unused,                  \
                     float *restrict to) {                                                                             \
        (void)p, (void)unused;                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const float x = from[i];                                                                                   \
            to[i] = expression;                                                                                        \
        }                                                                                                              \
    }
#define GRADIENT(name, expression)                                                                                     \
    static void name(size_t count, float p, const float *restrict kept, const float *restrict gradient,                \
                     float *restrict to) {                                                                             \
        (void)p;                                                                                                       \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const float y = kept[i], dy = gradient[i];                                                                 \
            to[i] = expression;                                                                                        \
        }                                                                                                              \
    }

/* The derivative of x P(x) is P(x) + x p(x), where p is the density. */
static inline float gelu_slope(float x) {
    float decay = lksi_exp(-0.5f * (x * x));
    return lksi_normal_below(x, decay) + x * (0.398942280f * decay);
}

MAP(relu, x < 0 ? 0 : x)
MAP(leaky_relu, x > 0 ? x : p * x)
MAP(gelu, (x * lksi_normal_below(x, lksi_exp(-0.5f * (x * x)))))
MAP(sigmoid, lksi_sigmoid(x))
MAP(square_root, __builtin_sqrtf(x))
MAP(absolute, __builtin_fabsf(x))
MAP(at_least, x < p ? p : x)
MAP(add_scalar, (x + p))
MAP(scale, (p * x))
GRADIENT(relu_grad, y > 0 ? dy : 0)
GRADIENT(leaky_relu_grad, (y > 0 ? 1 : p) * dy)
GRADIENT(gelu_grad, (dy * gelu_slope(y))) /* its y is x */
GRADIENT(tanh_grad, (dy * (1 - y * y)))
GRADIENT(sigmoid_grad, (dy * y * (1 - y)))
GRADIENT(at_least_grad, y >= p ? dy : 0)
GRADIENT(abs_grad, y > 0 ? dy : y < 0 ? -dy : 0 * y) /* its y is x */

const lksi_elementwise_loops LKSI_ISA_NAME(lksi_elementwise_loops) = {
    .of = {[LKSI_OP_RELU] = relu,
           [LKSI_OP_RELU_GRAD] = relu_grad,
           [LKSI_OP_LEAKY_RELU] = leaky_relu,
           [LKSI_OP_LEAKY_RELU_GRAD] = leaky_relu_grad,
           [LKSI_OP_GELU] = gelu,
           [LKSI_OP_GELU_GRAD] = gelu_grad,
           [LKSI_OP_TANH_GRAD] = tanh_grad,
           [LKSI_OP_SIGMOID] = sigmoid,
           [LKSI_OP_SIGMOID_GRAD] = sigmoid_grad,
           [LKSI_OP_SQRT] = square_root,
           [LKSI_OP_ABS] = absolute,
           [LKSI_OP_ABS_GRAD] = abs_grad,
           [LKSI_OP_AT_LEAST] = at_least,
           [LKSI_OP_AT_LEAST_GRAD] = at_least_grad,
           [LKSI_OP_ADD_SCALAR] = add_scalar,
           [LKSI_OP_SCALE] = scale},
};
