/* The reference device: selects a kernel for each operator and type. */
#include "reference/reference_internal.h"

static const char *const kernel_names[] = {
#define KERNEL_NAME(name, text, least, most, n_outputs, family) "reference:" text,
    LKSI_OP_TABLE(KERNEL_NAME)
#undef KERNEL_NAME
};

/* The gradient kernels of recurrent layers keep the gate gradients of one step in scratch, and that of a convolution's
 * weights the sums in double. */
static size_t scratch_nbytes(const lksi_lowering *lowering) {
    if (lowering->op == LKSI_OP_CONV2D_GRAD_WEIGHT)
        return (size_t)(lksi_tensor_count(&lowering->outputs[0], 0) + lksi_tensor_count(&lowering->outputs[1], 0)) *
               sizeof(double);
    if (lowering->op == LKSI_OP_LSTM_GRAD) return lksi_tensor_nbytes(&lowering->outputs[5]);
    return lowering->op == LKSI_OP_RNN_GRAD ? lksi_tensor_nbytes(&lowering->outputs[4]) : 0;
}

static const lksi_reference_run *kernels_of(const lks_device *device) {
    if (device->float_type == LKS_F64) return lksi_reference_kernels_f64;
    return device->product_type == LKS_BF16 ? lksi_reference_kernels_bf16 : lksi_reference_kernels_f32;
}

lks_status lksi_reference_lower(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel) {
    const lksi_reference_run *kernels = kernels_of(device);
    if (kernels[lowering->op] == NULL)
        return lksi_error(LKS_ERR_UNSUPPORTED, "no device can run %s", lksi_op_name(lowering->op));
    *kernel = (lksi_kernel){.name = kernel_names[lowering->op],
                            .run = kernels[lowering->op],
                            .lowering = *lowering,
                            .scratch_nbytes = scratch_nbytes(lowering)};
    lksi_lowering_make_row_major(&kernel->lowering);
    return LKS_OK;
}

extern const lksi_device_ops lksi_reference_device;
const lksi_device_ops lksi_reference_device = {.name = "reference",
                                               .has_f64 = true,
                                               .lower = lksi_reference_lower,
                                               .update = lksi_reference_update,
                                               .sum_squares = lksi_reference_sum_squares};
