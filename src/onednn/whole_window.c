/* With images and weights in (N,H,W,C) and (M,h,w,C), an image's row is W*C numbers in a row, and so is what the window
 * sets against it: y (N,M) is a sum over the image's H rows of products x_row (N,W*C) w_row (M,W*C)^T. The rest of the
 * window lies in the padding; its gradient is 0.
 *
 * oneDNN 2.6 has no fast path for these: the weight's gradient of 128 to 128 channels, 3 x 3 on images of 1 x 1, takes
 * it 3.5 ms at batch 128, and 0.1 ms as a product (AVX2, one core). */
#include "onednn/whole_window.h"

#include "onednn/api.h"
#include "onednn/convolution.h"
#include "onednn/kernels.h"
#include "onednn/layout.h"
#include "onednn/loops.h"

#include <oneapi/dnnl/dnnl_types.h>
#include <string.h>

/* The products' sizes, and where row i of the image and the window's row that meets it begin. */
typedef struct window_rows {
    int64_t n, m, k;                /* samples, output channels, W*C */
    int64_t count;                  /* rows; 1 where they meet without gaps */
    int64_t x_row, x_sample;        /* floats from row to row, from sample to sample */
    int64_t w_begin, w_row, w_each; /* to the first element that is used, from row to row, from channel to channel */
} window_rows;

static const lksi_tensor *x_of(const lksi_lowering *l) { return lksi_conv_tensor(l, lksi_conv_places_of(l).x); }
static const lksi_tensor *w_of(const lksi_lowering *l) { return lksi_conv_tensor(l, lksi_conv_places_of(l).w); }
static const lksi_tensor *y_of(const lksi_lowering *l) { return lksi_conv_tensor(l, lksi_conv_places_of(l).y); }

bool lksi_onednn_is_whole_window(const lksi_lowering *l) {
    const lksi_tensor *x = x_of(l), *w = w_of(l), *y = y_of(l);
    const lksi_attributes *a = &l->attributes;
    for (int i = 0; i < 2; i++) {
        bool covers = a->padding[i] + x->dims[2 + i] <= w->dims[2 + i];
        if (y->dims[2 + i] != 1 || a->dilation[i] != 1 || !covers) return false;
    }
    return a->groups == 1;
}

static window_rows rows_of(const lksi_lowering *l) {
    const lksi_tensor *x = x_of(l), *w = w_of(l);
    int64_t channels = x->dims[1], height = x->dims[2], width = x->dims[3];
    window_rows r = {.n = x->dims[0], .m = w->dims[0], .k = width * channels, .count = height};
    r.x_row = r.k;
    r.x_sample = height * r.k;
    r.w_row = w->dims[3] * channels;
    r.w_each = w->dims[2] * r.w_row;
    r.w_begin = (l->attributes.padding[0] * w->dims[3] + l->attributes.padding[1]) * channels;
    if (r.w_row == r.x_row) r.k *= height, r.count = 1;
    return r;
}

static lks_status forward(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    window_rows r = rows_of(l);
    const float *x = in[0], *w = (const float *)in[1] + r.w_begin;
    float *y = out[0];
    bool has_bias = l->n_inputs == 3;
    for (int64_t i = 0; has_bias && i < r.n; i++) memcpy(y + i * r.m, in[2], (size_t)r.m * sizeof *y);
    for (int64_t i = 0; i < r.count; i++)
        LKS_TRY(lksi_dnnl_gemm('N', 'T', r.n, r.m, r.k, x + i * r.x_row, r.x_sample, w + i * r.w_row, r.w_each,
                               has_bias || i > 0 ? 1.0f : 0.0f, y, r.m));
    if (kernel->n_epilogues > 0) LKSI_ISA_PICK(lksi_row_loops)->relu_in_place((size_t)(r.n * r.m), y);
    return LKS_OK;
}

static lks_status grad_input(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    window_rows r = rows_of(&kernel->lowering);
    const float *dy = in[0], *w = (const float *)in[1] + r.w_begin;
    float *dx = out[0];
    for (int64_t i = 0; i < r.count; i++)
        LKS_TRY(lksi_dnnl_gemm('N', 'N', r.n, r.k, r.m, dy, r.m, w + i * r.w_row, r.w_each, 0.0f, dx + i * r.x_row,
                               r.x_sample));
    return LKS_OK;
}

static lks_status grad_weight(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    window_rows r = rows_of(&kernel->lowering);
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
    lksi_lowering_make_row_major(&kernel->lowering); /* y and the bias */
    lksi_conv_set_layout(&kernel->lowering, p.x, lksi_layout_like(dnnl_acdb, x_of(lowering)));
    lksi_conv_set_layout(&kernel->lowering, p.w, lksi_onednn_whole_window_storage(w_of(lowering)));
    lksi_take_epilogue(lowering, LKSI_OP_RELU, kernel);
    return LKS_OK;
}
