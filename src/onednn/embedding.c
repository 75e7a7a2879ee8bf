/* Kernel of the embedding's gradient. */
#include "onednn/kernels.h"
#include "onednn/loops.h"
#include "reference/reference.h"

#include <string.h>

lks_status lksi_run_embedding_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    int64_t n = lksi_tensor_count(&kernel->lowering.inputs[1], 0), k = kernel->lowering.outputs[0].dims[1];
    const float *dy = in[0];
    const int32_t *index = in[1];
    float *dw = out[0];
    LKS_TRY(lksi_reference_check_indices(index, n, kernel->lowering.outputs[0].dims[0]));
    memset(dw, 0, lksi_tensor_nbytes(&kernel->lowering.outputs[0]));
    for (int64_t i = 0; i < n; i++) rows->accumulate((size_t)k, dy + i * k, dw + index[i] * k);
    return LKS_OK;
}
