/* Operators that map each element by itself. */
static lks_status relu(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = x[i] < 0 ? 0 : x[i];
    return LKS_OK;
}

static lks_status relu_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *y = in[0], *dy = in[1];
    REAL *restrict dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) {
        REAL gradient = dy[i]; /* read always: a conditional read would keep the compiler from using vectors */
        dx[i] = y[i] > 0 ? gradient : 0;
    }
    return LKS_OK;
}

static lks_status hyperbolic_tangent(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = TANH(x[i]);
    return LKS_OK;
}

static lks_status tanh_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *y = in[0], *dy = in[1];
    REAL *dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) dx[i] = dy[i] * (1 - y[i] * y[i]);
    return LKS_OK;
}

static lks_status sigmoid(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = 1 / (1 + EXP(-x[i]));
    return LKS_OK;
}

static lks_status sigmoid_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *y = in[0], *dy = in[1];
    REAL *dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) dx[i] = dy[i] * y[i] * (1 - y[i]);
    return LKS_OK;
}

static lks_status leaky_relu(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0], slope = (REAL)kernel->lowering.attributes.slope;
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = x[i] > 0 ? x[i] : slope * x[i];
    return LKS_OK;
}

static lks_status leaky_relu_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *y = in[0], *dy = in[1], slope = (REAL)kernel->lowering.attributes.slope;
    REAL *dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) dx[i] = y[i] > 0 ? dy[i] : slope * dy[i];
    return LKS_OK;
}

/* The normal distribution function; erfc keeps what 1 + erf would lose far below 0. */
static REAL normal_below(REAL x) { return (REAL)0.5 * ERFC(-x * (REAL)0.70710678118654752); }

static lks_status gelu(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = x[i] * normal_below(x[i]);
    return LKS_OK;
}

/* dx = dy (P(x) + x p(x)), P the normal distribution function and p its density. */
static lks_status gelu_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0], *dy = in[1];
    REAL *dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) {
        REAL density = (REAL)0.39894228040143268 * EXP(x[i] * x[i] * (REAL)-0.5);
        dx[i] = dy[i] * (normal_below(x[i]) + x[i] * density);
    }
    return LKS_OK;
}

static lks_status scale(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0];
    REAL factor = (REAL)kernel->lowering.attributes.factor, *y = out[0];
    if (kernel->lowering.n_inputs == 2) factor *= *(const REAL *)in[1];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) y[i] = factor * x[i];
    return LKS_OK;
}
