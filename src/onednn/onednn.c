/* The CPU device. oneDNN computes products. Lockstep's own loops (kernels.h) compute what oneDNN does not compute
 * faster. The reference device computes the operators that are too small to matter. */
#include "onednn/onednn.h"

#include "onednn/api.h"
#include "onednn/batch_norm.h"
#include "onednn/convolution.h"
#include "onednn/kernels.h"
#include "onednn/layout.h"
#include "onednn/linear.h"
#include "onednn/pool.h"
#include "onednn/recurrent.h"
#include "onednn/reorder.h"
#include "onednn/rounded_product.h"
#include "reference/reference.h"

#include <string.h>

/* --- all operators --- */

static bool is_rounded_product(const lks_device *device, lksi_op op) {
    return device->product_type == LKS_BF16 && (op == LKSI_OP_LINEAR || op == LKSI_OP_LINEAR_GRAD_INPUT ||
                                                op == LKSI_OP_LINEAR_GRAD_WEIGHT || op == LKSI_OP_MATMUL);
}

static lks_status lower(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    lksi_device_enter(device); /* oneDNN divides the work among threads when a primitive is created */
    lksi_lowering row_major = *question;
    lksi_lowering_make_row_major(&row_major);
    const lksi_lowering *lowering = &row_major;
    if (is_rounded_product(device, lowering->op)) return lksi_onednn_lower_rounded_product(lowering, kernel);
    switch (lowering->op) {
    case LKSI_OP_LINEAR:
        return lksi_onednn_lower_linear(lowering, kernel);
    case LKSI_OP_LINEAR_GRAD_INPUT:
        return lksi_onednn_lower_linear_grad_input(lowering, kernel);
    case LKSI_OP_LINEAR_GRAD_WEIGHT:
        return lksi_onednn_lower_linear_grad_weight(lowering, kernel);
    case LKSI_OP_LSTM:
    case LKSI_OP_RNN:
        return lksi_onednn_lower_recurrent(device, lowering, kernel);
    case LKSI_OP_LSTM_GRAD:
    case LKSI_OP_RNN_GRAD:
        return lksi_onednn_lower_recurrent_grad(device, lowering, kernel);
    case LKSI_OP_REORDER:
        return lksi_onednn_lower_reorder(question, kernel);
    case LKSI_OP_CONV2D:
    case LKSI_OP_CONV2D_GRAD_INPUT:
    case LKSI_OP_CONV2D_GRAD_WEIGHT:
        return lksi_onednn_lower_convolution(device, question, kernel);
    case LKSI_OP_MAX_POOL2D:
    case LKSI_OP_MAX_POOL2D_GRAD:
    case LKSI_OP_AVG_POOL2D:
    case LKSI_OP_AVG_POOL2D_GRAD:
        return lksi_onednn_lower_pool(question, kernel);
    case LKSI_OP_BATCH_NORM:
    case LKSI_OP_BATCH_NORM_INFERENCE:
    case LKSI_OP_BATCH_NORM_GRAD:
    case LKSI_OP_BATCH_NORM_SUMS:
    case LKSI_OP_BATCH_NORM_BY_SUMS:
    case LKSI_OP_BATCH_NORM_GRAD_SUMS:
    case LKSI_OP_BATCH_NORM_GRAD_BY_SUMS:
        return lksi_onednn_lower_batch_norm(question, kernel);
    default:
        if (lksi_onednn_lower_loop(question, kernel)) return LKS_OK;
        return lksi_reference_lower(device, lowering, kernel);
    }
}

static lks_status choose_storage(const lks_device *device, const lksi_lowering *user, int input, lksi_layout *storage) {
    *storage = (lksi_layout){0};
    lksi_device_enter(device);
    bool is_convolved = user->op == LKSI_OP_CONV2D && input == 1;
    return is_convolved ? lksi_onednn_choose_convolution_storage(device, user, storage) : LKS_OK;
}

static const char *instruction_set(const lks_device *device) {
    return lksi_dnnl_isa_text(device->product_type == LKS_BF16);
}

extern const lksi_device_ops lksi_onednn_device;
const lksi_device_ops lksi_onednn_device = {.name = "cpu",
                                            .has_f64 = false,
                                            .instruction_set = instruction_set,
                                            .check_bf16 = lksi_dnnl_check_bf16,
                                            .lower = lower,
                                            .choose_storage = choose_storage,
                                            .update = lksi_reference_update,
                                            .sum_squares = lksi_reference_sum_squares,
                                            .row_product = lksi_onednn_row_product,
                                            .layout_name = lksi_layout_text};
