/* labels: no-asan */
/* Dropout on the cuda device, on the emulated GPU: the masks are the reference device's, bit for bit. */
#include "cuda/operator_check.h"

static const int64_t shapes[][2] = {{1, 1}, {5, 3}, {2, 1023}, {3, 1025}, {300, 6}};
static const int64_t randoms[][3] = {{0, 0, 0}, {-5, 1234567890123, 4294967290}};

static void draws_are_the_references(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t j = 0; j < 2; j++)
            check_operator(&(operator_case){.op = LKSI_OP_DROPOUT,
                                            .attributes = {.probability = j == 0 ? 0.1 : 0.75, .stream = 77 * j},
                                            .n_inputs = 2,
                                            .inputs = {shape_of(LKS_F32, 2, shapes[i]), SHAPE(LKS_I64, 3)},
                                            .data = {NULL, randoms[j]},
                                            .tolerance = 1e-7});
}

static void images_are_drawn_as_if_row_major(void **state) {
    (void)state;
    check_operator(&(operator_case){.op = LKSI_OP_DROPOUT,
                                    .attributes = {.probability = 0.5, .stream = 3},
                                    .n_inputs = 2,
                                    .inputs = {SHAPE(LKS_F32, 2, 3, 5, 7), SHAPE(LKS_I64, 3)},
                                    .data = {NULL, randoms[1]},
                                    .is_channels_last = true});
}

static void its_gradient_is_masked_alike(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_operator(&(operator_case){.op = LKSI_OP_DROPOUT_GRAD,
                                        .attributes = {.probability = 0.3},
                                        .n_inputs = 2,
                                        .inputs = {shape_of(LKS_F32, 2, shapes[i]), shape_of(LKS_U8, 2, shapes[i])}});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(draws_are_the_references),
                                       cmocka_unit_test(images_are_drawn_as_if_row_major),
                                       cmocka_unit_test(its_gradient_is_masked_alike)};
    return run_cuda_tests("cuda dropout", tests);
}
