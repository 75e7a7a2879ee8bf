/* Dropout, with the random draws of op/dropout.h; included by kernels.inc.h. */

static lks_status dropout(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_dropout_draws d = lksi_dropout_begin(&kernel->lowering.attributes, in[1]);
    int64_t n = kernel->lowering.inputs[0].dims[0], n_each = count(&kernel->lowering.inputs[0]) / n;
    const REAL *x = in[0];
    REAL *y = out[0];
    uint8_t *mask = out[1];
    for (int64_t i = 0; i < n * n_each; i++) {
        uint32_t words[4], element = (uint32_t)(i % n_each), sample = d.first_sample + (uint32_t)(i / n_each);
        lks_philox((uint32_t[]){element / 4, sample, d.stream[0], d.stream[1]}, d.key, words);
        mask[i] = words[element % 4] >= d.threshold;
        y[i] = mask[i] != 0 ? x[i] * (REAL)d.factor : 0;
    }
    return LKS_OK;
}

static lks_status dropout_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const REAL *dy = in[0], factor = (REAL)(1 / (1 - kernel->lowering.attributes.probability));
    const uint8_t *mask = in[1];
    REAL *dx = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.outputs[0]); i < n; i++) dx[i] = mask[i] != 0 ? dy[i] * factor : 0;
    return LKS_OK;
}
