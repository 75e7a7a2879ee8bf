/* Element-wise operators of the cuda device, on the emulated GPU. */
#include "cuda/operator_check.h"

static void one_operand(void **state) {
    (void)state;
    static const lksi_op ops[] = {LKSI_OP_RELU, LKSI_OP_TANH};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        check_operator(&(operator_case){.op = ops[i], .n_inputs = 1, .inputs = {SHAPE(LKS_F32, 3, 5, 7, 2)}});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_operand)};
    return run_cuda_tests("cuda elementwise", tests);
}
