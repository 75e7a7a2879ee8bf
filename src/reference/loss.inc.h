/* Losses, and the count of correct predictions; included by kernels.inc.h. */

/* p = softmax(x), with exponents shifted by the maximum. Returns (1 - s) -log p[label] + s mean of -log p. */
static REAL row_cross_entropy(const REAL *x, int64_t n_classes, int32_t label, REAL smoothing, REAL *p) {
    REAL largest = x[0];
    for (int64_t j = 1; j < n_classes; j++) largest = x[j] > largest ? x[j] : largest;
    REAL sum = p[0] = EXP(x[0] - largest), sum_of_x = x[0] - largest;
    for (int64_t j = 1; j < n_classes; j++) {
        sum += p[j] = EXP(x[j] - largest);
        sum_of_x += x[j] - largest;
    }
    for (int64_t j = 0; j < n_classes; j++) p[j] /= sum;
    if (smoothing == 0) return LOG(sum) - (x[label] - largest);
    return LOG(sum) - (1 - smoothing) * (x[label] - largest) - smoothing * (sum_of_x / (REAL)n_classes);
}

/* p of an ignored row, which has no valid label. */
static void row_softmax(const REAL *x, int64_t n_classes, REAL *p) { (void)row_cross_entropy(x, n_classes, 0, 0, p); }

static lks_status cross_entropy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_attributes *a = &kernel->lowering.attributes;
    int64_t n = rows(&kernel->lowering.inputs[0]), c = columns(&kernel->lowering.inputs[0]);
    const REAL *x = in[0];
    const int32_t *label = in[1];
    REAL *loss = out[0], *p = out[1];
    int64_t n_counted;
    LKS_TRY(lksi_reference_check_labels(&kernel->lowering, label, &n_counted));
    double sum = 0; /* in double, so that the sum over a long batch does not lose digits */
    for (int64_t i = 0; i < n; i++)
        if (a->has_ignored != 0 && label[i] == a->ignored)
            row_softmax(x + i * c, c, p + i * c);
        else
            sum += (double)row_cross_entropy(x + i * c, c, label[i], (REAL)a->smoothing, p + i * c);
    *loss = n_counted > 0 ? (REAL)(sum / (double)n_counted) : 0;
    return LKS_OK;
}

static lks_status cross_entropy_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_attributes *a = &kernel->lowering.attributes;
    int64_t n = rows(&kernel->lowering.inputs[0]), c = columns(&kernel->lowering.inputs[0]), n_counted;
    const REAL *p = in[0], *dloss = in[2];
    const int32_t *label = in[1];
    LKS_TRY(lksi_reference_check_labels(&kernel->lowering, label, &n_counted)); /* may be set after forward */
    REAL *dx = out[0], factor = *dloss / (REAL)n_counted;
    REAL target = (REAL)(1 - a->smoothing), elsewhere = (REAL)(a->smoothing / (double)c);
    for (int64_t i = 0; i < n; i++) {
        bool is_ignored = a->has_ignored != 0 && label[i] == a->ignored;
        for (int64_t j = 0; j < c; j++) dx[i * c + j] = is_ignored ? 0 : (p[i * c + j] - elsewhere) * factor;
        if (!is_ignored) dx[i * c + label[i]] = (p[i * c + label[i]] - elsewhere - target) * factor;
    }
    return LKS_OK;
}

static lks_status count_correct(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_attributes *a = &kernel->lowering.attributes;
    int64_t n = rows(&kernel->lowering.inputs[0]), c = columns(&kernel->lowering.inputs[0]), n_correct = 0;
    const REAL *x = in[0];
    const int32_t *label = in[1];
    REAL *result = out[0];
    for (int64_t i = 0; i < n; i++) {
        int64_t best = 0;
        for (int64_t j = 1; j < c; j++)
            if (x[i * c + j] > x[i * c + best]) best = j;
        bool is_ignored = a->has_ignored != 0 && label[i] == a->ignored;
        n_correct += best == label[i] && !is_ignored;
    }
    *result = (REAL)n_correct;
    return LKS_OK;
}

static lks_status mse(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *a = in[0], *b = in[1];
    int64_t n = count(&kernel->lowering.inputs[0]);
    REAL *loss = out[0];
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)((a[i] - b[i]) * (a[i] - b[i]));
    *loss = (REAL)(sum / (double)n);
    return LKS_OK;
}

static lks_status mse_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *a = in[0], *b = in[1], *dloss = in[2];
    int64_t n = count(&kernel->lowering.outputs[0]);
    REAL *da = out[0], factor = 2 * *dloss / (REAL)n;
    for (int64_t i = 0; i < n; i++) da[i] = (a[i] - b[i]) * factor;
    return LKS_OK;
}

static lks_status bce_with_logits(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0], *t = in[1];
    int64_t n = count(&kernel->lowering.inputs[0]);
    REAL *loss = out[0];
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        /* not max(x, 0) - x t, which is NaN if x is infinite */
        REAL wrong = x[i] > 0 ? x[i] * (1 - t[i]) : -x[i] * t[i], magnitude = x[i] > 0 ? x[i] : -x[i];
        sum += (double)(wrong + LOG1P(EXP(-magnitude)));
    }
    *loss = (REAL)(sum / (double)n);
    return LKS_OK;
}

/* dx = (sigmoid x - t) dloss / n */
static lks_status bce_with_logits_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *x = in[0], *t = in[1], *dloss = in[2];
    int64_t n = count(&kernel->lowering.outputs[0]);
    REAL *dx = out[0], factor = *dloss / (REAL)n;
    for (int64_t i = 0; i < n; i++) dx[i] = (logistic(x[i]) - t[i]) * factor;
    return LKS_OK;
}
