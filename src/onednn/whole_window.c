/* Convolutions with a single window, as products by sgemm.
 *
 * oneDNN 2.6 has no fast path for them. The gradient of the weights for 128 to 128 channels, 3 x 3 on images of 1 x 1,
 * takes 3.5 ms at batch 128, but 0.1 ms as a product (AVX2, one core). */
#include "onednn/whole_window.h"

#include "onednn/alike.h"
#include "onednn/api.h"
#include "onednn/kernels.h"
#include "onednn/layout.h"
#include "onednn/loops.h"

#include <oneapi/dnnl/dnnl_types.h>
#include <string.h>

/* The number of rows that are multiplied (alike.h). */
static int64_t rows_of(lksi_op op, int64_t n) {
    if (op == LKSI_OP_CONV2D_GRAD_WEIGHT) return n;
    return lksi_rows_alike(n, op == LKSI_OP_CONV2D ? LKSI_GEMM_ROWS : LKSI_GEMM_BACK_ROWS);
}

static lks_status multiply(const lksi_window_rows *r, int64_t n, const float *x, const float *w, const float *bias,
                           float *y) {
    for (int64_t i = 0; bias != NULL && i < n; i++) memcpy(y + i * r->m, bias, (size_t)r->m * sizeof *y);
    for (int64_t i = 0; i < r->count; i++)
        LKS_TRY(lksi_dnnl_gemm('N', 'T', n, r->m, r->k, x + i * r->x_row, r->x_sample, w + i * r->w_row, r->w_each,
                               bias != NULL || i > 0 ? 1.0f : 0.0f, y, r->m));
    return LKS_OK;
}

static lks_status forward(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    lksi_window_rows r = lksi_conv_window_rows(l);
    const float *x = in[0], *w = (const float *)in[1] + r.w_begin, *bias = l->n_inputs == 3 ? in[2] : NULL;
    float *y = out[0];
    int64_t n = rows_of(l->op, r.n);
    if (n > r.n) x = scratch, y = lksi_add_zeros(in[0], r.n, r.x_sample, n, scratch);
    LKS_TRY(multiply(&r, n, x, w, bias, y));
    if (n > r.n) y = memcpy(out[0], y, (size_t)(r.n * r.m) * sizeof *y);
    if (kernel->n_epilogues > 0) LKSI_ISA_PICK(lksi_row_loops)->relu_in_place((size_t)(r.n * r.m), y);
    return LKS_OK;
}

static lks_status multiply_back(const lksi_window_rows *r, int64_t n, const float *dy, const float *w, float *dx) {
    for (int64_t i = 0; i < r->count; i++)
        LKS_TRY(lksi_dnnl_gemm('N', 'N', n, r->k, r->m, dy, r->m, w + i * r->w_row, r->w_each, 0.0f, dx + i * r->x_row,
                               r->x_sample));
    return LKS_OK;
}

static lks_status grad_input(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    lksi_window_rows r = lksi_conv_window_rows(&kernel->lowering);
    const float *dy = in[0], *w = (const float *)in[1] + r.w_begin;
    float *dx = out[0];
    int64_t n = rows_of(kernel->lowering.op, r.n);
    if (n > r.n) dy = scratch, dx = lksi_add_zeros(in[0], r.n, r.m, n, scratch);
    LKS_TRY(multiply_back(&r, n, dy, w, dx));
    if (n > r.n) memcpy(out[0], dx, (size_t)(r.n * r.x_sample) * sizeof *dx);
    return LKS_OK;
}

static lks_status grad_weight(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_window_rows r = lksi_conv_window_rows(&kernel->lowering);
    const float *dy = in[0], *x = in[1];
    float *dw = out[0];
    LKSI_ISA_PICK(lksi_row_loops)->sum_rows((size_t)r.n, (size_t)r.m, (size_t)r.m, dy, out[1]);
    memset(dw, 0, (size_t)(r.m * r.w_each) * sizeof *dw);
    for (int64_t i = 0; i < r.count; i++)
        LKS_TRY(lksi_dnnl_gemm('T', 'N', r.m, r.k, r.n, dy, r.m, x + i * r.x_row, r.x_sample, 0.0f,
                               dw + r.w_begin + i * r.w_row, r.w_each));
    return LKS_OK;
}

lksi_layout lksi_onednn_whole_window_storage(const lksi_tensor *w) { return lksi_layout_like(dnnl_acdb, w); }

typedef struct product_kernel {
    const char *name;
    lks_status (*run)(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch);
} product_kernel;

lks_status lksi_onednn_lower_whole_window(const lksi_lowering *lowering, lksi_kernel *kernel) {
    static const product_kernel kernels[] = {{"onednn:conv2d (product)", forward},
                                             {"onednn:conv2d_grad_input (product)", grad_input},
                                             {"onednn:conv2d_grad_weight (product)", grad_weight}};
    const product_kernel *chosen = &kernels[lowering->op - LKSI_OP_CONV2D];
    lksi_conv_places p = lksi_conv_places_of(lowering);
    *kernel = (lksi_kernel){.name = chosen->name, .run = chosen->run, .lowering = *lowering};
    lksi_lowering_make_row_major(&kernel->lowering); /* for y and the bias */
    lksi_conv_set_layout(&kernel->lowering, p.x, lksi_layout_like(dnnl_acdb, lksi_conv_tensor(lowering, p.x)));
    lksi_conv_set_layout(&kernel->lowering, p.w, lksi_onednn_whole_window_storage(lksi_conv_tensor(lowering, p.w)));
    lksi_take_epilogue(lowering, LKSI_OP_RELU, kernel);
    lksi_window_rows r = lksi_conv_window_rows(&kernel->lowering);
    int64_t n = rows_of(lowering->op, r.n);
    if (n > r.n) kernel->scratch_nbytes = (size_t)(n * (r.x_sample + r.m)) * sizeof(float);
    return LKS_OK;
}
