/* labels: no-asan */
/* Element-wise operators of the cuda device, on the emulated GPU. */
#include "cuda/operator_check.h"

static const lksi_op one_operand[] = {LKSI_OP_RELU,    LKSI_OP_LEAKY_RELU, LKSI_OP_GELU, LKSI_OP_TANH,
                                      LKSI_OP_SIGMOID, LKSI_OP_SCALE,      LKSI_OP_EXP,  LKSI_OP_LOG,
                                      LKSI_OP_SQRT,    LKSI_OP_POW,        LKSI_OP_ABS,  LKSI_OP_ADD_SCALAR,
                                      LKSI_OP_LOG1P,   LKSI_OP_SIN,        LKSI_OP_COS,  LKSI_OP_AT_LEAST};
static const lksi_op gradients[] = {LKSI_OP_RELU_GRAD,    LKSI_OP_LEAKY_RELU_GRAD, LKSI_OP_GELU_GRAD,
                                    LKSI_OP_TANH_GRAD,    LKSI_OP_SIGMOID_GRAD,    LKSI_OP_ABS_GRAD,
                                    LKSI_OP_AT_LEAST_GRAD};
static const lksi_attributes attributes = {.number = 1.5};

/* One element, odd sizes, vectors of four, more than a block. */
static void every_operator_at_every_size(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 4, 7, 255, 256, 1024, 1027};
    for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++) {
        lksi_tensor x = SHAPE(LKS_F32, counts[n]);
        for (size_t i = 0; i < sizeof one_operand / sizeof one_operand[0]; i++)
            check_operator(
                &(operator_case){.op = one_operand[i], .attributes = attributes, .n_inputs = 1, .inputs = {x}});
        for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++)
            check_operator(
                &(operator_case){.op = gradients[i], .attributes = attributes, .n_inputs = 2, .inputs = {x, x}});
    }
}

static void a_tensor_larger_than_a_grid(void **state) {
    (void)state;
    check_operator(&(operator_case){.op = LKSI_OP_RELU, .n_inputs = 1, .inputs = {SHAPE(LKS_F32, 65535 * 256 + 3)}});
}

static void in_channels_last(void **state) {
    (void)state;
    lksi_tensor x = SHAPE(LKS_F32, 3, 5, 7, 2);
    check_operator(&(operator_case){.op = LKSI_OP_TANH, .n_inputs = 1, .inputs = {x}, .is_channels_last = true});
    check_operator(
        &(operator_case){.op = LKSI_OP_RELU_GRAD, .n_inputs = 2, .inputs = {x, x}, .is_channels_last = true});
    check_operator(&(operator_case){.op = LKSI_OP_COPY, .n_inputs = 1, .inputs = {x}, .is_channels_last = true});
}

static void by_a_scalar_tensor(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 24, 1027};
    for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++)
        check_operator(&(operator_case){.op = LKSI_OP_SCALE,
                                        .attributes = attributes,
                                        .n_inputs = 2,
                                        .inputs = {SHAPE(LKS_F32, counts[n]), {.type = LKS_F32}}});
}

static void special_values(void **state) {
    (void)state;
    static const float x[] = {NAN, -0.0f, 1e-30f, -12, 12};
    for (size_t i = 0; i < sizeof one_operand / sizeof one_operand[0]; i++)
        check_operator(&(operator_case){
            .op = one_operand[i], .attributes = attributes, .n_inputs = 1, .inputs = {SHAPE(LKS_F32, 5)}, .data = {x}});
}

static void copies_of_any_type(void **state) {
    (void)state;
    static const int64_t numbers[] = {INT64_MIN, -1, INT64_C(1) << 40};
    static const lks_type types[] = {LKS_F32, LKS_F64, LKS_I32, LKS_U8};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        check_operator(
            &(operator_case){.op = LKSI_OP_COPY, .n_inputs = 1, .inputs = {SHAPE(types[i], 5, 3)}, .n_labels = 9});
    check_operator(
        &(operator_case){.op = LKSI_OP_COPY, .n_inputs = 1, .inputs = {SHAPE(LKS_I64, 3)}, .data = {numbers}});
}

/* A parameter in the store has only the alignment of a float. */
static void memory_at_no_multiple_of_16_bytes(void **state) {
    (void)state;
    enum { COUNT = 64 };
    lks_device *device = create_cuda();
    lksi_lowering lowering = {.op = LKSI_OP_RELU, .n_inputs = 1, .n_outputs = 1};
    lowering.inputs[0] = lowering.outputs[0] = SHAPE(LKS_F32, COUNT);
    lksi_kernel kernel;
    float x[COUNT + 1];
    void *there, *to;
    for (int i = 0; i <= COUNT; i++) x[i] = (float)(i - 30);
    assert_ok(device->ops->lower(device, &lowering, &kernel));
    assert_ok(lksi_device_alloc(device, sizeof x, &there));
    assert_ok(lksi_device_alloc(device, sizeof x, &to));
    assert_ok(lksi_device_copy_in(device, there, x, sizeof x));
    void *from = (float *)there + 1;
    assert_ok(kernel.run(&kernel, &from, &to, NULL));
    assert_ok(lksi_device_copy_out(device, x, to, COUNT * sizeof(float)));
    for (int i = 0; i < COUNT; i++) assert_true(x[i] == (i > 29 ? (float)(i - 29) : 0.0f));
    lksi_device_free(device, there);
    lksi_device_free(device, to);
    lks_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_operator_at_every_size),
                                       cmocka_unit_test(a_tensor_larger_than_a_grid),
                                       cmocka_unit_test(in_channels_last),
                                       cmocka_unit_test(by_a_scalar_tensor),
                                       cmocka_unit_test(special_values),
                                       cmocka_unit_test(copies_of_any_type),
                                       cmocka_unit_test(memory_at_no_multiple_of_16_bytes)};
    return run_cuda_tests("cuda elementwise", tests);
}
