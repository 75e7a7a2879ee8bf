/* Embedding; included by kernels.inc.h. */

static lks_status embedding(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = count(&kernel->lowering.inputs[0]), k = kernel->lowering.inputs[1].dims[1];
    const int32_t *index = in[0];
    const REAL *w = in[1];
    REAL *y = out[0];
    LKS_TRY(lksi_reference_check_indices(index, n, kernel->lowering.inputs[1].dims[0]));
    for (int64_t i = 0; i < n; i++) memcpy(y + i * k, w + index[i] * k, (size_t)k * sizeof *y);
    return LKS_OK;
}

static lks_status embedding_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = count(&kernel->lowering.inputs[1]), k = kernel->lowering.outputs[0].dims[1];
    const REAL *dy = in[0];
    const int32_t *index = in[1];
    REAL *dw = out[0];
    LKS_TRY(lksi_reference_check_indices(index, n, kernel->lowering.outputs[0].dims[0]));
    memset(dw, 0, (size_t)count(&kernel->lowering.outputs[0]) * sizeof *dw);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++) dw[index[i] * k + j] += dy[i * k + j];
    return LKS_OK;
}
