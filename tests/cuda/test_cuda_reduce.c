/* labels: no-asan */
/* Sums and means, on the emulated GPU. */
#include "cuda/operator_check.h"

static void check(lksi_op op, lksi_tensor x, int64_t axes, bool is_channels_last) {
    for (int64_t keep_dims = 0; keep_dims < 2; keep_dims++)
        check_operator(&(operator_case){.op = op,
                                        .attributes = {.axes = axes, .keep_dims = keep_dims},
                                        .n_inputs = 1,
                                        .inputs = {x},
                                        .is_channels_last = is_channels_last,
                                        .tolerance = 1e-6});
}

static void any_set_of_axes(void **state) {
    (void)state;
    for (int64_t axes = 0; axes < 16; axes++)
        for (int i = 0; i < 2; i++) {
            check(LKSI_OP_SUM, SHAPE(LKS_F32, 3, 5, 7, 2), axes, i != 0);
            check(LKSI_OP_MEAN, SHAPE(LKS_F32, 2, 40, 3, 9), axes, i != 0);
        }
    check(LKSI_OP_SUM, SHAPE(LKS_F32, 2, 3, 2, 1, 3, 2, 3, 2), 0x55, false);
    check(LKSI_OP_MEAN, SHAPE(LKS_F32, 2, 3, 2, 1, 3, 2, 3, 2), 0xaa, false);
    check(LKSI_OP_SUM, (lksi_tensor){.type = LKS_F32}, 0, false);
}

/* Rows shorter and longer than the number of threads of a block, and few long rows that are summed in parts. */
static void long_axes(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 255, 256, 257, 5000, 100003};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        check(LKSI_OP_MEAN, SHAPE(LKS_F32, lengths[i]), 1, false);
        check(LKSI_OP_SUM, SHAPE(LKS_F32, 3, lengths[i]), 2, false);
        check(LKSI_OP_SUM, SHAPE(LKS_F32, lengths[i], 3), 1, false);
        check(LKSI_OP_MEAN, SHAPE(LKS_F32, 2, lengths[i], 2), 5, false);
    }
}

static void sum_rows(void **state) {
    (void)state;
    const lksi_tensor shapes[] = {SHAPE(LKS_F32, 1),       SHAPE(LKS_F32, 5, 10),   SHAPE(LKS_F32, 1000, 33),
                                  SHAPE(LKS_F32, 9, 64),   SHAPE(LKS_F32, 3000, 1), SHAPE(LKS_F32, 300, 300),
                                  SHAPE(LKS_F32, 4, 50, 7)};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_operator(&(operator_case){.op = LKSI_OP_SUM_ROWS, .n_inputs = 1, .inputs = {shapes[i]}});
}

static void sum_to(void **state) {
    (void)state;
    const struct {
        lksi_tensor from, to;
    } cases[] = {{SHAPE(LKS_F32, 3, 300), {.type = LKS_F32}},
                 {SHAPE(LKS_F32, 50, 7), SHAPE(LKS_F32, 7)},
                 {SHAPE(LKS_F32, 5, 8), SHAPE(LKS_F32, 5, 1)},
                 {SHAPE(LKS_F32, 20, 3, 40, 5), SHAPE(LKS_F32, 3, 1, 1)},
                 {SHAPE(LKS_F32, 2, 3, 4, 5), SHAPE(LKS_F32, 2, 3, 1, 1)},
                 {SHAPE(LKS_F32, 2, 3, 4, 5), SHAPE(LKS_F32, 2, 3, 4, 5)},
                 {SHAPE(LKS_F32, 2, 3, 4, 5), SHAPE(LKS_F32, 1, 4, 1)},
                 {SHAPE(LKS_F32, 2, 1, 4, 5), SHAPE(LKS_F32, 1, 1, 5)}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++)
        check_operator(&(operator_case){.op = LKSI_OP_SUM_TO,
                                        .n_inputs = 1,
                                        .inputs = {cases[i / 2].from},
                                        .result = cases[i / 2].to,
                                        .is_channels_last = i % 2 != 0,
                                        .tolerance = 1e-6});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_set_of_axes), cmocka_unit_test(long_axes),
                                       cmocka_unit_test(sum_rows), cmocka_unit_test(sum_to)};
    return run_cuda_tests("cuda reduce", tests);
}
