/* Convolutions with a single window that covers the whole image (device/convolution.h), by cuBLASLt. The rows of images
 * and windows are matrices in place. A convolution would also multiply the padding: 8/9 of everything for windows of
 * 3 x 3 on images of 1 x 1. f32 is multiplied as TF32, as in the other convolutions. The result of bf16 operands is
 * f32.
 */
#include "cuda/product.h"

#include "device/convolution.h"

/* Inputs 0 and 1 are the operands a and b, for all three operators. */
typedef struct whole_window {
    lksi_cuda *cuda;
    bool is_rounded;
    int count;                   /* products, one for each row of the image */
    int64_t a_row, b_row, y_row; /* distance between the operands of consecutive products, in elements */
    int64_t b_begin, y_begin;
    int64_t n_cleared;        /* floats of the weights' gradient to clear because products write only a part; or 0 */
    lksi_cuda_product *first; /* all products but the last; NULL: `last` is used for all */
    lksi_cuda_product *last;
} whole_window;

/* --- lowering --- */

static whole_window window_of(const lks_device *device, const lksi_lowering *l) {
    lksi_window_rows r = lksi_conv_window_rows(l);
    whole_window w = {
        .cuda = lksi_cuda_of(device), .is_rounded = device->product_type == LKS_BF16, .count = (int)r.count};
    if (l->op == LKSI_OP_CONV2D) w.a_row = r.x_row;
    if (l->op == LKSI_OP_CONV2D_GRAD_INPUT) w.y_row = r.x_row;
    if (l->op == LKSI_OP_CONV2D_GRAD_WEIGHT) {
        w.b_row = r.x_row, w.y_row = r.w_row, w.y_begin = r.w_begin;
        w.n_cleared = r.count * r.k < r.w_each ? r.m * r.w_each : 0;
    } else {
        w.b_row = r.w_row, w.b_begin = r.w_begin;
    }
    return w;
}

/* Rows of x and of w begin at multiples of the channels. */
static lksi_cuda_product_shape shape_of(const lksi_lowering *l) {
    lksi_window_rows r = lksi_conv_window_rows(l);
    int64_t channels = lksi_conv_tensor(l, lksi_conv_places_of(l).x)->dims[1];
    if (l->op == LKSI_OP_CONV2D)
        return (lksi_cuda_product_shape){.m = r.n,
                                         .n = r.m,
                                         .k = r.k,
                                         .transpose_b = true,
                                         .a_row = r.x_sample,
                                         .b_row = r.w_each,
                                         .a_unit = channels,
                                         .b_unit = channels};
    if (l->op == LKSI_OP_CONV2D_GRAD_INPUT)
        return (lksi_cuda_product_shape){.m = r.n,
                                         .n = r.k,
                                         .k = r.m,
                                         .b_row = r.w_each,
                                         .y_row = r.x_sample,
                                         .b_unit = channels,
                                         .y_unit = channels};
    return (lksi_cuda_product_shape){.m = r.m,
                                     .n = r.k,
                                     .k = r.n,
                                     .transpose_a = true,
                                     .b_row = r.x_sample,
                                     .y_row = r.w_each,
                                     .b_unit = channels,
                                     .y_unit = channels};
}

_Static_assert(LKSI_CUDA_MOST_WINDOW_ROWS == 2, "products between the first and the last would have to add");

/* Only in the forward pass y is a sum of products. The last product adds to it and applies bias and activation. */
static lks_status make_products(whole_window *w, const lksi_lowering *l, bool is_relu) {
    lksi_cuda_product_shape shape = shape_of(l);
    bool is_sum = l->op == LKSI_OP_CONV2D && w->count > 1;
    shape.op = l->op;
    shape.n_products = 1;
    shape.is_rounded = w->is_rounded;
    shape.is_tf32 = true;
    if (is_sum) LKS_TRY(lksi_cuda_product_create(w->cuda, &shape, &w->first));
    shape.adds = is_sum;
    shape.has_bias = l->op == LKSI_OP_CONV2D && l->n_inputs == 3;
    shape.is_relu = is_relu;
    return lksi_cuda_product_create(w->cuda, &shape, &w->last);
}

static void destroy(whole_window *w) {
    lksi_cuda_product_destroy(w->first);
    lksi_cuda_product_destroy(w->last);
    lksi_free(w);
}

static void release(lksi_kernel *kernel) { destroy(kernel->state); }

/* --- running --- */

static const void *at(const whole_window *w, const void *operand, int64_t i) {
    return (const char *)operand + (size_t)i * (w->is_rounded ? sizeof(uint16_t) : sizeof(float));
}

static size_t count_of(const lksi_lowering *l, int input) { return (size_t)lksi_tensor_count(&l->inputs[input], 0); }

static lks_status multiply(const whole_window *w, const void *a, const void *b, const float *bias, float *y) {
    for (int i = 0; i < w->count; i++) {
        const lksi_cuda_product *product = i + 1 < w->count && w->first != NULL ? w->first : w->last;
        LKS_TRY(lksi_cuda_product_run(product, at(w, a, i * w->a_row), at(w, b, w->b_begin + i * w->b_row), bias,
                                      y + w->y_begin + i * w->y_row));
    }
    return LKS_OK;
}

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    const whole_window *w = kernel->state;
    const void *operands[2];
    char *room = scratch;
    for (int i = 0; i < 2; i++) LKS_TRY(lksi_cuda_product_operand(w->last, in[i], count_of(l, i), &room, &operands[i]));
    if (w->n_cleared > 0)
        LKS_TRY(lksi_cuda_check(cudaMemsetAsync(out[0], 0, (size_t)w->n_cleared * sizeof(float), w->cuda->stream),
                                lksi_op_name(l->op)));
    LKS_TRY(multiply(w, operands[0], operands[1], l->n_inputs == 3 ? in[2] : NULL, out[0]));
    if (!lksi_conv_has_bias_gradient(l)) return LKS_OK;
    return lksi_cuda_sum_columns(w->cuda, in[0], l->inputs[0].dims[0], l->inputs[0].dims[1], room, out[1]);
}

static size_t scratch_nbytes(const whole_window *w, const lksi_lowering *l) {
    size_t rounded = lksi_cuda_operand_nbytes(w->is_rounded, count_of(l, 0)) +
                     lksi_cuda_operand_nbytes(w->is_rounded, count_of(l, 1));
    return rounded + (lksi_conv_has_bias_gradient(l)
                          ? lksi_cuda_sum_columns_nbytes(l->inputs[0].dims[0], l->inputs[0].dims[1])
                          : 0);
}

lks_status lksi_cuda_lower_whole_window(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    static const char *const names[] = {"cuda:conv2d (product)", "cuda:conv2d_grad_input (product)",
                                        "cuda:conv2d_grad_weight (product)"};
    bool is_relu =
        question->op == LKSI_OP_CONV2D && question->n_epilogues > 0 && question->epilogues[0] == LKSI_OP_RELU;
    whole_window *w = lksi_alloc(sizeof *w);
    if (w == NULL) return LKS_ERR_MEMORY;
    *w = window_of(device, question);
    lks_status status = make_products(w, question, is_relu);
    if (status != LKS_OK) {
        destroy(w);
        return status;
    }
    *kernel = (lksi_kernel){.name = names[question->op - LKSI_OP_CONV2D],
                            .run = run,
                            .release = release,
                            .lowering = *question,
                            .epilogues = {LKSI_OP_RELU},
                            .n_epilogues = is_relu,
                            .scratch_nbytes = scratch_nbytes(w, question),
                            .state = w};
    lksi_conv_places p = lksi_conv_places_of(question);
    lksi_lowering_make_row_major(&kernel->lowering); /* y and the bias */
    lksi_conv_set_layout(&kernel->lowering, p.x, lksi_cuda_channels_last(lksi_conv_tensor(question, p.x)));
    lksi_conv_set_layout(&kernel->lowering, p.w, lksi_cuda_channels_last(lksi_conv_tensor(question, p.w)));
    return LKS_OK;
}
