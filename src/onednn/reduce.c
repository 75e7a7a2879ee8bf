/* Kernels that add up along axes: the inner loop either adds a row to the result's row, or sums it. */
#include "onednn/kernels.h"
#include "onednn/loops.h"
#include "onednn/walk.h"

#include <string.h>

/* y = sum of x over the axes on which `kept`, y's shape beside x's, has 1. */
static void sum_over(const lksi_tensor *shape, const float *x, const lksi_tensor *kept, float *y) {
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    lksi_walk w = lksi_walk_broadcast(shape, kept, shape);
    size_t count = (size_t)w.dims[w.n_axes - 1];
    bool is_summed = w.a_strides[w.n_axes - 1] == 0;
    memset(y, 0, lksi_tensor_nbytes(kept));
    do {
        if (is_summed)
            y[w.a] += (float)rows->sum(count, x + w.b);
        else
            rows->accumulate(count, x + w.b, y + w.a);
    } while (lksi_walk_next(&w));
}

lks_status lksi_run_sum_to(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    sum_over(&kernel->lowering.inputs[0], in[0], &kernel->lowering.outputs[0], out[0]);
    return LKS_OK;
}

lks_status lksi_run_sum(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_tensor kept = lksi_tensor_without(&kernel->lowering.inputs[0], kernel->lowering.attributes.axes);
    sum_over(&kernel->lowering.inputs[0], in[0], &kept, out[0]);
    return LKS_OK;
}

lks_status lksi_run_mean(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    LKS_TRY(lksi_run_sum(kernel, in, out, scratch));
    int64_t n = lksi_tensor_count(&kernel->lowering.outputs[0], 0);
    int64_t n_each = lksi_tensor_count(&kernel->lowering.inputs[0], 0) / n;
    LKSI_ISA_PICK(lksi_row_loops)->scale_in_place((size_t)n, 1 / (float)n_each, out[0]);
    return LKS_OK;
}

lks_status lksi_run_sum_rows(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *x = &kernel->lowering.inputs[0];
    size_t n_columns = (size_t)lksi_tensor_columns(x);
    LKSI_ISA_PICK(lksi_row_loops)->sum_rows((size_t)lksi_tensor_rows(x), n_columns, n_columns, in[0], out[0]);
    return LKS_OK;
}
