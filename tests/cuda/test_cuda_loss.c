/* labels: no-asan */
/* Losses of the cuda device, on the emulated GPU. */
#include "cuda/recording_check.h"

static const int64_t row_shapes[][2] = {{1, 1}, {3, 2}, {5, 10}, {70, 17}, {3, 513}, {2, 1500}, {40, 130}};
enum { N_ROW_SHAPES = sizeof row_shapes / sizeof row_shapes[0] };

/* The gradient reads any p in (-1, 1): its formula is valid for all of them. */
static operator_case case_of(const lksi_attributes *attributes, lksi_op op, int64_t rows, int64_t classes) {
    return (operator_case){.op = op,
                           .attributes = *attributes,
                           .n_inputs = op == LKSI_OP_CROSS_ENTROPY_GRAD ? 3 : 2,
                           .inputs = {SHAPE(LKS_F32, rows, classes), SHAPE(LKS_I32, rows), {.type = LKS_F32}},
                           .n_labels = (int)classes};
}

static void of_classes(const lksi_attributes *attributes, lksi_op op, int64_t rows, int64_t classes) {
    operator_case c = case_of(attributes, op, rows, classes);
    check_operator(&c);
}

static void losses_over_classes_are_the_references(void **state) {
    (void)state;
    static const lksi_op ops[] = {LKSI_OP_CROSS_ENTROPY, LKSI_OP_CROSS_ENTROPY_GRAD, LKSI_OP_COUNT_CORRECT};
    for (int i = 0; i < N_ROW_SHAPES; i++)
        for (size_t j = 0; j < sizeof ops / sizeof ops[0]; j++) {
            of_classes(&(lksi_attributes){0}, ops[j], row_shapes[i][0], row_shapes[i][1]);
            of_classes(&(lksi_attributes){.has_ignored = 1, .ignored = 1}, ops[j], row_shapes[i][0], row_shapes[i][1]);
            if (ops[j] == LKSI_OP_COUNT_CORRECT) continue;
            of_classes(&(lksi_attributes){.smoothing = 0.1}, ops[j], row_shapes[i][0], row_shapes[i][1]);
        }
}

/* Samples have several labels. The label -100 does not count. Without labels that count, the mean is 0. */
static void ignored_labels_need_be_no_classes(void **state) {
    (void)state;
    static const int32_t some[] = {-100, 3, 0, -100, 1, 1}, none[] = {-100, -100, -100, -100, -100, -100};
    const int32_t *labels[] = {some, none};
    for (int i = 0; i < 2; i++) {
        operator_case c = {.op = LKSI_OP_CROSS_ENTROPY,
                           .attributes = {.has_ignored = 1, .ignored = -100, .smoothing = 0.2},
                           .n_inputs = 2,
                           .inputs = {SHAPE(LKS_F32, 2, 3, 4), SHAPE(LKS_I32, 2, 3), {.type = LKS_F32}},
                           .data = {NULL, labels[i]}};
        check_operator(&c);
        c.op = LKSI_OP_CROSS_ENTROPY_GRAD;
        c.n_inputs = 3;
        check_operator(&c);
    }
}

/* The logit of an impossible class is -inf. */
static void a_logit_may_be_infinitely_small(void **state) {
    (void)state;
    static const float x[] = {0.5f, -INFINITY, 2, -INFINITY, -1, 0};
    static const int32_t labels[] = {2, 1};
    check_operator(&(operator_case){.op = LKSI_OP_CROSS_ENTROPY,
                                    .n_inputs = 2,
                                    .inputs = {SHAPE(LKS_F32, 2, 3), SHAPE(LKS_I32, 2)},
                                    .data = {x, labels}});
}

static void the_first_largest_counts(void **state) {
    (void)state;
    static const float x[] = {1, 3, 3, 0, 0, NAN, 1, 2, NAN, 5, 5, 5, 1, 1, 1, 1, 0, NAN, 0, -1};
    static const int32_t labels[] = {1, 3, 0, 0, 0}, others[] = {2, 1, 1, 1, 2};
    const int32_t *both[] = {labels, others};
    for (int i = 0; i < 2; i++)
        check_operator(&(operator_case){.op = LKSI_OP_COUNT_CORRECT,
                                        .n_inputs = 2,
                                        .inputs = {SHAPE(LKS_F32, 5, 4), SHAPE(LKS_I32, 5)},
                                        .data = {x, both[i]}});
}

static void over_elements(lksi_op op, int64_t count) {
    bool is_grad = op == LKSI_OP_MSE_GRAD || op == LKSI_OP_BCE_WITH_LOGITS_GRAD;
    check_operator(&(operator_case){.op = op,
                                    .n_inputs = is_grad ? 3 : 2,
                                    .inputs = {SHAPE(LKS_F32, count), SHAPE(LKS_F32, count), {.type = LKS_F32}},
                                    .tolerance = 5e-6});
}

static void losses_over_elements_are_the_references(void **state) {
    (void)state;
    static const lksi_op ops[] = {LKSI_OP_MSE, LKSI_OP_MSE_GRAD, LKSI_OP_BCE_WITH_LOGITS, LKSI_OP_BCE_WITH_LOGITS_GRAD};
    static const int64_t counts[] = {1, 7, 257, 5000};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++) over_elements(ops[i], counts[j]);
    over_elements(LKSI_OP_MSE, 263000); /* more than the number of threads in all blocks of a sum */
}

static void an_infinite_logit_has_the_references_loss(void **state) {
    (void)state;
    static const float x[] = {INFINITY, -INFINITY}, targets[] = {0, 1};
    for (int i = 0; i < 2; i++)
        check_operator(&(operator_case){.op = LKSI_OP_BCE_WITH_LOGITS,
                                        .n_inputs = 2,
                                        .inputs = {SHAPE(LKS_F32, 1), SHAPE(LKS_F32, 1)},
                                        .data = {&x[i], &targets[i]}});
}

/* Blocks reset the counters that they use, so every run has the same bits. */
static void they_can_be_recorded(void **state) {
    (void)state;
    static const lksi_op ops[] = {LKSI_OP_CROSS_ENTROPY, LKSI_OP_CROSS_ENTROPY_GRAD, LKSI_OP_COUNT_CORRECT};
    for (int i = 0; i < 6; i++) {
        bool has_blocks = i % 2 != 0;
        operator_case c = case_of(&(lksi_attributes){.has_ignored = 1, .ignored = 1}, ops[i / 2], has_blocks ? 600 : 3,
                                  has_blocks ? 130 : 10);
        check_recording(&c);
    }
    check_recording(
        &(operator_case){.op = LKSI_OP_MSE, .n_inputs = 2, .inputs = {SHAPE(LKS_F32, 5000), SHAPE(LKS_F32, 5000)}});
}

/* The device must refuse a label that is not a class, with this text. */
static void refused(int64_t each, const int32_t *labels, const char *text) {
    lks_device *device = create_cuda();
    lksi_lowering l = {.op = LKSI_OP_CROSS_ENTROPY, .n_inputs = 2, .n_outputs = 2};
    l.inputs[0] = each > 1 ? SHAPE(LKS_F32, 2, each, 3) : SHAPE(LKS_F32, 2, 3);
    l.inputs[1] = each > 1 ? SHAPE(LKS_I32, 2, each) : SHAPE(LKS_I32, 2);
    assert_ok(lksi_op_infer(l.op, &l.attributes, l.inputs, 2, l.outputs));
    lksi_kernel kernel;
    void *in[2], *out[2], *scratch;
    float loss;
    assert_ok(device->ops->lower(device, &l, &kernel));
    assert_ok(lksi_device_alloc(device, lksi_tensor_nbytes(&l.inputs[0]), &in[0]));
    assert_ok(lksi_device_alloc(device, lksi_tensor_nbytes(&l.inputs[1]), &in[1]));
    assert_ok(lksi_device_alloc(device, sizeof loss, &out[0]));
    assert_ok(lksi_device_alloc(device, lksi_tensor_nbytes(&l.outputs[1]), &out[1]));
    assert_ok(lksi_device_alloc(device, kernel.scratch_nbytes, &scratch));
    assert_ok(lksi_device_copy_in(device, in[1], labels, lksi_tensor_nbytes(&l.inputs[1])));
    assert_ok(kernel.run(&kernel, in, out, scratch));
    assert_int_equal(lksi_device_copy_out(device, &loss, out[0], sizeof loss), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), text);
    assert_ok(lksi_device_copy_out(device, &loss, out[0], sizeof loss)); /* the error is reported once */
    for (int i = 0; i < 2; i++) {
        lksi_device_free(device, in[i]);
        lksi_device_free(device, out[i]);
    }
    lksi_device_free(device, scratch);
    kernel.release(&kernel);
    lks_device_destroy(device);
}

static void a_label_that_is_no_class_is_named(void **state) {
    (void)state;
    refused(1, (const int32_t[]){0, 3}, "label 3 of sample 1 in the batch is not 0 to 2");
    refused(2, (const int32_t[]){0, 1, -7, 2}, "label -7 of sample 1 in the batch, position 0, is not 0 to 2");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(losses_over_classes_are_the_references),
                                       cmocka_unit_test(ignored_labels_need_be_no_classes),
                                       cmocka_unit_test(a_logit_may_be_infinitely_small),
                                       cmocka_unit_test(the_first_largest_counts),
                                       cmocka_unit_test(losses_over_elements_are_the_references),
                                       cmocka_unit_test(they_can_be_recorded),
                                       cmocka_unit_test(an_infinite_logit_has_the_references_loss),
                                       cmocka_unit_test(a_label_that_is_no_class_is_named)};
    return run_cuda_tests("cuda losses", tests);
}
