/* Kernels of dropout, with the random draws of op/dropout.h. */
#include "op/dropout.h"

#include "onednn/kernels.h"
#include "onednn/loops.h"

lks_status lksi_run_dropout(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_dropout_loops *loops = LKSI_ISA_PICK(lksi_dropout_loops);
    lksi_dropout_draws d = lksi_dropout_begin(&kernel->lowering.attributes, in[1]);
    int64_t n = kernel->lowering.inputs[0].dims[0], count = lksi_tensor_count(&kernel->lowering.inputs[0], 0);
    uint8_t *mask = out[1];
    for (int64_t i = 0; i < n; i++)
        loops->draw((size_t)(count / n), d.key, d.first_sample + (uint32_t)i, d.stream, d.threshold,
                    mask + i * (count / n));
    loops->apply((size_t)count, (float)d.factor, in[0], mask, out[0]);
    return LKS_OK;
}

lks_status lksi_run_dropout_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    float factor = (float)(1 / (1 - kernel->lowering.attributes.probability));
    int64_t count = lksi_tensor_count(&kernel->lowering.outputs[0], 0);
    LKSI_ISA_PICK(lksi_dropout_loops)->apply((size_t)count, factor, in[0], in[1], out[0]);
    return LKS_OK;
}
