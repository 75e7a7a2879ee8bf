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

/* Rows [begin, end): their parts of dw and db, from zero. */
static void run_block(const lksi_kernel *kernel, void *const *in, float *dx, int64_t begin, int64_t end, float *dw,
                      float *db, float *normalized) {
    const lksi_layer_norm_loops *loops = LKSI_ISA_PICK(lksi_layer_norm_loops);
    int64_t k = lksi_tensor_columns(&kernel->lowering.inputs[0]);
    const float *x = in[0], *dy = in[1], *means = in[3], *inverses = in[4];
    memset(dw, 0, (size_t)k * sizeof *dw);
    memset(db, 0, (size_t)k * sizeof *db);
    for (int64_t i = begin; i < end; i++)
        loops->backward((size_t)k, x + i * k, dy + i * k, in[2], means[i], inverses[i], dx + i * k, dw, db, normalized);
}

/* In blocks of rows, as lksi_row_loops' sum_rows adds them up. */
lks_status lksi_run_layer_norm_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    enum { BLOCK_ROWS = 64 };
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    int64_t k = lksi_tensor_columns(&kernel->lowering.inputs[0]), n = lksi_tensor_rows(&kernel->lowering.inputs[0]);
    float *normalized = scratch, *dw = normalized + k, *db = dw + k;
    memset(out[1], 0, (size_t)k * sizeof *dw);
    memset(out[2], 0, (size_t)k * sizeof *db);
    for (int64_t begin = 0; begin < n; begin += BLOCK_ROWS) {
        run_block(kernel, in, out[0], begin, n - begin < BLOCK_ROWS ? n : begin + BLOCK_ROWS, dw, db, normalized);
        rows->accumulate((size_t)k, dw, out[1]);
        rows->accumulate((size_t)k, db, out[2]);
    }
    return LKS_OK;
}
