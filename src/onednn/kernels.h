/* The kernels of the cpu device that are Lockstep's own loops: which operators have one. */
#ifndef LKSI_ONEDNN_KERNELS_H
#define LKSI_ONEDNN_KERNELS_H

#include "device/device.h"

/* X(OPERATOR, name, keeps_layout). keeps_layout: every element is treated alike and 0 gives 0, so that the kernel can
 * process tensors of one common layout, padding included, in storage order. */
#define LKSI_LOOP_KERNELS(X)                                                                                           \
    X(COPY, copy, true)                                                                                                \
    X(RELU, elementwise, true)                                                                                         \
    X(RELU_GRAD, elementwise, true)                                                                                    \
    X(LEAKY_RELU, elementwise, true)                                                                                   \
    X(LEAKY_RELU_GRAD, elementwise, true)                                                                              \
    X(GELU, elementwise, true)                                                                                         \
    X(GELU_GRAD, elementwise, true)                                                                                    \
    X(TANH, libm, true)                                                                                                \
    X(TANH_GRAD, elementwise, true)                                                                                    \
    X(SIGMOID, elementwise, false)                                                                                     \
    X(SIGMOID_GRAD, elementwise, true)                                                                                 \
    X(EXP, libm, false)                                                                                                \
    X(LOG, libm, false)                                                                                                \
    X(LOG1P, libm, true)                                                                                               \
    X(SIN, libm, true)                                                                                                 \
    X(COS, libm, false)                                                                                                \
    X(POW, libm, false)                                                                                                \
    X(SQRT, elementwise, true)                                                                                         \
    X(ABS, elementwise, true)                                                                                          \
    X(ABS_GRAD, elementwise, true)                                                                                     \
    X(AT_LEAST, elementwise, false)                                                                                    \
    X(AT_LEAST_GRAD, elementwise, true)                                                                                \
    X(ADD_SCALAR, elementwise, false)                                                                                  \
    X(SCALE, elementwise, true)                                                                                        \
    X(ADD, binary, true)                                                                                               \
    X(SUB, binary, true)                                                                                               \
    X(MUL, binary, true)                                                                                               \
    X(MINIMUM, binary, true)                                                                                           \
    X(MAXIMUM, binary, true)                                                                                           \
    X(SHARE, binary, false)                                                                                            \
    X(DIV, binary, false)                                                                                              \
    X(EXPAND, expand, false)                                                                                           \
    X(SUM_TO, sum_to, false)                                                                                           \
    X(SUM, sum, false)                                                                                                 \
    X(MEAN, mean, false)                                                                                               \
    X(SUM_ROWS, sum_rows, false)                                                                                       \
    X(TRANSPOSE, transpose, false)                                                                                     \
    X(MATMUL, matmul, false)                                                                                           \
    X(SOFTMAX, softmax, false)                                                                                         \
    X(SOFTMAX_GRAD, softmax_grad, false)                                                                               \
    X(LOG_SOFTMAX, log_softmax, false)                                                                                 \
    X(LOG_SOFTMAX_GRAD, log_softmax_grad, false)                                                                       \
    X(LAYER_NORM, layer_norm, false)                                                                                   \
    X(LAYER_NORM_GRAD, layer_norm_grad, false)                                                                         \
    X(DROPOUT, dropout, false)                                                                                         \
    X(DROPOUT_GRAD, dropout_grad, false)                                                                               \
    X(EMBEDDING_GRAD, embedding_grad, false)                                                                           \
    X(CROSS_ENTROPY, cross_entropy, false)                                                                             \
    X(CROSS_ENTROPY_GRAD, cross_entropy_grad, false)                                                                   \
    X(COUNT_CORRECT, count_correct, false)

#define LKSI_LOOP_KERNEL_DECLARE(op, name, keeps_layout)                                                               \
    lks_status lksi_run_##name(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch);
LKSI_LOOP_KERNELS(LKSI_LOOP_KERNEL_DECLARE)
#undef LKSI_LOOP_KERNEL_DECLARE

/* Scratch of SUM, MEAN and SUM_TO. */
size_t lksi_sums_nbytes(const lksi_lowering *lowering);

/* Fills *kernel and returns true if the operator has a loop. */
bool lksi_onednn_lower_loop(const lksi_lowering *question, lksi_kernel *kernel);

/* Takes `op` if it is offered as the kernel's next epilogue. Returns whether it was taken. */
bool lksi_take_epilogue(const lksi_lowering *offer, lksi_op op, lksi_kernel *kernel);

/* The number of stored elements of the kernel's first result, padding included. */
size_t lksi_stored_count(const lksi_kernel *kernel);

#endif
