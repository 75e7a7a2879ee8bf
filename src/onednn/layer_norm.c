/* Kernels of layer normalisation. */
#include "onednn/kernels.h"
#include "onednn/loops.h"

#include <string.h>

lks_status lksi_run_layer_norm(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_layer_norm_loops *loops = LKSI_ISA_PICK(lksi_layer_norm_loops);
    int64_t k = lksi_tensor_columns(&kernel->lowering.inputs[0]), n = lksi_tensor_rows(&kernel->lowering.inputs[0]);
    float epsilon = (float)kernel->lowering.attributes.epsilon, *y = out[0], *means = out[1], *inverses = out[2];
    const float *x = in[0];
    for (int64_t i = 0; i < n; i++)
        loops->forward((size_t)k, epsilon, x + i * k, in[1], in[2], y + i * k, &means[i], &inverses[i]);
    return LKS_OK;
}

/* Mean and deviation of a row are computed again, because in[3] and in[4], being floats, have too few digits. */
lks_status lksi_run_layer_norm_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_layer_norm_loops *loops = LKSI_ISA_PICK(lksi_layer_norm_loops);
    int64_t k = lksi_tensor_columns(&kernel->lowering.inputs[0]), n = lksi_tensor_rows(&kernel->lowering.inputs[0]);
    float epsilon = (float)kernel->lowering.attributes.epsilon, *dx = out[0], *dw = out[1], *db = out[2];
    double *sums = scratch; /* sums for dw, then for db */
    const float *x = in[0], *dy = in[1];
    memset(sums, 0, 2 * (size_t)k * sizeof *sums);
    for (int64_t i = 0; i < n; i++)
        loops->backward((size_t)k, epsilon, x + i * k, dy + i * k, in[2], dx + i * k, sums, sums + k);
    for (int64_t j = 0; j < k; j++) {
        dw[j] = (float)sums[j];
        db[j] = (float)sums[k + j];
    }
    return LKS_OK;
}
