/* Kernels of softmax and its logarithm. */
#include "onednn/kernels.h"
#include "onednn/loops.h"

#include <math.h>
#include <string.h>

/* The number of elements of row i that take part: all, or the first t + 1 if causal (...,T,S). */
static size_t row_count(const lksi_lowering *l, int64_t i) {
    int64_t k = lksi_tensor_columns(&l->inputs[0]);
    if (l->attributes.is_causal == 0) return (size_t)k;
    int64_t t = i % l->inputs[0].dims[l->inputs[0].n_dims - 2];
    return (size_t)(t + 1 < k ? t + 1 : k);
}

lks_status lksi_run_softmax(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    size_t k = (size_t)lksi_tensor_columns(&kernel->lowering.inputs[0]);
    const float *x = in[0];
    float *y = out[0];
    for (int64_t i = 0, n = lksi_tensor_rows(&kernel->lowering.inputs[0]); i < n; i++, x += k, y += k) {
        size_t n_seen = row_count(&kernel->lowering, i);
        float sum = rows->exp_shifted(n_seen, rows->max(n_seen, x), x, y);
        rows->scale_in_place(n_seen, 1 / sum, y);
        memset(y + n_seen, 0, (k - n_seen) * sizeof *y);
    }
    return LKS_OK;
}

lks_status lksi_run_softmax_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    size_t k = (size_t)lksi_tensor_columns(&kernel->lowering.inputs[0]);
    const float *y = in[0], *dy = in[1];
    float *dx = out[0];
    for (int64_t i = 0, n = lksi_tensor_rows(&kernel->lowering.inputs[0]); i < n; i++, y += k, dy += k, dx += k) {
        size_t n_seen = row_count(&kernel->lowering, i);
        rows->softmax_grad(n_seen, y, dy, dx);
        memset(dx + n_seen, 0, (k - n_seen) * sizeof *dx);
    }
    return LKS_OK;
}

lks_status lksi_run_log_softmax(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    size_t k = (size_t)lksi_tensor_columns(&kernel->lowering.inputs[0]);
    const float *x = in[0];
    float *y = out[0];
    for (int64_t i = 0, n = lksi_tensor_rows(&kernel->lowering.inputs[0]); i < n; i++, x += k, y += k) {
        float largest = rows->max(k, x);
        rows->shift_twice(k, largest, logf(rows->exp_shifted(k, largest, x, y)), x, y);
    }
    return LKS_OK;
}

lks_status lksi_run_log_softmax_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    size_t k = (size_t)lksi_tensor_columns(&kernel->lowering.inputs[0]);
    const float *y = in[0], *dy = in[1];
    float *dx = out[0];
    for (int64_t i = 0, n = lksi_tensor_rows(&kernel->lowering.inputs[0]); i < n; i++, y += k, dy += k, dx += k)
        rows->log_softmax_grad(k, y, dy, dx);
    return LKS_OK;
}
