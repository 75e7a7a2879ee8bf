/* Layer normalisation; included by kernels.inc.h. Sums are in double, so that long ones do not lose digits. */

static lks_status layer_norm(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = columns(&kernel->lowering.inputs[0]), n = rows(&kernel->lowering.inputs[0]);
    const REAL *w = in[1], *b = in[2], epsilon = (REAL)kernel->lowering.attributes.epsilon;
    REAL *means = out[1], *inverses = out[2];
    for (int64_t i = 0; i < n; i++) {
        const REAL *x = (const REAL *)in[0] + i * k;
        REAL *y = (REAL *)out[0] + i * k;
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < k; j++) sum += (double)x[j];
        double center = sum / (double)k;
        for (int64_t j = 0; j < k; j++) squares += ((double)x[j] - center) * ((double)x[j] - center);
        REAL mean = (REAL)center, inverse = 1 / SQRT((REAL)(squares / (double)k) + epsilon);
        for (int64_t j = 0; j < k; j++) y[j] = (x[j] - mean) * inverse * w[j] + b[j];
        means[i] = mean;
        inverses[i] = inverse;
    }
    return LKS_OK;
}

/* dw and db of layer_norm_grad, some columns at a time. */
static void sum_over_rows(void *const *in, int64_t n, int64_t k, REAL *dw, REAL *db) {
    enum { N_COLUMNS = 64 };
    const REAL *means = in[3], *inverses = in[4];
    for (int64_t first = 0; first < k; first += N_COLUMNS) {
        int64_t n_columns = k - first < N_COLUMNS ? k - first : N_COLUMNS;
        double sums[N_COLUMNS] = {0}, products[N_COLUMNS] = {0};
        for (int64_t i = 0; i < n; i++) {
            const REAL *x = (const REAL *)in[0] + i * k + first, *dy = (const REAL *)in[1] + i * k + first;
            for (int64_t j = 0; j < n_columns; j++) {
                sums[j] += (double)dy[j];
                products[j] += (double)(dy[j] * ((x[j] - means[i]) * inverses[i]));
            }
        }
        for (int64_t j = 0; j < n_columns; j++) dw[first + j] = (REAL)products[j], db[first + j] = (REAL)sums[j];
    }
}

/* With h = (x - mean) inverse and g = dy w: dx = inverse (g - mean of g - h mean of g h); dw = sum of dy h, db = sum of
 * dy over the rows. */
static lks_status layer_norm_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = columns(&kernel->lowering.inputs[0]), n = rows(&kernel->lowering.inputs[0]);
    const REAL *w = in[2], *means = in[3], *inverses = in[4];
    for (int64_t i = 0; i < n; i++) {
        const REAL *x = (const REAL *)in[0] + i * k, *dy = (const REAL *)in[1] + i * k;
        REAL *dx = (REAL *)out[0] + i * k;
        double sum_g = 0, sum_gh = 0;
        for (int64_t j = 0; j < k; j++) {
            sum_g += (double)(dy[j] * w[j]);
            sum_gh += (double)(dy[j] * w[j] * ((x[j] - means[i]) * inverses[i]));
        }
        REAL mean_g = (REAL)(sum_g / (double)k), mean_gh = (REAL)(sum_gh / (double)k);
        for (int64_t j = 0; j < k; j++)
            dx[j] = inverses[i] * (dy[j] * w[j] - mean_g - (x[j] - means[i]) * inverses[i] * mean_gh);
    }
    sum_over_rows(in, n, k, out[1], out[2]);
    return LKS_OK;
}
