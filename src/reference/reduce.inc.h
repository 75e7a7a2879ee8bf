/* Sums and means over axes; included by kernels.inc.h. */

static lks_status sum(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_tensor kept = lksi_tensor_without(&kernel->lowering.inputs[0], kernel->lowering.attributes.axes);
    sum_over(&kernel->lowering.inputs[0], in[0], &kept, out[0]);
    return LKS_OK;
}

static lks_status mean(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    LKS_TRY(sum(kernel, in, out, scratch));
    int64_t n = count(&kernel->lowering.outputs[0]), n_each = count(&kernel->lowering.inputs[0]) / n;
    REAL *y = out[0];
    for (int64_t i = 0; i < n; i++) y[i] /= (REAL)n_each;
    return LKS_OK;
}
