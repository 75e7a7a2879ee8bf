/* labels: no-asan */
/* Batch norm on the cuda device, on the emulated GPU. */
#include "cuda/recording_check.h"

/* Few and many channels, one position and several slices of positions. Tensors that are not images have only one
 * layout. */
static const struct {
    int n_dims;
    int64_t dims[4];
} shapes[] = {{4, {2, 3, 4, 5}},   {4, {3, 70, 2, 3}}, {4, {1, 1, 1, 1}}, {4, {5, 33, 1, 1}}, {4, {4, 2, 40, 31}},
              {4, {9, 2, 40, 31}}, {2, {9, 5}},        {2, {150, 40}},    {3, {4, 6, 11}}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static float positive[128]; /* variances */
static double counted[257]; /* sums of 40 elements around a center, and sums of squares large enough for a variance */

static void fill_data(int64_t n_channels) {
    counted[0] = 40;
    for (int64_t c = 0; c < n_channels; c++) {
        positive[c] = 0.1f + lksi_random_uniform(1, 2, (uint64_t)c);
        counted[1 + c] = 10 * lksi_random_normal(1, 3, (uint64_t)c);
        counted[1 + n_channels + c] = 40 + counted[1 + c] * counted[1 + c] / 40;
    }
}

/* x, its gradient and z are images. w, b and the statistics are vectors. Sums are f64. */
static operator_case case_of(lksi_op op, int shape, bool is_channels_last) {
    lksi_tensor x = shape_of(LKS_F32, shapes[shape].n_dims, shapes[shape].dims), v = SHAPE(LKS_F32, x.dims[1]);
    lksi_tensor dloss = {.type = LKS_F32}, sums = SHAPE(LKS_F64, 1 + 2 * x.dims[1]),
                grad_sums = SHAPE(LKS_F64, 2 * x.dims[1]);
    operator_case c = {
        .op = op, .attributes.epsilon = 1e-3, .is_channels_last = is_channels_last, .tolerance = 5e-6, .inputs = {x}};
    fill_data(x.dims[1]);
    switch (op) {
    case LKSI_OP_BATCH_NORM:
    case LKSI_OP_BATCH_NORM_INFERENCE:
    case LKSI_OP_BATCH_NORM_BY_SUMS:
        c.n_inputs = op == LKSI_OP_BATCH_NORM_BY_SUMS ? 6 : 5;
        c.inputs[1] = c.inputs[2] = c.inputs[3] = c.inputs[4] = v;
        c.inputs[5] = sums;
        c.data[4] = positive;
        c.data[5] = counted;
        break;
    case LKSI_OP_BATCH_NORM_SUMS:
        c.n_inputs = 2;
        c.inputs[1] = v;
        break;
    case LKSI_OP_BATCH_NORM_GRAD_SUMS:
        c.n_inputs = 6;
        c.inputs[1] = x;
        c.inputs[2] = c.inputs[3] = c.inputs[4] = v;
        c.inputs[5] = dloss;
        c.data[3] = positive;
        break;
    default:
        c.n_inputs = 7;
        c.inputs[1] = x;
        c.inputs[2] = c.inputs[3] = c.inputs[4] = v;
        c.inputs[5] = op == LKSI_OP_BATCH_NORM_GRAD ? dloss : sums;
        c.inputs[6] = op == LKSI_OP_BATCH_NORM_GRAD ? x : grad_sums;
        c.data[4] = positive;
        c.data[5] = op == LKSI_OP_BATCH_NORM_GRAD ? NULL : counted;
    }
    return c;
}

static void check_all(lksi_op op) {
    for (int i = 0; i < N_SHAPES; i++)
        for (int is_last = 0; is_last < 2; is_last++) {
            operator_case c = case_of(op, i, is_last != 0);
            check_operator(&c);
        }
}

static void it_is_the_references(void **state) {
    (void)state;
    check_all(LKSI_OP_BATCH_NORM);
    check_all(LKSI_OP_BATCH_NORM_INFERENCE);
}

static void its_gradient_is_the_references(void **state) {
    (void)state;
    check_all(LKSI_OP_BATCH_NORM_GRAD);
    for (int is_last = 0; is_last < 2; is_last++) { /* without z */
        operator_case c = case_of(LKSI_OP_BATCH_NORM_GRAD, 1, is_last != 0);
        c.n_inputs = 6;
        check_operator(&c);
    }
}

static void synchronised_it_is_the_references(void **state) {
    (void)state;
    check_all(LKSI_OP_BATCH_NORM_SUMS);
    check_all(LKSI_OP_BATCH_NORM_BY_SUMS);
    check_all(LKSI_OP_BATCH_NORM_GRAD_SUMS);
    check_all(LKSI_OP_BATCH_NORM_GRAD_BY_SUMS);
}

/* No rank has a sample, or all ranks together have one. */
static void sums_of_nothing_do_no_harm(void **state) {
    (void)state;
    static const lksi_op ops[] = {LKSI_OP_BATCH_NORM_BY_SUMS, LKSI_OP_BATCH_NORM_GRAD_BY_SUMS};
    for (int i = 0; i < 4; i++) {
        operator_case c = case_of(ops[i % 2], 0, false);
        double few[7] = {i / 2};
        c.data[5] = few;
        check_operator(&c);
    }
}

static void relu_is_taken_in(void **state) {
    (void)state;
    static const lksi_op ops[] = {LKSI_OP_BATCH_NORM, LKSI_OP_BATCH_NORM_INFERENCE, LKSI_OP_BATCH_NORM_BY_SUMS,
                                  LKSI_OP_BATCH_NORM_GRAD};
    for (int i = 0; i < 8; i++) {
        operator_case c = case_of(ops[i / 2], 1, i % 2 != 0);
        c.n_epilogues = 1;
        c.epilogues[0] = LKSI_OP_RELU;
        c.expected_epilogues = i / 2 < 3;
        check_operator(&c);
        c.epilogues[0] = LKSI_OP_TANH;
        c.expected_epilogues = 0;
        check_operator(&c);
    }
}

/* The mean is large compared to the deviation: sums of squares alone would lose the variance. */
static void a_distant_mean_loses_nothing(void **state) {
    (void)state;
    static float x[4 * 2 * 6];
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) x[i] = 1e4f + 0.5f * (float)(i * 7 % 5);
    operator_case c = {.op = LKSI_OP_BATCH_NORM,
                       .attributes.epsilon = 1e-5,
                       .n_inputs = 5,
                       .inputs = {SHAPE(LKS_F32, 4, 2, 2, 3), SHAPE(LKS_F32, 2), SHAPE(LKS_F32, 2), SHAPE(LKS_F32, 2),
                                  SHAPE(LKS_F32, 2)},
                       .data = {x}};
    check_operator(&c);
    c.is_channels_last = true;
    check_operator(&c);
}

/* Blocks reset the counters that they use, so every run has the same bits. */
static void it_can_be_recorded(void **state) {
    (void)state;
    static const lksi_op ops[] = {LKSI_OP_BATCH_NORM, LKSI_OP_BATCH_NORM_GRAD, LKSI_OP_BATCH_NORM_SUMS,
                                  LKSI_OP_BATCH_NORM_GRAD_SUMS};
    for (int i = 0; i < 8; i++) {
        operator_case c = case_of(ops[i / 2], i % 2 != 0 ? 4 : 6, false);
        check_recording(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_is_the_references),
                                       cmocka_unit_test(its_gradient_is_the_references),
                                       cmocka_unit_test(synchronised_it_is_the_references),
                                       cmocka_unit_test(sums_of_nothing_do_no_harm),
                                       cmocka_unit_test(relu_is_taken_in),
                                       cmocka_unit_test(it_can_be_recorded),
                                       cmocka_unit_test(a_distant_mean_loses_nothing)};
    return run_cuda_tests("cuda batch norm", tests);
}
