/* labels: no-asan */
/* Recurrent layers of the cuda device, on the emulated GPU. */
#include "cuda/recording_check.h"

/* N, T, K, M. */
static const int64_t sizes[][4] = {{1, 1, 1, 1}, {3, 5, 4, 6}, {2, 7, 3, 5}, {20, 3, 33, 17}, {5, 2, 8, 128}};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* Errors grow over the steps. They may also make operands round to the other neighbour, which adds larger errors. */
#define TOLERANCE 1e-5
#define BF16_TOLERANCE 3e-3

static double tolerance_of(bool is_bf16) { return is_bf16 ? BF16_TOLERANCE : TOLERANCE; }

static void lstm(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES * 2; i++) {
        int64_t n = sizes[i / 2][0], t = sizes[i / 2][1], k = sizes[i / 2][2], m = sizes[i / 2][3];
        check_operator(&(operator_case){.op = LKSI_OP_LSTM,
                                        .n_inputs = 7,
                                        .inputs = {SHAPE(LKS_F32, n, t, k), SHAPE(LKS_F32, n, m), SHAPE(LKS_F32, n, m),
                                                   SHAPE(LKS_F32, 4 * m, k), SHAPE(LKS_F32, 4 * m, m),
                                                   SHAPE(LKS_F32, 4 * m), SHAPE(LKS_F32, 4 * m)},
                                        .tolerance = tolerance_of(i % 2 == 1),
                                        .is_bf16 = i % 2 == 1});
    }
}

static void lstm_gradients(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES * 2; i++) {
        int64_t n = sizes[i / 2][0], t = sizes[i / 2][1], k = sizes[i / 2][2], m = sizes[i / 2][3];
        check_operator(
            &(operator_case){.op = LKSI_OP_LSTM_GRAD,
                             .n_inputs = 9,
                             .inputs = {SHAPE(LKS_F32, n, t, m), SHAPE(LKS_F32, n, t, k), SHAPE(LKS_F32, n, m),
                                        SHAPE(LKS_F32, n, m), SHAPE(LKS_F32, 4 * m, k), SHAPE(LKS_F32, 4 * m, m),
                                        SHAPE(LKS_F32, n, t, m), SHAPE(LKS_F32, n, t, 4 * m), SHAPE(LKS_F32, n, t, m)},
                             .tolerance = tolerance_of(i % 2 == 1),
                             .is_bf16 = i % 2 == 1});
    }
}

static void rnn_of_tanh_and_relu(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES * 4; i++) {
        int64_t n = sizes[i / 4][0], t = sizes[i / 4][1], k = sizes[i / 4][2], m = sizes[i / 4][3];
        check_operator(&(operator_case){.op = LKSI_OP_RNN,
                                        .attributes = {.is_relu = i % 4 >= 2},
                                        .n_inputs = 6,
                                        .inputs = {SHAPE(LKS_F32, n, t, k), SHAPE(LKS_F32, n, m), SHAPE(LKS_F32, m, k),
                                                   SHAPE(LKS_F32, m, m), SHAPE(LKS_F32, m), SHAPE(LKS_F32, m)},
                                        .tolerance = tolerance_of(i % 2 == 1),
                                        .is_bf16 = i % 2 == 1});
    }
}

static void rnn_gradients(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES * 4; i++) {
        int64_t n = sizes[i / 4][0], t = sizes[i / 4][1], k = sizes[i / 4][2], m = sizes[i / 4][3];
        check_operator(
            &(operator_case){.op = LKSI_OP_RNN_GRAD,
                             .attributes = {.is_relu = i % 4 >= 2},
                             .n_inputs = 6,
                             .inputs = {SHAPE(LKS_F32, n, t, m), SHAPE(LKS_F32, n, t, k), SHAPE(LKS_F32, n, m),
                                        SHAPE(LKS_F32, m, k), SHAPE(LKS_F32, m, m), SHAPE(LKS_F32, n, t, m)},
                             .tolerance = tolerance_of(i % 2 == 1),
                             .is_bf16 = i % 2 == 1});
    }
}

static void recorded_lstm(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        check_recording(&(operator_case){.op = LKSI_OP_LSTM,
                                         .n_inputs = 7,
                                         .inputs = {SHAPE(LKS_F32, 3, 4, 5), SHAPE(LKS_F32, 3, 6), SHAPE(LKS_F32, 3, 6),
                                                    SHAPE(LKS_F32, 24, 5), SHAPE(LKS_F32, 24, 6), SHAPE(LKS_F32, 24),
                                                    SHAPE(LKS_F32, 24)},
                                         .is_bf16 = i == 1});
}

static void what_cublas_refuses_names_the_layer(void **state) {
    (void)state;
    need_emulated_gpu();
    lksi_lowering l = {.op = LKSI_OP_RNN, .n_inputs = 6, .n_outputs = 2};
    lksi_tensor inputs[] = {SHAPE(LKS_F32, 2, 3, 4), SHAPE(LKS_F32, 2, 5), SHAPE(LKS_F32, 5, 4),
                            SHAPE(LKS_F32, 5, 5),    SHAPE(LKS_F32, 5),    SHAPE(LKS_F32, 5)};
    memcpy(l.inputs, inputs, sizeof inputs);
    assert_ok(lksi_op_infer(l.op, &l.attributes, l.inputs, l.n_inputs, l.outputs));
    lks_device *device = create_cuda();
    lksi_kernel kernel;
    setenv("LOCKSTEP_EMULATED_GPU", "no-product", 1);
    lks_status status = device->ops->lower(device, &l, &kernel);
    unsetenv("LOCKSTEP_EMULATED_GPU");
    assert_int_equal(status, LKS_ERR_UNSUPPORTED);
    assert_string_equal(lks_error_text(), "cuBLAS has no algorithm for rnn: 1 product of (6, 4) by (4, 5) transposed, "
                                          "operands f32: CUBLAS_STATUS_NOT_SUPPORTED");
    lks_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lstm),
                                       cmocka_unit_test(lstm_gradients),
                                       cmocka_unit_test(rnn_of_tanh_and_relu),
                                       cmocka_unit_test(rnn_gradients),
                                       cmocka_unit_test(recorded_lstm),
                                       cmocka_unit_test(what_cublas_refuses_names_the_layer)};
    return run_cuda_tests("cuda recurrent", tests);
}
