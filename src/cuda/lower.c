/* Dispatch of operators to the files that lower them. */
#include "cuda/cuda.h"

static lksi_cuda_lower *const lower_by_op[LKSI_OP_COUNT] = {
    [LKSI_OP_FULL] = lksi_cuda_lower_elementwise,
    [LKSI_OP_COPY] = lksi_cuda_lower_elementwise,
    [LKSI_OP_RELU] = lksi_cuda_lower_elementwise,
    [LKSI_OP_RELU_GRAD] = lksi_cuda_lower_elementwise,
    [LKSI_OP_LEAKY_RELU] = lksi_cuda_lower_elementwise,
    [LKSI_OP_LEAKY_RELU_GRAD] = lksi_cuda_lower_elementwise,
    [LKSI_OP_GELU] = lksi_cuda_lower_elementwise,
    [LKSI_OP_GELU_GRAD] = lksi_cuda_lower_elementwise,
    [LKSI_OP_TANH] = lksi_cuda_lower_elementwise,
    [LKSI_OP_TANH_GRAD] = lksi_cuda_lower_elementwise,
    [LKSI_OP_SIGMOID] = lksi_cuda_lower_elementwise,
    [LKSI_OP_SIGMOID_GRAD] = lksi_cuda_lower_elementwise,
    [LKSI_OP_EXP] = lksi_cuda_lower_elementwise,
    [LKSI_OP_LOG] = lksi_cuda_lower_elementwise,
    [LKSI_OP_LOG1P] = lksi_cuda_lower_elementwise,
    [LKSI_OP_SIN] = lksi_cuda_lower_elementwise,
    [LKSI_OP_COS] = lksi_cuda_lower_elementwise,
    [LKSI_OP_SQRT] = lksi_cuda_lower_elementwise,
    [LKSI_OP_AT_LEAST] = lksi_cuda_lower_elementwise,
    [LKSI_OP_AT_LEAST_GRAD] = lksi_cuda_lower_elementwise,
    [LKSI_OP_POW] = lksi_cuda_lower_elementwise,
    [LKSI_OP_ABS] = lksi_cuda_lower_elementwise,
    [LKSI_OP_ABS_GRAD] = lksi_cuda_lower_elementwise,
    [LKSI_OP_ADD_SCALAR] = lksi_cuda_lower_elementwise,
    [LKSI_OP_SCALE] = lksi_cuda_lower_elementwise,
    [LKSI_OP_ADD] = lksi_cuda_lower_binary,
    [LKSI_OP_SUB] = lksi_cuda_lower_binary,
    [LKSI_OP_MUL] = lksi_cuda_lower_binary,
    [LKSI_OP_DIV] = lksi_cuda_lower_binary,
    [LKSI_OP_MINIMUM] = lksi_cuda_lower_binary,
    [LKSI_OP_MAXIMUM] = lksi_cuda_lower_binary,
    [LKSI_OP_SHARE] = lksi_cuda_lower_binary,
    [LKSI_OP_EXPAND] = lksi_cuda_lower_binary,
    [LKSI_OP_SUM_TO] = lksi_cuda_lower_reduce,
    [LKSI_OP_REORDER] = lksi_cuda_lower_arrange,
    [LKSI_OP_TRANSPOSE] = lksi_cuda_lower_arrange,
    [LKSI_OP_CONCAT] = lksi_cuda_lower_arrange,
    [LKSI_OP_SLICE] = lksi_cuda_lower_arrange,
    [LKSI_OP_SLICE_GRAD] = lksi_cuda_lower_arrange,
    [LKSI_OP_SUM] = lksi_cuda_lower_reduce,
    [LKSI_OP_MEAN] = lksi_cuda_lower_reduce,
    [LKSI_OP_SUM_ROWS] = lksi_cuda_lower_reduce,
    [LKSI_OP_SOFTMAX] = lksi_cuda_lower_softmax,
    [LKSI_OP_SOFTMAX_GRAD] = lksi_cuda_lower_softmax,
    [LKSI_OP_LOG_SOFTMAX] = lksi_cuda_lower_softmax,
    [LKSI_OP_LOG_SOFTMAX_GRAD] = lksi_cuda_lower_softmax,
    [LKSI_OP_MAX_POOL2D] = lksi_cuda_lower_pool,
    [LKSI_OP_MAX_POOL2D_GRAD] = lksi_cuda_lower_pool,
    [LKSI_OP_AVG_POOL2D] = lksi_cuda_lower_pool,
    [LKSI_OP_AVG_POOL2D_GRAD] = lksi_cuda_lower_pool,
    [LKSI_OP_BATCH_NORM] = lksi_cuda_lower_batch_norm,
    [LKSI_OP_BATCH_NORM_INFERENCE] = lksi_cuda_lower_batch_norm,
    [LKSI_OP_BATCH_NORM_GRAD] = lksi_cuda_lower_batch_norm,
    [LKSI_OP_BATCH_NORM_SUMS] = lksi_cuda_lower_batch_norm,
    [LKSI_OP_BATCH_NORM_BY_SUMS] = lksi_cuda_lower_batch_norm,
    [LKSI_OP_BATCH_NORM_GRAD_SUMS] = lksi_cuda_lower_batch_norm,
    [LKSI_OP_BATCH_NORM_GRAD_BY_SUMS] = lksi_cuda_lower_batch_norm,
    [LKSI_OP_LAYER_NORM] = lksi_cuda_lower_layer_norm,
    [LKSI_OP_LAYER_NORM_GRAD] = lksi_cuda_lower_layer_norm,
    [LKSI_OP_DROPOUT] = lksi_cuda_lower_dropout,
    [LKSI_OP_DROPOUT_GRAD] = lksi_cuda_lower_dropout,
    [LKSI_OP_IMAGES] = lksi_cuda_lower_image,
    [LKSI_OP_EMBEDDING] = lksi_cuda_lower_embedding,
    [LKSI_OP_EMBEDDING_GRAD] = lksi_cuda_lower_embedding,
    [LKSI_OP_CROSS_ENTROPY] = lksi_cuda_lower_loss,
    [LKSI_OP_CROSS_ENTROPY_GRAD] = lksi_cuda_lower_loss,
    [LKSI_OP_MSE] = lksi_cuda_lower_loss,
    [LKSI_OP_MSE_GRAD] = lksi_cuda_lower_loss,
    [LKSI_OP_BCE_WITH_LOGITS] = lksi_cuda_lower_loss,
    [LKSI_OP_BCE_WITH_LOGITS_GRAD] = lksi_cuda_lower_loss,
    [LKSI_OP_COUNT_CORRECT] = lksi_cuda_lower_loss,
    [LKSI_OP_LINEAR] = lksi_cuda_lower_linear,
    [LKSI_OP_LINEAR_GRAD_INPUT] = lksi_cuda_lower_linear,
    [LKSI_OP_LINEAR_GRAD_WEIGHT] = lksi_cuda_lower_linear,
    [LKSI_OP_MATMUL] = lksi_cuda_lower_linear,
    [LKSI_OP_CONV2D] = lksi_cuda_lower_convolution,
    [LKSI_OP_CONV2D_GRAD_INPUT] = lksi_cuda_lower_convolution,
    [LKSI_OP_CONV2D_GRAD_WEIGHT] = lksi_cuda_lower_convolution,
    [LKSI_OP_LSTM] = lksi_cuda_lower_recurrent,
    [LKSI_OP_LSTM_GRAD] = lksi_cuda_lower_recurrent,
    [LKSI_OP_RNN] = lksi_cuda_lower_recurrent,
    [LKSI_OP_RNN_GRAD] = lksi_cuda_lower_recurrent,
};

static const char *const kernel_names[] = {
#define KERNEL_NAME(name, text, least_inputs, most_inputs, n_outputs, family) "cuda:" text,
    LKSI_OP_TABLE(KERNEL_NAME)
#undef KERNEL_NAME
};

void lksi_cuda_answer(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    *kernel = (lksi_kernel){.name = kernel_names[question->op], .lowering = *question, .state = device->state};
}

static lks_status lower(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    lksi_cuda_lower *by_family = lower_by_op[question->op];
    lksi_cuda_memory.enter(device);
    if (by_family == NULL)
        return lksi_error(LKS_ERR_UNSUPPORTED, "the cuda device cannot run %s", lksi_op_name(question->op));
    return by_family(device, question, kernel);
}

/* Weights of convolutions are stored channels-last, as cuDNN reads them fastest. */
static lks_status choose_storage(const lks_device *device, const lksi_lowering *user, int input, lksi_layout *storage) {
    (void)device;
    *storage = (lksi_layout){0};
    if (user->op == LKSI_OP_CONV2D && input == 1) *storage = lksi_cuda_channels_last(&user->inputs[1]);
    return LKS_OK;
}

static const char *layout_name(uint64_t id) { return id == LKSI_CUDA_CHANNELS_LAST ? "channels-last" : "unknown"; }

const lksi_device_ops lksi_cuda_device = {
    .name = "cuda",
    .lower = lower,
    .choose_storage = choose_storage,
    .layout_name = layout_name,
    .memory = &lksi_cuda_memory,
};
