/* Softmax and its logarithm; included by kernels.inc.h. */

/* The number of elements of row i that take part: all, or the first t + 1 if causal (...,T,S). */
static int64_t row_count(const lksi_lowering *l, int64_t i) {
    int64_t k = columns(&l->inputs[0]);
    if (l->attributes.is_causal == 0) return k;
    int64_t t = i % l->inputs[0].dims[l->inputs[0].n_dims - 2];
    return t + 1 < k ? t + 1 : k;
}

static lks_status softmax(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = columns(&kernel->lowering.inputs[0]);
    for (int64_t i = 0, n = rows(&kernel->lowering.inputs[0]); i < n; i++) {
        int64_t n_seen = row_count(&kernel->lowering, i);
        REAL *y = (REAL *)out[0] + i * k;
        row_softmax((const REAL *)in[0] + i * k, n_seen, y);
        for (int64_t j = n_seen; j < k; j++) y[j] = 0;
    }
    return LKS_OK;
}

static lks_status softmax_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = columns(&kernel->lowering.inputs[0]);
    for (int64_t i = 0, n = rows(&kernel->lowering.inputs[0]); i < n; i++) {
        const REAL *y = (const REAL *)in[0] + i * k, *dy = (const REAL *)in[1] + i * k;
        REAL *dx = (REAL *)out[0] + i * k, sum = 0;
        int64_t n_seen = row_count(&kernel->lowering, i);
        for (int64_t j = 0; j < n_seen; j++) sum += dy[j] * y[j];
        for (int64_t j = 0; j < k; j++) dx[j] = j < n_seen ? y[j] * (dy[j] - sum) : 0;
    }
    return LKS_OK;
}

static lks_status log_softmax(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = columns(&kernel->lowering.inputs[0]);
    for (int64_t i = 0, n = rows(&kernel->lowering.inputs[0]); i < n; i++) {
        const REAL *x = (const REAL *)in[0] + i * k;
        REAL *y = (REAL *)out[0] + i * k, largest = x[0];
        for (int64_t j = 1; j < k; j++) largest = x[j] > largest ? x[j] : largest;
        REAL sum = EXP(x[0] - largest);
        for (int64_t j = 1; j < k; j++) sum += EXP(x[j] - largest);
        REAL log_sum = LOG(sum); /* not added to largest, where it would be lost if largest is large */
        for (int64_t j = 0; j < k; j++) y[j] = (x[j] - largest) - log_sum;
    }
    return LKS_OK;
}

static lks_status log_softmax_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = columns(&kernel->lowering.inputs[0]);
    for (int64_t i = 0, n = rows(&kernel->lowering.inputs[0]); i < n; i++) {
        const REAL *y = (const REAL *)in[0] + i * k, *dy = (const REAL *)in[1] + i * k;
        REAL *dx = (REAL *)out[0] + i * k, sum = 0;
        for (int64_t j = 0; j < k; j++) sum += dy[j];
        for (int64_t j = 0; j < k; j++) dx[j] = dy[j] - EXP(y[j]) * sum;
    }
    return LKS_OK;
}
