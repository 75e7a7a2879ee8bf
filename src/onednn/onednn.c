/* The CPU device: products, tanh and sigmoid by oneDNN; what is too small to matter by the reference device. */
#include "onednn/onednn.h"

#include "onednn/api.h"
#include "onednn/batch_norm.h"
#include "onednn/convolution.h"
#include "onednn/elementwise.h"
#include "onednn/layout.h"
#include "onednn/linear.h"
#include "onednn/pool.h"
#include "onednn/reorder.h"
#include "reference/reference.h"

static lks_status activation(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    return lksi_dnnl_eltwise_run(kernel->state, in[0], NULL, out[0]);
}

static lks_status activation_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    return lksi_dnnl_eltwise_run(kernel->state, in[0], in[1], out[0]);
}

static void release_eltwise(lksi_kernel *kernel) { lksi_dnnl_eltwise_destroy(kernel->state); }

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

/* Operators that have layouts to choose. */
static lks_status lower_in_layouts(const lksi_lowering *question, lksi_kernel *kernel, bool *is_taken) {
    *is_taken = true;
    switch (question->op) {
    case LKSI_OP_REORDER:
        return lksi_onednn_lower_reorder(question, kernel);
    case LKSI_OP_CONV2D:
    case LKSI_OP_CONV2D_GRAD_INPUT:
    case LKSI_OP_CONV2D_GRAD_WEIGHT:
        return lksi_onednn_lower_convolution(question, kernel);
    case LKSI_OP_MAX_POOL2D:
    case LKSI_OP_MAX_POOL2D_GRAD:
    case LKSI_OP_AVG_POOL2D:
    case LKSI_OP_AVG_POOL2D_GRAD:
        return lksi_onednn_lower_pool(question, kernel);
    case LKSI_OP_BATCH_NORM:
    case LKSI_OP_BATCH_NORM_INFERENCE:
    case LKSI_OP_BATCH_NORM_GRAD:
        return lksi_onednn_lower_batch_norm(question, kernel);
    default:
        *is_taken = lksi_onednn_is_elementwise(question);
        return *is_taken ? lksi_onednn_lower_elementwise(question, kernel) : LKS_OK;
    }
}

static lks_status lower(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    bool is_taken;
    lksi_device_enter(device); /* oneDNN divides the work when a primitive is made */
    LKS_TRY(lower_in_layouts(question, kernel, &is_taken));
    if (is_taken) return LKS_OK;
    lksi_lowering row_major = *question;
    lksi_lowering_make_row_major(&row_major);
    const lksi_lowering *lowering = &row_major;
    switch (lowering->op) {
    case LKSI_OP_LINEAR:
        return lksi_onednn_lower_linear(lowering, kernel);
    case LKSI_OP_LINEAR_GRAD_INPUT:
        return lksi_onednn_lower_linear_grad_input(lowering, kernel);
    case LKSI_OP_LINEAR_GRAD_WEIGHT:
        return lksi_onednn_lower_linear_grad_weight(lowering, kernel);
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
}

static lks_status choose_storage(const lks_device *device, const lksi_lowering *user, int input, lksi_layout *storage) {
    *storage = (lksi_layout){0};
    lksi_device_enter(device);
    bool is_kernel = user->op == LKSI_OP_CONV2D && input == 1;
    return is_kernel ? lksi_onednn_choose_convolution_storage(user, storage) : LKS_OK;
}

extern const lksi_device_ops lksi_onednn_device;
const lksi_device_ops lksi_onednn_device = {.name = "cpu",
                                            .has_f64 = false,
                                            .lower = lower,
                                            .choose_storage = choose_storage,
                                            .update = lksi_reference_update,
                                            .sum_squares = lksi_reference_sum_squares,
                                            .layout_name = lksi_layout_text};
