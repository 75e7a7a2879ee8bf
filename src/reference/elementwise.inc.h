/* Element-wise operators; included by kernels.inc.h. */
#define MAP(name, expression)                                                                                          \
    static lks_status name(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {              \
        (void)scratch;                                                                                                 \
        for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) {                                     \
            const REAL x = ((const REAL *)in[0])[i];                                                                   \
            ((REAL *)out[0])[i] = expression;                                                                          \
        }                                                                                                              \
        return LKS_OK;                                                                                                 \
    }
/* The gradient from dy and `y`, which is y or x as the catalogue says. */
#define GRADIENT(name, expression)                                                                                     \
    static lks_status name(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {              \
        (void)scratch;                                                                                                 \
        for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) {                                     \
            const REAL y = ((const REAL *)in[0])[i], dy = ((const REAL *)in[1])[i];                                    \
            ((REAL *)out[0])[i] = expression;                                                                          \
        }                                                                                                              \
        return LKS_OK;                                                                                                 \
    }
#define NUMBER ((REAL)kernel->lowering.attributes.number)

static REAL logistic(REAL x) { return 1 / (1 + EXP(-x)); }
/* The normal distribution function. erfc keeps the digits that 1 + erf would lose for very negative x. */
static REAL normal_below(REAL x) { return (REAL)0.5 * ERFC(-x * (REAL)0.70710678118654752); }
static REAL normal_density(REAL x) { return (REAL)0.39894228040143268 * EXP(x * x * (REAL)-0.5); }

static lks_status full(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)in, (void)scratch;
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) ((REAL *)out[0])[i] = NUMBER;
    return LKS_OK;
}

MAP(relu, x < 0 ? 0 : x)
MAP(leaky_relu, x > 0 ? x : NUMBER * x)
MAP(gelu, (x * normal_below(x)))
MAP(hyperbolic_tangent, TANH(x))
MAP(sigmoid, logistic(x))
MAP(exponential, EXP(x))
MAP(logarithm, LOG(x))
MAP(logarithm_of_more, LOG1P(x))
MAP(sine, SIN(x))
MAP(cosine, COS(x))
MAP(square_root, SQRT(x))
MAP(power, POW(x, NUMBER))
MAP(absolute, ABS(x))
MAP(at_least, x < NUMBER ? NUMBER : x)
MAP(add_scalar, x + NUMBER)
GRADIENT(relu_grad, y > 0 ? dy : 0)
GRADIENT(leaky_relu_grad, y > 0 ? dy : NUMBER * dy)
GRADIENT(gelu_grad, (dy * (normal_below(y) + y * normal_density(y))))
GRADIENT(tanh_grad, (dy * (1 - y * y)))
GRADIENT(sigmoid_grad, (dy * y * (1 - y)))
GRADIENT(at_least_grad, y >= NUMBER ? dy : 0)
GRADIENT(abs_grad, y > 0 ? dy : y < 0 ? -dy : 0 * y)
#undef MAP
#undef GRADIENT
#undef NUMBER

static lks_status scale(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL factor = (REAL)kernel->lowering.attributes.number, *y = out[0];
    if (kernel->lowering.n_inputs == 2) factor *= *(const REAL *)in[1];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = factor * x[i];
    return LKS_OK;
}
