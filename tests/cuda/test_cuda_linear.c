/* labels: no-asan */
/* The linear layer and products of matrices on the cuda device, on the emulated GPU. */
#include "cuda/recording_check.h"

/* Number of rows, of input features, of output features. */
static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {64, 33, 10}, {17, 128, 256}, {300, 4, 2}};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static void linear_with_and_without_bias_and_relu(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES * 8; i++) {
        const int64_t *s = sizes[i / 8];
        check_operator(
            &(operator_case){.op = LKSI_OP_LINEAR,
                             .n_inputs = i % 2 == 0 ? 2 : 3,
                             .inputs = {SHAPE(LKS_F32, s[0], s[1]), SHAPE(LKS_F32, s[2], s[1]), SHAPE(LKS_F32, s[2])},
                             .epilogues = {LKSI_OP_RELU, LKSI_OP_TANH},
                             .n_epilogues = i % 4 < 2 ? 0 : 2,
                             .expected_epilogues = i % 4 < 2 ? 0 : 1,
                             .is_bf16 = i % 8 >= 4});
    }
}

static void linear_of_more_dimensions_and_other_epilogues(void **state) {
    (void)state;
    check_operator(&(operator_case){.op = LKSI_OP_LINEAR,
                                    .n_inputs = 3,
                                    .inputs = {SHAPE(LKS_F32, 2, 3, 5, 7), SHAPE(LKS_F32, 4, 7), SHAPE(LKS_F32, 4)},
                                    .is_channels_last = true,
                                    .epilogues = {LKSI_OP_TANH, LKSI_OP_RELU},
                                    .n_epilogues = 2});
}

static void relu_keeps_what_is_no_number(void **state) {
    (void)state;
    const float x[] = {1, 2, NAN, 3, -4, 5}, w[] = {1, -1, 2, 2, 1, -3}, b[] = {0.5f, -0.5f};
    check_operator(&(operator_case){.op = LKSI_OP_LINEAR,
                                    .n_inputs = 3,
                                    .inputs = {SHAPE(LKS_F32, 2, 3), SHAPE(LKS_F32, 2, 3), SHAPE(LKS_F32, 2)},
                                    .data = {x, w, b},
                                    .epilogues = {LKSI_OP_RELU},
                                    .n_epilogues = 1,
                                    .expected_epilogues = 1});
}

/* For these sums cuBLASLt 13.1 left out the last terms (product.c). */
static void no_term_of_a_long_sum_is_left_out(void **state) {
    (void)state;
    for (int64_t n = 11528; n < 11528 + 64; n += 8)
        check_operator(&(operator_case){.op = LKSI_OP_LINEAR_GRAD_WEIGHT,
                                        .n_inputs = 2,
                                        .inputs = {SHAPE(LKS_F32, n, 1), SHAPE(LKS_F32, n, 8)},
                                        .result = SHAPE(LKS_F32, 1, 8),
                                        .is_bf16 = true,
                                        .tolerance = 1e-5});
}

/* More elements than the largest grid has threads. */
static void operands_of_a_grid_and_more_are_rounded(void **state) {
    (void)state;
    check_operator(&(operator_case){.op = LKSI_OP_LINEAR,
                                    .n_inputs = 2,
                                    .inputs = {SHAPE(LKS_F32, 4200, 4001), SHAPE(LKS_F32, 1, 4001)},
                                    .is_bf16 = true});
}

static void linear_gradients(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES * 2; i++) {
        const int64_t *s = sizes[i / 2];
        check_operator(&(operator_case){.op = LKSI_OP_LINEAR_GRAD_INPUT,
                                        .n_inputs = 2,
                                        .inputs = {SHAPE(LKS_F32, s[0], s[2]), SHAPE(LKS_F32, s[2], s[1])},
                                        .result = SHAPE(LKS_F32, s[0], s[1]),
                                        .is_bf16 = i % 2 == 1});
        check_operator(&(operator_case){.op = LKSI_OP_LINEAR_GRAD_WEIGHT,
                                        .n_inputs = 2,
                                        .inputs = {SHAPE(LKS_F32, s[0], s[2]), SHAPE(LKS_F32, s[0], s[1])},
                                        .result = SHAPE(LKS_F32, s[2], s[1]),
                                        .is_bf16 = i % 2 == 1});
    }
}

static void matmul_with_batches_and_transposes(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES * 8; i++) {
        int64_t m = sizes[i / 8][0], k = sizes[i / 8][1], n = sizes[i / 8][2];
        bool ta = i % 2 == 1, tb = i % 4 >= 2;
        lksi_tensor a = SHAPE(LKS_F32, 2, 3, ta ? k : m, ta ? m : k), b = SHAPE(LKS_F32, 2, 3, tb ? n : k, tb ? k : n);
        check_operator(&(operator_case){.op = LKSI_OP_MATMUL,
                                        .attributes = {.transpose_a = ta, .transpose_b = tb},
                                        .n_inputs = 2,
                                        .inputs = {a, b},
                                        .is_bf16 = i % 8 >= 4});
    }
    check_operator(
        &(operator_case){.op = LKSI_OP_MATMUL, .n_inputs = 2, .inputs = {SHAPE(LKS_F32, 5, 3), SHAPE(LKS_F32, 3, 2)}});
}

/* cuBLAS takes at most 65535 matrices at once. */
static void matmul_of_many_matrices(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        check_operator(&(operator_case){.op = LKSI_OP_MATMUL,
                                        .n_inputs = 2,
                                        .inputs = {SHAPE(LKS_F32, 2, 70001, 1, 3), SHAPE(LKS_F32, 2, 70001, 3, 2)},
                                        .is_bf16 = i == 1});
}

static void recorded_linear(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        check_recording(&(operator_case){.op = LKSI_OP_LINEAR,
                                         .n_inputs = 3,
                                         .inputs = {SHAPE(LKS_F32, 6, 5), SHAPE(LKS_F32, 7, 5), SHAPE(LKS_F32, 7)},
                                         .is_bf16 = i == 1});
}

static void what_cublas_refuses_is_one_clear_line(void **state) {
    (void)state;
    need_emulated_gpu();
    lksi_lowering lowering = {.op = LKSI_OP_LINEAR, .n_inputs = 2, .n_outputs = 1};
    lowering.inputs[0] = SHAPE(LKS_F32, 64, 784);
    lowering.inputs[1] = SHAPE(LKS_F32, 10, 784);
    lowering.outputs[0] = SHAPE(LKS_F32, 64, 10);
    lks_device *device = create_cuda();
    lksi_kernel kernel;
    setenv("LOCKSTEP_EMULATED_GPU", "no-product", 1);
    lks_status status = device->ops->lower(device, &lowering, &kernel);
    unsetenv("LOCKSTEP_EMULATED_GPU");
    assert_int_equal(status, LKS_ERR_UNSUPPORTED);
    assert_string_equal(lks_error_text(), "cuBLAS has no algorithm for linear: 1 product of (64, 784) by (784, 10) "
                                          "transposed, operands f32: CUBLAS_STATUS_NOT_SUPPORTED");
    lks_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(linear_with_and_without_bias_and_relu),
                                       cmocka_unit_test(linear_of_more_dimensions_and_other_epilogues),
                                       cmocka_unit_test(relu_keeps_what_is_no_number),
                                       cmocka_unit_test(no_term_of_a_long_sum_is_left_out),
                                       cmocka_unit_test(operands_of_a_grid_and_more_are_rounded),
                                       cmocka_unit_test(linear_gradients),
                                       cmocka_unit_test(matmul_with_batches_and_transposes),
                                       cmocka_unit_test(matmul_of_many_matrices),
                                       cmocka_unit_test(recorded_linear),
                                       cmocka_unit_test(what_cublas_refuses_is_one_clear_line)};
    return run_cuda_tests("cuda linear", tests);
}
