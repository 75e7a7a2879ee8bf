/* labels: no-tsan */
/* The cpu device's own loops: the accuracy of their functions, and the same bits on every instruction set. */
#include "test.h"

#include "base/base.h"
#include "onednn/loops.h"
#include "onednn/vector_math.h"

#include <math.h>
#include <string.h>

static void distances_in_last_place(double got, double expected, double *worst) {
    double unit = ldexp(1, ilogb((double)fabsf((float)expected)) - 23), distance = fabs(got - expected) / unit;
    if (!(distance <= *worst)) *worst = distance;
}

static void exp_is_right_to_two_units_in_the_last_place(void **state) {
    (void)state;
    double worst = 0;
    for (double x = -87; x <= 88; x += 0.00037)
        distances_in_last_place((double)lksi_exp((float)x), exp((double)(float)x), &worst);
    assert_true(worst < 2);
    assert_true(lksi_exp(0) == 1 && lksi_exp(-88) == 0 && lksi_exp(-1e30f) == 0 && lksi_exp(-INFINITY) == 0);
    assert_true(isnan(lksi_exp(NAN)));
}

/* NaNs with any bits. */
static void nan_stays_nan(void **state) {
    (void)state;
    static const uint32_t payloads[] = {0, 1, 0x1ff, 0x200000, 0x3fffff};
    for (size_t i = 0; i < 4 * sizeof payloads / sizeof payloads[0]; i++) {
        uint32_t bits = (i % 2 == 0 ? 0 : UINT32_C(1) << 31) | (i / 2 % 2 == 0 ? 0x7fc00000 : 0x7f800000) |
                        payloads[i / 4] | (i / 4 == 0);
        float x;
        memcpy(&x, &bits, sizeof x);
        assert_true(isnan(lksi_exp(x)) && isnan(lksi_sigmoid(x)) && isnan(lksi_normal_below(x, x)));
    }
}

static void sigmoid_is_right_to_four_units_in_the_last_place(void **state) {
    (void)state;
    double worst = 0;
    for (double x = -87; x < 100; x += 0.00037)
        distances_in_last_place((double)lksi_sigmoid((float)x), 1 / (1 + exp(-(double)(float)x)), &worst);
    assert_true(worst < 4);
    assert_true(lksi_sigmoid(-INFINITY) == 0 && lksi_sigmoid(INFINITY) == 1 && isnan(lksi_sigmoid(NAN)));
}

static void the_normal_distribution_is_right_to_six_units_in_the_last_place(void **state) {
    (void)state;
    double worst = 0;
    for (double x = -5; x < 14; x += 0.00037) {
        float rounded = (float)x;
        double expected = 0.5 * erfc(-(double)rounded * 0.70710678118654752);
        distances_in_last_place(
            (double)lksi_normal_below(rounded, (float)exp(-0.5 * (double)rounded * (double)rounded)), expected, &worst);
    }
    assert_true(worst < 6);
    assert_true(isnan(lksi_normal_below(NAN, NAN)));
    assert_true(lksi_normal_below(-40, 0) == 0 && lksi_normal_below(40, 0) == 1);
}

/* --- instruction sets --- */

enum { MAX_COUNT = 5000, N_RESULTS = 43 };
static const size_t counts[] = {1, 2, 7, 15, 16, 17, 31, 64, 255, 257, 2047, 2048, 2049, MAX_COUNT};

typedef struct loop_tables {
    const lksi_elementwise_loops *elementwise;
    const lksi_binary_loops *binary;
    const lksi_row_loops *row;
    const lksi_layer_norm_loops *layer_norm;
    const lksi_dropout_loops *dropout;
} loop_tables;

#define TABLES(isa)                                                                                                    \
    {                                                                                                                  \
        &lksi_elementwise_loops_##isa, &lksi_binary_loops_##isa, &lksi_row_loops_##isa, &lksi_layer_norm_loops_##isa,  \
            &lksi_dropout_loops_##isa                                                                                  \
    }

static float a[MAX_COUNT], b[MAX_COUNT], w[MAX_COUNT], results[2][N_RESULTS][MAX_COUNT];

static void run_elementwise(const lksi_elementwise_loops *f, size_t n, float (*y)[MAX_COUNT]) {
    for (int op = 0, k = 0; op < LKSI_OP_COUNT; op++)
        if (f->of[op] != NULL) f->of[op](n, 0.3f, a, b, y[k++]);
}

static void run_binary(const lksi_binary_loops *f, size_t n, float (*y)[MAX_COUNT]) {
    for (int op = LKSI_OP_ADD; op <= LKSI_OP_DIV; op++, y += 3) {
        f->of[op](n, a, 1, b, 1, y[0]);
        f->of[op](n, a, 0, b, 1, y[1]);
        f->of[op](n, a, 1, b, 0, y[2]);
    }
}

static void run_rows(const lksi_row_loops *f, size_t n, float (*y)[MAX_COUNT]) {
    y[0][0] = (float)f->sum(n, a);
    y[0][1] = f->max(n, a);
    y[0][2] = f->exp_shifted(n, y[0][1], a, y[1]);
    f->softmax_grad(n, a, b, y[2]);
    f->log_softmax_grad(n, a, b, y[3]);
    f->shift_and_scale(n, 0.1f, 0.7f, a, y[4]);
    memcpy(y[5], b, n * sizeof *b);
    f->accumulate(n, a, y[5]);
    memcpy(y[6], b, n * sizeof *b);
    f->scale_in_place(n, 0.7f, y[6]);
    memcpy(y[20], a, n * sizeof *a);
    f->relu_in_place(n, y[20]);
    f->sum_rows(n / 7, 7, 7, a, y[15]);
    f->sum_rows(n / 300, 300, 300, a, y[16]);
    f->sum_rows(n, 1, 1, a, y[17]);
    f->shift_twice(n, 0.1f, 0.7f, a, y[18]);
    y[19][0] = (float)f->sum_shifted(n, 0.1f, a);
}

static void run_all(const loop_tables *t, size_t n, float (*y)[MAX_COUNT]) {
    static const uint32_t key[2] = {5, 6}, stream[2] = {7, 8};
    static double sums[2][MAX_COUNT];
    memset(y, 0, sizeof results[0]);
    memset(sums, 0, sizeof sums);
    run_elementwise(t->elementwise, n, y);
    run_binary(t->binary, n, y + 10);
    run_rows(t->row, n, y + 22);
    t->layer_norm->forward(n, 1e-5f, a, w, b, y[29], &y[30][0], &y[30][1]);
    t->layer_norm->backward(n, 1e-5f, a, b, w, y[31], sums[0], sums[1]);
    memcpy(y[32], sums, sizeof sums); /* takes the space of four arrays of floats */
    t->dropout->draw(n, key, 9, stream, UINT32_C(1) << 30, (uint8_t *)y[36]);
    t->dropout->apply(n, 2, a, (const uint8_t *)y[36], y[33]);
}

static void every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    static const loop_tables tables[] = {
        TABLES(base),
#if defined(__x86_64__)
        TABLES(avx2),
        TABLES(avx512),
#endif
    };
    for (size_t i = 0; i < MAX_COUNT; i++) {
        a[i] = (float)(3 * lksi_random_normal(1, 0, i));
        b[i] = (float)lksi_random_normal(1, 1, i);
        w[i] = (float)lksi_random_normal(1, 2, i);
    }
    for (int level = 1; level <= lksi_isa_level(); level++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            run_all(&tables[0], counts[i], results[0]);
            run_all(&tables[level], counts[i], results[1]);
            for (int k = 0; k < N_RESULTS; k++)
                if (memcmp(results[0][k], results[1][k], sizeof results[0][k]) != 0)
                    fail_msg("result %d of %zu elements differs between instruction sets 0 and %d", k, counts[i],
                             level);
        }
}

/* --- sums and draws --- */

static void a_row_keeps_what_no_single_float_sum_would(void **state) {
    (void)state;
    enum { COUNT = 1 << 22 };
    float *ones = lksi_alloc(COUNT * sizeof *ones);
    for (size_t i = 0; i < COUNT; i++) ones[i] = 0.1f;
    double sum = LKSI_ISA_PICK(lksi_row_loops)->sum(COUNT, ones);
    assert_true(fabs(sum - COUNT * (double)0.1f) < 1e-6 * sum); /* one after the other in f32: off by 1e-3 */
    lksi_free(ones);
}

static void columns_lose_less_than_their_terms_have_lost(void **state) {
    (void)state;
    enum { ROWS = 4096, COLUMNS = 300 };
    float *x = lksi_alloc(sizeof *x * ROWS * COLUMNS), y[COLUMNS];
    double exact[COLUMNS] = {0}, error = 0, norm = 0;
    for (size_t i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)lksi_random_normal(2, 0, i);
    for (size_t i = 0; i < ROWS * COLUMNS; i++) exact[i % COLUMNS] += (double)x[i];
    LKSI_ISA_PICK(lksi_row_loops)->sum_rows(ROWS, COLUMNS, COLUMNS, x, y);
    for (size_t j = 0; j < COLUMNS; j++) {
        error += ((double)y[j] - exact[j]) * ((double)y[j] - exact[j]);
        norm += exact[j] * exact[j];
    }
    assert_true(sqrt(error / norm) < 3e-7); /* one after the other: 1e-6 */
    lksi_free(x);
}

static void draws_are_those_of_philox(void **state) {
    (void)state;
    static const uint32_t key[2] = {0x12345678, 0x9abcdef0}, stream[2] = {0xdeadbeef, 3};
    static uint8_t mask[MAX_COUNT];
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        LKSI_ISA_PICK(lksi_dropout_loops)->draw(counts[i], key, 77, stream, UINT32_C(3) << 30, mask);
        for (uint32_t e = 0; e < counts[i]; e++) {
            uint32_t words[4];
            lks_philox((uint32_t[]){e / 4, 77, stream[0], stream[1]}, key, words);
            assert_int_equal(mask[e], words[e % 4] >= UINT32_C(3) << 30);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_right_to_two_units_in_the_last_place),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(sigmoid_is_right_to_four_units_in_the_last_place),
        cmocka_unit_test(the_normal_distribution_is_right_to_six_units_in_the_last_place),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(a_row_keeps_what_no_single_float_sum_would),
        cmocka_unit_test(columns_lose_less_than_their_terms_have_lost),
        cmocka_unit_test(draws_are_those_of_philox),
    };
    return run_group(tests);
}
