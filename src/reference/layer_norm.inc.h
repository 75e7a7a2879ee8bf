/* Layer normalisation; included by kernels.inc.h. */

static lks_status layer_norm(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = columns(&kernel->lowering.inputs[0]), n = rows(&kernel->lowering.inputs[0]);
    const REAL *w = in[1], *b = in[2], epsilon = (REAL)kernel->lowering.attributes.epsilon;
    REAL *means = out[1], *inverses = out[2];
    for (int64_t i = 0; i < n; i++) {
        const REAL *x = (const REAL *)in[0] + i * k;
        REAL *y = (REAL *)out[0] + i * k, mean = 0, variance = 0;
        for (int64_t j = 0; j < k; j++) mean += x[j];
        mean /= (REAL)k;
        for (int64_t j = 0; j < k; j++) variance += (x[j] - mean) * (x[j] - mean);
        REAL inverse = 1 / SQRT(variance / (REAL)k + epsilon);
        for (int64_t j = 0; j < k; j++) y[j] = (x[j] - mean) * inverse * w[j] + b[j];
        means[i] = mean;
        inverses[i] = inverse;
    }
    return LKS_OK;
}

/* With h = (x - mean) inverse and g = dy w: dx = inverse (g - mean of g - h mean of g h); dw = sum of dy h, db = sum of
 * dy over the rows. */
static lks_status layer_norm_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = columns(&kernel->lowering.inputs[0]), n = rows(&kernel->lowering.inputs[0]);
    const REAL *w = in[2], *means = in[3], *inverses = in[4];
    REAL *dw = out[1], *db = out[2];
    memset(dw, 0, (size_t)k * sizeof *dw);
    memset(db, 0, (size_t)k * sizeof *db);
    for (int64_t i = 0; i < n; i++) {
        const REAL *x = (const REAL *)in[0] + i * k, *dy = (const REAL *)in[1] + i * k;
        REAL *dx = (REAL *)out[0] + i * k, mean_g = 0, mean_gh = 0;
        for (int64_t j = 0; j < k; j++) {
            REAL h = (x[j] - means[i]) * inverses[i];
            mean_g += dy[j] * w[j] / (REAL)k;
            mean_gh += dy[j] * w[j] * h / (REAL)k;
            dw[j] += dy[j] * h;
            db[j] += dy[j];
        }
        for (int64_t j = 0; j < k; j++)
            dx[j] = inverses[i] * (dy[j] * w[j] - mean_g - (x[j] - means[i]) * inverses[i] * mean_gh);
    }
    return LKS_OK;
}
