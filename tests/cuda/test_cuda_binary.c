/* labels: no-asan */
/* Operators on two tensors, on the emulated GPU. */
#include "cuda/operator_check.h"

static void check(lksi_op op, lksi_tensor a, lksi_tensor b, bool is_channels_last) {
    check_operator(&(operator_case){.op = op, .n_inputs = 2, .inputs = {a, b}, .is_channels_last = is_channels_last});
}

static void check_all(lksi_tensor a, lksi_tensor b) {
    check(LKSI_OP_ADD, a, b, false);
    check(LKSI_OP_SUB, a, b, false);
    check(LKSI_OP_MUL, a, b, false);
    check(LKSI_OP_DIV, a, b, false);
    check(LKSI_OP_MINIMUM, a, b, false);
    check(LKSI_OP_MAXIMUM, a, b, false);
    check(LKSI_OP_SHARE, a, b, false);
    check(LKSI_OP_SHARE, a, a, false);
}

static void equal_shapes(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 4, 7, 256, 1028, 1031};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        check_all(SHAPE(LKS_F32, counts[i]), SHAPE(LKS_F32, counts[i]));
    check_all((lksi_tensor){.type = LKS_F32}, (lksi_tensor){.type = LKS_F32});
    check_all(SHAPE(LKS_F32, 3, 5, 7, 2), SHAPE(LKS_F32, 3, 5, 7, 2));
}

/* Vectors of four if 4 divides K, single elements otherwise. */
static void rows_with_a_vector(void **state) {
    (void)state;
    static const int64_t columns[] = {1, 3, 8, 300};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        check_all(SHAPE(LKS_F32, 17, columns[i]), SHAPE(LKS_F32, columns[i]));
        check_all(SHAPE(LKS_F32, columns[i]), SHAPE(LKS_F32, 2, 5, columns[i]));
        check_all(SHAPE(LKS_F32, 17, columns[i]), SHAPE(LKS_F32, 17, 1));
    }
}

static void both_repeated(void **state) {
    (void)state;
    check_all(SHAPE(LKS_F32, 5, 1), SHAPE(LKS_F32, 1, 7));
    check_all(SHAPE(LKS_F32, 5, 1, 4), SHAPE(LKS_F32, 7, 1));
    check_all(SHAPE(LKS_F32, 5, 1, 4), SHAPE(LKS_F32, 7, 4));
    check_all(SHAPE(LKS_F32, 2, 1, 3, 1, 2, 1, 3, 1), SHAPE(LKS_F32, 1, 3, 1, 2, 1, 2, 1, 2));
    check_all(SHAPE(LKS_F32, 600, 1), SHAPE(LKS_F32, 9));
    check_all(SHAPE(LKS_F32, 3, 5, 1), SHAPE(LKS_F32, 3, 5, 4));
    check_all(SHAPE(LKS_F32, 3, 1, 4), SHAPE(LKS_F32, 3, 5, 4));
    check_all(SHAPE(LKS_F32, 3, 8), (lksi_tensor){.type = LKS_F32});
    check_all((lksi_tensor){.type = LKS_F32}, SHAPE(LKS_F32, 3, 7));
}

static void in_channels_last(void **state) {
    (void)state;
    static const int64_t channels[] = {3, 8};
    for (size_t i = 0; i < 2; i++) {
        int64_t c = channels[i];
        lksi_tensor x = SHAPE(LKS_F32, 2, c, 5, 3);
        lksi_tensor others[] = {x,
                                SHAPE(LKS_F32, c, 1, 1),
                                SHAPE(LKS_F32, 2, c, 1, 1),
                                SHAPE(LKS_F32, 5, 3),
                                SHAPE(LKS_F32, 1, 1, 5, 1),
                                SHAPE(LKS_F32, 3),
                                {.type = LKS_F32}};
        for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
            check(LKSI_OP_SUB, x, others[k], true);
            check(LKSI_OP_DIV, others[k], x, true);
        }
        check(LKSI_OP_MUL, SHAPE(LKS_F32, 2, c, 1, 1), SHAPE(LKS_F32, 1, 1, 5, 3), true);
    }
}

static void expand(void **state) {
    (void)state;
    const struct {
        lksi_tensor from, to;
    } cases[] = {{{.type = LKS_F32}, SHAPE(LKS_F32, 3, 300)},
                 {SHAPE(LKS_F32, 7), SHAPE(LKS_F32, 5, 7)},
                 {SHAPE(LKS_F32, 5, 1), SHAPE(LKS_F32, 5, 8)},
                 {SHAPE(LKS_F32, 2, 3, 1, 1), SHAPE(LKS_F32, 2, 3, 4, 5)},
                 {SHAPE(LKS_F32, 2, 3, 4, 5), SHAPE(LKS_F32, 2, 3, 4, 5)},
                 {SHAPE(LKS_F32, 1, 3, 1, 5), SHAPE(LKS_F32, 2, 3, 4, 5)}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++)
        check_operator(&(operator_case){.op = LKSI_OP_EXPAND,
                                        .n_inputs = 1,
                                        .inputs = {cases[i / 2].from},
                                        .result = cases[i / 2].to,
                                        .is_channels_last = i % 2 != 0});
}

/* Then a reorder is needed only if another input has the same shape and another layout. */
static void the_result_lies_as_the_first_input_of_its_shape(void **state) {
    (void)state;
    lks_device *device = device_of(false);
    lksi_tensor x = SHAPE(LKS_F32, 2, 3, 4, 5);
    lksi_layout last = {CHANNELS_LAST, lksi_tensor_nbytes(&x)};
    lksi_lowering lowering = {.op = LKSI_OP_ADD, .n_inputs = 2, .n_outputs = 1};
    lksi_kernel kernel;
    lowering.inputs[0] = SHAPE(LKS_F32, 2, 1, 4, 5);
    lowering.inputs[1] = lowering.outputs[0] = x;
    lowering.input_layouts[1] = last;
    assert_ok(device->ops->lower(device, &lowering, &kernel));
    assert_int_equal(kernel.lowering.input_layouts[0].id, 0);
    assert_int_equal(kernel.lowering.input_layouts[1].id, CHANNELS_LAST);
    assert_int_equal(kernel.lowering.output_layouts[0].id, CHANNELS_LAST);
    assert_int_equal(kernel.lowering.output_layouts[0].nbytes, last.nbytes);
    kernel.release(&kernel);
    lowering.inputs[0] = x;
    lowering.input_layouts[0] = last;
    lowering.input_layouts[1] = (lksi_layout){0};
    assert_ok(device->ops->lower(device, &lowering, &kernel));
    assert_int_equal(kernel.lowering.input_layouts[1].id, CHANNELS_LAST);
    assert_int_equal(kernel.lowering.output_layouts[0].id, CHANNELS_LAST);
    kernel.release(&kernel);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_shapes),  cmocka_unit_test(rows_with_a_vector),
        cmocka_unit_test(both_repeated), cmocka_unit_test(in_channels_last),
        cmocka_unit_test(expand),        cmocka_unit_test(the_result_lies_as_the_first_input_of_its_shape)};
    return run_cuda_tests("cuda binary", tests);
}
