/* The reference kernels, for REAL = float or double. kernels_f32.c, kernels_f64.c and kernels_bf16.c include this file.
 * They are written to be compared with the formulas of op/catalogue.h. Nothing here is tuned. One file per family. */
#include "device/product.h"
#include "op/batch_norm.h"
#include "op/dropout.h"
#include "op/image.h"
#include "reference/reference_internal.h"

#include <inttypes.h>
#include <string.h>

static int64_t count(const lksi_tensor *t) { return lksi_tensor_count(t, 0); }
static int64_t rows(const lksi_tensor *t) { return lksi_tensor_rows(t); }
static int64_t columns(const lksi_tensor *t) { return lksi_tensor_columns(t); }

/* The offset of element i of tensor t, counted in row-major order, if the axes have these strides. */
static int64_t strided(const lksi_tensor *t, const int64_t *strides, int64_t i) {
    int64_t offset = 0;
    for (int axis = t->n_dims; axis-- > 0;) {
        offset += i % t->dims[axis] * strides[axis];
        i /= t->dims[axis];
    }
    return offset;
}

#include "reference/arrange.inc.h"
#include "reference/batch_norm.inc.h"
#include "reference/binary.inc.h"
#include "reference/convolution.inc.h"
#include "reference/dropout.inc.h"
#include "reference/elementwise.inc.h"
#include "reference/embedding.inc.h"
#include "reference/image.inc.h"
#include "reference/layer_norm.inc.h"
#include "reference/linear.inc.h"
#include "reference/loss.inc.h"
#include "reference/pool.inc.h"
#include "reference/recurrent.inc.h"
#include "reference/reduce.inc.h"
#include "reference/softmax.inc.h"

const lksi_reference_run KERNELS[LKSI_OP_COUNT] = {
    [LKSI_OP_COPY] = copy,
    [LKSI_OP_TRANSPOSE] = transpose,
    [LKSI_OP_CONCAT] = concat,
    [LKSI_OP_SLICE] = slice,
    [LKSI_OP_SLICE_GRAD] = slice_grad,

    [LKSI_OP_LINEAR] = linear,
    [LKSI_OP_LINEAR_GRAD_INPUT] = linear_grad_input,
    [LKSI_OP_LINEAR_GRAD_WEIGHT] = linear_grad_weight,
    [LKSI_OP_SUM_ROWS] = sum_to,
    [LKSI_OP_MATMUL] = matmul,

    [LKSI_OP_FULL] = full,
    [LKSI_OP_RELU] = relu,
    [LKSI_OP_RELU_GRAD] = relu_grad,
    [LKSI_OP_LEAKY_RELU] = leaky_relu,
    [LKSI_OP_LEAKY_RELU_GRAD] = leaky_relu_grad,
    [LKSI_OP_GELU] = gelu,
    [LKSI_OP_GELU_GRAD] = gelu_grad,
    [LKSI_OP_TANH] = hyperbolic_tangent,
    [LKSI_OP_TANH_GRAD] = tanh_grad,
    [LKSI_OP_SIGMOID] = sigmoid,
    [LKSI_OP_SIGMOID_GRAD] = sigmoid_grad,
    [LKSI_OP_EXP] = exponential,
    [LKSI_OP_LOG] = logarithm,
    [LKSI_OP_LOG1P] = logarithm_of_more,
    [LKSI_OP_SIN] = sine,
    [LKSI_OP_COS] = cosine,
    [LKSI_OP_SQRT] = square_root,
    [LKSI_OP_POW] = power,
    [LKSI_OP_ABS] = absolute,
    [LKSI_OP_ABS_GRAD] = abs_grad,
    [LKSI_OP_AT_LEAST] = at_least,
    [LKSI_OP_AT_LEAST_GRAD] = at_least_grad,
    [LKSI_OP_ADD_SCALAR] = add_scalar,
    [LKSI_OP_SCALE] = scale,

    [LKSI_OP_ADD] = add,
    [LKSI_OP_SUB] = sub,
    [LKSI_OP_MUL] = mul,
    [LKSI_OP_DIV] = divide,
    [LKSI_OP_MINIMUM] = minimum,
    [LKSI_OP_MAXIMUM] = maximum,
    [LKSI_OP_SHARE] = share,
    [LKSI_OP_EXPAND] = expand,
    [LKSI_OP_SUM_TO] = sum_to,

    [LKSI_OP_SUM] = sum,
    [LKSI_OP_MEAN] = mean,

    [LKSI_OP_SOFTMAX] = softmax,
    [LKSI_OP_SOFTMAX_GRAD] = softmax_grad,
    [LKSI_OP_LOG_SOFTMAX] = log_softmax,
    [LKSI_OP_LOG_SOFTMAX_GRAD] = log_softmax_grad,

    [LKSI_OP_CONV2D] = conv2d,
    [LKSI_OP_CONV2D_GRAD_INPUT] = conv2d_grad_input,
    [LKSI_OP_CONV2D_GRAD_WEIGHT] = conv2d_grad_weight,

    [LKSI_OP_MAX_POOL2D] = max_pool2d,
    [LKSI_OP_MAX_POOL2D_GRAD] = max_pool2d_grad,
    [LKSI_OP_AVG_POOL2D] = avg_pool2d,
    [LKSI_OP_AVG_POOL2D_GRAD] = avg_pool2d_grad,

    [LKSI_OP_BATCH_NORM] = batch_norm,
    [LKSI_OP_BATCH_NORM_INFERENCE] = batch_norm_inference,
    [LKSI_OP_BATCH_NORM_GRAD] = batch_norm_grad,
    [LKSI_OP_BATCH_NORM_SUMS] = batch_norm_sums,
    [LKSI_OP_BATCH_NORM_BY_SUMS] = batch_norm_by_sums,
    [LKSI_OP_BATCH_NORM_GRAD_SUMS] = batch_norm_grad_sums,
    [LKSI_OP_BATCH_NORM_GRAD_BY_SUMS] = batch_norm_grad_by_sums,

    [LKSI_OP_LAYER_NORM] = layer_norm,
    [LKSI_OP_LAYER_NORM_GRAD] = layer_norm_grad,

    [LKSI_OP_DROPOUT] = dropout,
    [LKSI_OP_DROPOUT_GRAD] = dropout_grad,

    [LKSI_OP_IMAGES] = images,

    [LKSI_OP_EMBEDDING] = embedding,
    [LKSI_OP_EMBEDDING_GRAD] = embedding_grad,

    [LKSI_OP_LSTM] = lstm,
    [LKSI_OP_LSTM_GRAD] = lstm_grad,
    [LKSI_OP_RNN] = rnn,
    [LKSI_OP_RNN_GRAD] = rnn_grad,

    [LKSI_OP_CROSS_ENTROPY] = cross_entropy,
    [LKSI_OP_CROSS_ENTROPY_GRAD] = cross_entropy_grad,
    [LKSI_OP_MSE] = mse,
    [LKSI_OP_MSE_GRAD] = mse_grad,
    [LKSI_OP_BCE_WITH_LOGITS] = bce_with_logits,
    [LKSI_OP_BCE_WITH_LOGITS_GRAD] = bce_with_logits_grad,
    [LKSI_OP_COUNT_CORRECT] = count_correct,
};
