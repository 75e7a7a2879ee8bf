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

lks_status lksi_run_layer_norm_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_layer_norm_loops *loops = LKSI_ISA_PICK(lksi_layer_norm_loops);
    int64_t k = lksi_tensor_columns(&kernel->lowering.inputs[0]), n = lksi_tensor_rows(&kernel->lowering.inputs[0]);
    const float *x = in[0], *dy = in[1], *means = in[3], *inverses = in[4];
    float *dx = out[0];
    memset(out[1], 0, (size_t)k * sizeof *dx);
    memset(out[2], 0, (size_t)k * sizeof *dx);
    for (int64_t i = 0; i < n; i++)
        loops->backward((size_t)k, x + i * k, dy + i * k, in[2], means[i], inverses[i], dx + i * k, out[1], out[2],
                        scratch);
    return LKS_OK;
}
