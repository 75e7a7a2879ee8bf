/* labels: no-asan */
/* Layer norm on the cuda device, on the emulated GPU. */
#include "cuda/operator_check.h"

static const int64_t shapes[][2] = {{1, 1}, {1, 7}, {3, 32}, {257, 5}, {4, 700}, {70, 33}};

static void layer_norm_is_the_references(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int64_t n = shapes[i][0], k = shapes[i][1];
        check_operator(&(operator_case){.op = LKSI_OP_LAYER_NORM,
                                        .attributes = {.epsilon = 1e-2},
                                        .n_inputs = 3,
                                        .inputs = {SHAPE(LKS_F32, n, k), SHAPE(LKS_F32, k), SHAPE(LKS_F32, k)},
                                        .tolerance = 5e-6});
    }
    check_operator(&(operator_case){.op = LKSI_OP_LAYER_NORM,
                                    .attributes = {.epsilon = 1e-5},
                                    .n_inputs = 3,
                                    .inputs = {SHAPE(LKS_F32, 2, 3, 64), SHAPE(LKS_F32, 64), SHAPE(LKS_F32, 64)},
                                    .tolerance = 5e-6});
}

static void its_gradient_is_the_references(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int64_t n = shapes[i][0], k = shapes[i][1];
        check_operator(&(operator_case){.op = LKSI_OP_LAYER_NORM_GRAD,
                                        .attributes = {.epsilon = 1e-5},
                                        .n_inputs = 5,
                                        .inputs = {SHAPE(LKS_F32, n, k), SHAPE(LKS_F32, n, k), SHAPE(LKS_F32, k),
                                                   SHAPE(LKS_F32, n), SHAPE(LKS_F32, n)},
                                        .tolerance = 5e-6});
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(layer_norm_is_the_references),
                                       cmocka_unit_test(its_gradient_is_the_references)};
    return run_cuda_tests("cuda layer norm", tests);
}
