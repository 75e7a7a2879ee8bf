/* The CPU device: products by oneDNN's sgemm on plain row-major weights (its blocked inner products measured no better
 * for f32), tanh and sigmoid by its generated loops; what is too small to matter by the reference device. */
#include "onednn/onednn.h"
#include "onednn/api.h"
#include "reference/reference.h"

#include <string.h>

/* A product and the element-wise operators that follow on its result while it is still in the cache. */
typedef struct linear_state {
    lksi_dnnl_eltwise *epilogues[4]; /* NULL for relu */
} linear_state;

/* Not oneDNN's, which turns NaN into 0 and so hides a run that has gone wrong. */
static void relu(float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = y[i] < 0 ? 0 : y[i];
}

static lks_status linear(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    int64_t n = l->inputs[0].dims[0], k = l->inputs[0].dims[1], m = l->inputs[1].dims[0];
    float *y = out[0];
    bool has_bias = l->n_inputs == 3;
    for (int64_t i = 0; has_bias && i < n; i++) memcpy(y + i * m, in[2], (size_t)m * sizeof *y);
    LKS_TRY(lksi_dnnl_gemm('N', 'T', n, m, k, in[0], k, in[1], k, has_bias ? 1.0f : 0.0f, y, m));
    const linear_state *state = kernel->state;
    for (int i = 0; i < kernel->n_epilogues; i++) {
        if (kernel->epilogues[i] == LKSI_OP_RELU)
            relu(y, n * m);
        else
            LKS_TRY(lksi_dnnl_eltwise_run(state->epilogues[i], y, NULL, y));
    }
    return LKS_OK;
}

static lks_status linear_grad_input(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    int64_t n = kernel->lowering.inputs[0].dims[0], m = kernel->lowering.inputs[0].dims[1];
    int64_t k = kernel->lowering.inputs[1].dims[1];
    return lksi_dnnl_gemm('N', 'N', n, k, m, in[0], m, in[1], k, 0.0f, out[0], k);
}

/* Rows that are whole pages apart share their cache sets, and sgemm, which reads a column of rows at a time to pack
 * them, then runs at half its speed (64 x 1024 inputs: 800 us against 400). A copy with longer rows costs 20 us. */
enum { PAGE_FLOATS = 1024, ROW_PADDING = 16 };
static bool rows_collide(int64_t row_length) { return row_length % PAGE_FLOATS == 0; }

static const float *pad_rows(const float *x, int64_t n_rows, int64_t row_length, float *padded) {
    for (int64_t i = 0; i < n_rows; i++)
        memcpy(padded + i * (row_length + ROW_PADDING), x + i * row_length, (size_t)row_length * sizeof *x);
    return padded;
}

static lks_status linear_grad_weight(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    int64_t n = kernel->lowering.inputs[0].dims[0], m = kernel->lowering.inputs[0].dims[1];
    int64_t k = kernel->lowering.inputs[1].dims[1], row = k;
    const float *x = in[1];
    if (rows_collide(k)) {
        x = pad_rows(x, n, k, scratch);
        row += ROW_PADDING;
    }
    return lksi_dnnl_gemm('T', 'N', m, k, n, in[0], m, x, row, 0.0f, out[0], k);
}

static lks_status activation(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    return lksi_dnnl_eltwise_run(kernel->state, in[0], NULL, out[0]);
}

static lks_status activation_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    return lksi_dnnl_eltwise_run(kernel->state, in[0], in[1], out[0]);
}

static void release_linear(lksi_kernel *kernel) {
    linear_state *state = kernel->state;
    for (int i = 0; i < kernel->n_epilogues; i++) lksi_dnnl_eltwise_destroy(state->epilogues[i]);
    lksi_free(state);
}

static void release_eltwise(lksi_kernel *kernel) { lksi_dnnl_eltwise_destroy(kernel->state); }

static lks_status lower_linear(const lksi_lowering *lowering, lksi_kernel *kernel) {
    linear_state *state = lksi_alloc(sizeof *state);
    if (state == NULL) return LKS_ERR_MEMORY;
    *kernel = (lksi_kernel){.name = "onednn:linear",
                            .run = linear,
                            .release = release_linear,
                            .lowering = *lowering,
                            .is_deterministic = true,
                            .state = state};
    int64_t count = lksi_tensor_count(&lowering->outputs[0], 0);
    for (int i = 0; i < lowering->n_epilogues; i++) {
        lks_status status = LKS_OK;
        if (lowering->epilogues[i] != LKSI_OP_RELU)
            status = lksi_dnnl_eltwise_create(&state->epilogues[i], lowering->epilogues[i], count);
        if (status != LKS_OK) {
            release_linear(kernel);
            return status;
        }
        kernel->epilogues[kernel->n_epilogues++] = lowering->epilogues[i];
    }
    return LKS_OK;
}

static lks_status lower_eltwise(const lksi_lowering *lowering, const char *name, bool is_gradient,
                                lksi_kernel *kernel) {
    *kernel = (lksi_kernel){.name = name,
                            .run = is_gradient ? activation_grad : activation,
                            .release = release_eltwise,
                            .lowering = *lowering,
                            .is_deterministic = true};
    lksi_dnnl_eltwise *eltwise;
    LKS_TRY(lksi_dnnl_eltwise_create(&eltwise, lowering->op, lksi_tensor_count(&lowering->outputs[0], 0)));
    kernel->state = eltwise;
    return LKS_OK;
}

static lks_status lower(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel) {
    switch (lowering->op) {
    case LKSI_OP_LINEAR:
        return lower_linear(lowering, kernel);
    case LKSI_OP_LINEAR_GRAD_INPUT:
        *kernel = (lksi_kernel){.name = "onednn:linear_grad_input", .run = linear_grad_input};
        break;
    case LKSI_OP_LINEAR_GRAD_WEIGHT: {
        *kernel = (lksi_kernel){.name = "onednn:linear_grad_weight", .run = linear_grad_weight};
        const lksi_tensor *x = &lowering->inputs[1];
        if (rows_collide(x->dims[1]))
            kernel->scratch_nbytes = (size_t)(x->dims[0] * (x->dims[1] + ROW_PADDING)) * sizeof(float);
        break;
    }
    case LKSI_OP_TANH:
        return lower_eltwise(lowering, "onednn:tanh", false, kernel);
    case LKSI_OP_TANH_GRAD:
        return lower_eltwise(lowering, "onednn:tanh_grad", true, kernel);
    case LKSI_OP_SIGMOID:
        return lower_eltwise(lowering, "onednn:sigmoid", false, kernel);
    case LKSI_OP_SIGMOID_GRAD:
        return lower_eltwise(lowering, "onednn:sigmoid_grad", true, kernel);
    default:
        return lksi_reference_lower(device, lowering, kernel);
    }
    kernel->lowering = *lowering;
    kernel->is_deterministic = true;
    return LKS_OK;
}

extern const lksi_device_ops lksi_onednn_device;
const lksi_device_ops lksi_onednn_device = {
    .name = "cpu", .has_f64 = false, .lower = lower, .update = lksi_reference_update};
