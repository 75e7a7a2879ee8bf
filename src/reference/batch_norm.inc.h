/* Batch norm; included by kernels.inc.h. Sums over the batch are in double, so that long sums do not lose digits. */

typedef struct norm_shape {
    int64_t n, c, spatial;
    REAL epsilon;
} norm_shape;

static norm_shape norm_shape_of(const lksi_kernel *kernel) {
    const lksi_tensor *x = &kernel->lowering.inputs[0];
    return (norm_shape){.n = x->dims[0],
                        .c = x->dims[1],
                        .spatial = count(x) / (x->dims[0] * x->dims[1]),
                        .epsilon = (REAL)kernel->lowering.attributes.epsilon};
}

/* Loops over the elements e of channel j. */
#define NORM_FOR_EACH(s, j, e)                                                                                         \
    for (int64_t i_ = 0; i_ < (s).n; i_++)                                                                             \
        for (int64_t e = (i_ * (s).c + (j)) * (s).spatial, end_ = e + (s).spatial; e < end_; e++)

static void batch_statistics(const norm_shape *s, const REAL *x, int64_t j, REAL *mean, REAL *variance) {
    double sum = 0, squares = 0, n_elements = (double)(s->n * s->spatial);
    NORM_FOR_EACH(*s, j, e) sum += (double)x[e];
    double center = sum / n_elements;
    NORM_FOR_EACH(*s, j, e) squares += ((double)x[e] - center) * ((double)x[e] - center);
    *mean = (REAL)center;
    *variance = (REAL)(squares / n_elements);
}

static void batch_apply(const norm_shape *s, int64_t j, const REAL *const *in, REAL mean, REAL variance, REAL *y) {
    REAL scale = in[1][j] / SQRT(variance + s->epsilon);
    NORM_FOR_EACH(*s, j, e) y[e] = (in[0][e] - mean) * scale + in[2][j];
}

static lks_status batch_norm(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    norm_shape s = norm_shape_of(kernel);
    const REAL *inputs[] = {in[0], in[1], in[2]};
    REAL *mean = out[1], *variance = out[2];
    for (int64_t j = 0; j < s.c; j++) {
        batch_statistics(&s, inputs[0], j, &mean[j], &variance[j]);
        batch_apply(&s, j, inputs, mean[j], variance[j], out[0]);
    }
    return LKS_OK;
}

static lks_status batch_norm_inference(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    norm_shape s = norm_shape_of(kernel);
    const REAL *inputs[] = {in[0], in[1], in[2]}, *mean = in[3], *variance = in[4];
    for (int64_t j = 0; j < s.c; j++) batch_apply(&s, j, inputs, mean[j], variance[j], out[0]);
    return LKS_OK;
}

/* The "gradients" of the running mean and variance. `correction` makes the variance unbiased. */
static void statistics_grad(const norm_shape *s, const REAL *mean, const REAL *variance, double correction,
                            REAL batch_weight, void *const *out) {
    REAL *dmean = out[3], *dvariance = out[4], factor = (REAL)correction * batch_weight;
    for (int64_t j = 0; j < s->c; j++) dmean[j] = batch_weight * mean[j];
    for (int64_t j = 0; j < s->c; j++) dvariance[j] = factor * variance[j];
}

/* With z = (x - mean) / sqrt(variance + eps) over n elements: db = sum dy, dw = sum dy z,
 * dx = w / sqrt(variance + eps) (dy - db / n - z dw / n). */
static lks_status batch_norm_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    norm_shape s = norm_shape_of(kernel);
    const REAL *x = in[0], *dy = in[1], *w = in[2], *mean = in[3], *variance = in[4];
    const REAL *z = kernel->lowering.n_inputs == 7 ? in[6] : NULL;
    REAL *dx = out[0], *dw = out[1], *db = out[2], n_elements = (REAL)(s.n * s.spatial);
    for (int64_t j = 0; j < s.c; j++) {
        REAL inverse = 1 / SQRT(variance[j] + s.epsilon);
        double sum = 0, product = 0;
        NORM_FOR_EACH(s, j, e) dx[e] = z == NULL || z[e] > 0 ? dy[e] : 0;
        NORM_FOR_EACH(s, j, e) sum += (double)dx[e];
        NORM_FOR_EACH(s, j, e) product += (double)(dx[e] * ((x[e] - mean[j]) * inverse));
        db[j] = (REAL)sum;
        dw[j] = (REAL)product;
        NORM_FOR_EACH(s, j, e)
        dx[e] = w[j] * inverse * (dx[e] - db[j] / n_elements - (x[e] - mean[j]) * inverse * (dw[j] / n_elements));
    }
    statistics_grad(&s, mean, variance, lksi_norm_correction(s.n * s.spatial), *(const REAL *)in[5], out);
    return LKS_OK;
}

/* --- the same in two halves, for statistics over the batches of all ranks --- */

static lks_status batch_norm_sums(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    norm_shape s = norm_shape_of(kernel);
    const REAL *x = in[0], *shift = in[1];
    double *sums = out[0];
    sums[0] = (double)(s.n * s.spatial);
    for (int64_t j = 0; j < s.c; j++) {
        double sum = 0, squares = 0, center = (double)shift[j];
        NORM_FOR_EACH(s, j, e) sum += (double)x[e] - center;
        NORM_FOR_EACH(s, j, e) squares += ((double)x[e] - center) * ((double)x[e] - center);
        sums[1 + j] = sum;
        sums[1 + s.c + j] = squares;
    }
    return LKS_OK;
}

static lks_status batch_norm_by_sums(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    norm_shape s = norm_shape_of(kernel);
    const REAL *inputs[] = {in[0], in[1], in[2]}, *shift = in[3];
    REAL *mean = out[1], *variance = out[2], *unbiased = out[3];
    for (int64_t j = 0; j < s.c; j++) {
        lksi_norm_moments moments = lksi_norm_moments_of(in[5], s.c, j, (double)shift[j]);
        mean[j] = (REAL)moments.mean;
        variance[j] = (REAL)moments.variance;
        unbiased[j] = (REAL)moments.unbiased_variance;
        batch_apply(&s, j, inputs, mean[j], variance[j], out[0]);
    }
    return LKS_OK;
}

static lks_status batch_norm_grad_sums(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    norm_shape s = norm_shape_of(kernel);
    const REAL *x = in[0], *dy = in[1], *mean = in[2], *variance = in[3];
    REAL *dw = out[1], *db = out[2];
    double *sums = out[0];
    for (int64_t j = 0; j < s.c; j++) {
        double sum = 0, product = 0;
        NORM_FOR_EACH(s, j, e) sum += (double)dy[e];
        NORM_FOR_EACH(s, j, e) product += (double)dy[e] * (double)(x[e] - mean[j]);
        sums[j] = sum;
        sums[s.c + j] = product;
        db[j] = (REAL)sum;
        dw[j] = (REAL)product / SQRT(variance[j] + s.epsilon);
    }
    statistics_grad(&s, mean, in[4], 1, *(const REAL *)in[5], out);
    return LKS_OK;
}

/* As batch_norm_grad, but db / n and dw / n are means over the elements of all ranks. */
static lks_status batch_norm_grad_by_sums(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    norm_shape s = norm_shape_of(kernel);
    const REAL *x = in[0], *dy = in[1], *w = in[2], *mean = in[3], *variance = in[4];
    const double *sums = in[5], *grad_sums = in[6];
    REAL *dx = out[0];
    for (int64_t j = 0; j < s.c; j++) {
        REAL inverse = 1 / SQRT(variance[j] + s.epsilon);
        REAL dy_mean = (REAL)lksi_norm_mean_of(grad_sums[j], sums[0]);
        REAL slope = (REAL)lksi_norm_mean_of(grad_sums[s.c + j], sums[0]) * inverse * inverse;
        NORM_FOR_EACH(s, j, e) dx[e] = w[j] * inverse * (dy[e] - dy_mean - (x[e] - mean[j]) * slope);
    }
    return LKS_OK;
}
