/* labels: no-asan */
/* Softmax, its logarithm and their gradients, on the emulated GPU. */
#include "cuda/operator_check.h"

static void check(lksi_op op, lksi_tensor x, int64_t is_causal, const float *data) {
    check_operator(&(operator_case){.op = op,
                                    .attributes = {.is_causal = is_causal},
                                    .n_inputs = op == LKSI_OP_SOFTMAX_GRAD || op == LKSI_OP_LOG_SOFTMAX_GRAD ? 2 : 1,
                                    .inputs = {x, x},
                                    .data = {data}});
}

static void check_all(lksi_tensor x) {
    check(LKSI_OP_SOFTMAX, x, 0, NULL);
    check(LKSI_OP_SOFTMAX_GRAD, x, 0, NULL);
    check(LKSI_OP_LOG_SOFTMAX, x, 0, NULL);
    check(LKSI_OP_LOG_SOFTMAX_GRAD, x, 0, NULL);
}

/* Several rows per block, one row per block, and rows longer than the number of threads of a block. */
static void rows_of_every_length(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 10, 32, 33, 128, 200, 256, 257, 1000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        check_all(SHAPE(LKS_F32, lengths[i]));
        check_all(SHAPE(LKS_F32, 37, lengths[i]));
    }
    check_all(SHAPE(LKS_F32, 2, 3, 5, 7));
}

static void causal(void **state) {
    (void)state;
    const lksi_tensor shapes[] = {SHAPE(LKS_F32, 5, 5), SHAPE(LKS_F32, 2, 3, 9, 4), SHAPE(LKS_F32, 3, 4, 9),
                                  SHAPE(LKS_F32, 1, 260, 260), SHAPE(LKS_F32, 1, 1)};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check(LKSI_OP_SOFTMAX, shapes[i], 1, NULL);
        check(LKSI_OP_SOFTMAX_GRAD, shapes[i], 1, NULL);
    }
}

static void values_that_would_overflow(void **state) {
    (void)state;
    static const float x[] = {1000, 999, -1000, 0, -500, -501, -INFINITY, -500};
    check(LKSI_OP_SOFTMAX, SHAPE(LKS_F32, 2, 4), 0, x);
    check(LKSI_OP_LOG_SOFTMAX, SHAPE(LKS_F32, 1, 4), 0, x);
}

/* test_operators_results checks that the reference's result is exact here. */
static void values_with_a_large_offset(void **state) {
    (void)state;
    static const float x[] = {1 << 23, (1 << 23) + 1, (1 << 23) + 2, (1 << 23) + 1};
    check(LKSI_OP_SOFTMAX, SHAPE(LKS_F32, 1, 4), 0, x);
    check(LKSI_OP_LOG_SOFTMAX, SHAPE(LKS_F32, 1, 4), 0, x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_every_length), cmocka_unit_test(causal),
                                       cmocka_unit_test(values_that_would_overflow),
                                       cmocka_unit_test(values_with_a_large_offset)};
    return run_cuda_tests("cuda softmax", tests);
}
