/* labels: no-asan */
/* Embedding on the cuda device, on the emulated GPU. */
#include "cuda/operator_check.h"

/* Number of indices, of words, of columns. */
static const int64_t shapes[][3] = {{1, 1, 1},    {7, 5, 3},    {300, 11, 257}, {40, 1500, 2},
                                    {700, 3, 33}, {1025, 2, 1}, {2500, 1500, 3}};

static void rows_are_found(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_operator(&(operator_case){.op = LKSI_OP_EMBEDDING,
                                        .n_inputs = 2,
                                        .inputs = {SHAPE(LKS_I32, shapes[i][0]), shape_of(LKS_F32, 2, &shapes[i][1])},
                                        .n_labels = (int)shapes[i][1],
                                        .tolerance = 1e-12});
}

/* They are added in the order of the indices, so they have the reference's bits. */
static void gradients_are_added_in_order(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_operator(
            &(operator_case){.op = LKSI_OP_EMBEDDING_GRAD,
                             .n_inputs = 2,
                             .inputs = {SHAPE(LKS_F32, shapes[i][0], shapes[i][2]), SHAPE(LKS_I32, shapes[i][0])},
                             .result = shape_of(LKS_F32, 2, &shapes[i][1]),
                             .n_labels = (int)shapes[i][1],
                             .tolerance = 1e-12});
}

static void an_index_that_is_no_word_is_named(void **state) {
    (void)state;
    static const int32_t index[] = {0, 4, 5, 1};
    lks_device *device = create_cuda();
    lksi_lowering l = {.op = LKSI_OP_EMBEDDING,
                       .n_inputs = 2,
                       .n_outputs = 1,
                       .inputs = {SHAPE(LKS_I32, 4), SHAPE(LKS_F32, 5, 2)},
                       .outputs = {SHAPE(LKS_F32, 4, 2)}};
    lksi_kernel kernel;
    void *in[2], *out;
    float y[8];
    assert_ok(device->ops->lower(device, &l, &kernel));
    assert_ok(lksi_device_alloc(device, sizeof index, &in[0]));
    assert_ok(lksi_device_alloc(device, lksi_tensor_nbytes(&l.inputs[1]), &in[1]));
    assert_ok(lksi_device_alloc(device, sizeof y, &out));
    assert_ok(lksi_device_copy_in(device, in[0], index, sizeof index));
    assert_ok(kernel.run(&kernel, in, &out, NULL));
    assert_int_equal(lksi_device_copy_out(device, y, out, sizeof y), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "embedding: index 5 at position 2 of the batch is not 0 to 4");
    lksi_device_free(device, in[0]);
    lksi_device_free(device, in[1]);
    lksi_device_free(device, out);
    lks_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_found), cmocka_unit_test(gradients_are_added_in_order),
                                       cmocka_unit_test(an_index_that_is_no_word_is_named)};
    return run_cuda_tests("cuda embedding", tests);
}
