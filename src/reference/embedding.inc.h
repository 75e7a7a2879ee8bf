/* Embedding; included by kernels.inc.h. */

static lks_status embedding(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t v = kernel->lowering.inputs[1].dims[0], k = kernel->lowering.inputs[1].dims[1];
    const int32_t *index = in[0];
    const REAL *w = in[1];
    REAL *y = out[0];
    for (int64_t i = 0, n = count(&kernel->lowering.inputs[0]); i < n; i++) {
        if (index[i] < 0 || index[i] >= v)
            return lksi_error(LKS_ERR_ARGUMENT,
                              "embedding: index %" PRId32 " at position %" PRId64 " of the batch is not 0 to %" PRId64,
                              index[i], i, v - 1);
        memcpy(y + i * k, w + index[i] * k, (size_t)k * sizeof *y);
    }
    return LKS_OK;
}

static lks_status embedding_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t k = kernel->lowering.outputs[0].dims[1];
    const REAL *dy = in[0];
    const int32_t *index = in[1];
    REAL *dw = out[0];
    memset(dw, 0, (size_t)count(&kernel->lowering.outputs[0]) * sizeof *dw);
    for (int64_t i = 0, n = count(&kernel->lowering.inputs[1]); i < n; i++)
        for (int64_t j = 0; j < k; j++) dw[index[i] * k + j] += dy[i * k + j];
    return LKS_OK;
}
