/* Kernels that sum along axes. The inner loop either adds a row to the result's row, or sums a row. */
#include "onednn/kernels.h"
#include "onednn/loops.h"
#include "onednn/walk.h"

#include <string.h>

/* y = the sum of x over the axes on which `kept` has 1, divided by `divisor`. `kept` is the shape of y, with the axes
 * of x. `sums` holds the sums in double, because thousands of rows added in f32 would lose digits. */
static void sum_over(const lksi_tensor *shape, const float *x, const lksi_tensor *kept, double divisor, double *sums,
                     float *y) {
    const lksi_row_loops *rows = LKSI_ISA_PICK(lksi_row_loops);
    lksi_walk w = lksi_walk_broadcast(shape, kept, shape);
    size_t count = (size_t)w.dims[w.n_axes - 1], n_kept = (size_t)lksi_tensor_count(kept, 0);
    bool is_summed = w.a_strides[w.n_axes - 1] == 0;
    memset(sums, 0, n_kept * sizeof *sums);
    do {
        if (is_summed)
            sums[w.a] += rows->sum(count, x + w.b);
        else
            rows->add(count, x + w.b, sums + w.a);
    } while (lksi_walk_next(&w));
    for (size_t i = 0; i < n_kept; i++) y[i] = (float)(sums[i] / divisor);
}

size_t lksi_sums_nbytes(const lksi_lowering *l) {
    return (size_t)lksi_tensor_count(&l->outputs[0], 0) * sizeof(double);
}

lks_status lksi_run_sum_to(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    sum_over(&kernel->lowering.inputs[0], in[0], &kernel->lowering.outputs[0], 1, scratch, out[0]);
    return LKS_OK;
}

static void sum_over_axes(const lksi_lowering *l, const float *x, double divisor, double *sums, float *y) {
    lksi_tensor kept = lksi_tensor_without(&l->inputs[0], l->attributes.axes);
    sum_over(&l->inputs[0], x, &kept, divisor, sums, y);
}

lks_status lksi_run_sum(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    sum_over_axes(&kernel->lowering, in[0], 1, scratch, out[0]);
    return LKS_OK;
}

lks_status lksi_run_mean(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    double n_each = (double)lksi_tensor_count(&l->inputs[0], 0) / (double)lksi_tensor_count(&l->outputs[0], 0);
    sum_over_axes(l, in[0], n_each, scratch, out[0]);
    return LKS_OK;
}

lks_status lksi_run_sum_rows(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *x = &kernel->lowering.inputs[0];
    size_t n_columns = (size_t)lksi_tensor_columns(x);
    LKSI_ISA_PICK(lksi_row_loops)->sum_rows((size_t)lksi_tensor_rows(x), n_columns, n_columns, in[0], out[0]);
    return LKS_OK;
}
