/* labels: no-tsan */
/* The loops of batch norm and pooling: the same bits on every instruction set of this machine. */
#include "test.h"

#include "base/base.h"
#include "onednn/batch_norm_loops.h"
#include "onednn/pool_loops.h"

#include <string.h>

enum { MAX_COUNT = 4096, N_RESULTS = 10 };

typedef struct results {
    float floats[N_RESULTS][MAX_COUNT];
    double doubles[5][LKSI_NORM_LANES];
    int32_t index[MAX_COUNT];
} results;

static float x[MAX_COUNT], dy[MAX_COUNT];

static int fill(void **state) {
    (void)state;
    for (uint64_t i = 0; i < MAX_COUNT; i++) {
        x[i] = (float)lksi_random_normal(1, 0, i) + 3;
        dy[i] = (float)lksi_random_normal(1, 1, i);
    }
    return 0;
}

static void run_norm(const lksi_batch_norm_loops *loops, const lksi_norm_group *g, results *r) {
    lksi_norm_affine affine = {.is_relu = true}, relu_last = {.is_sum_relu = true};
    lksi_norm_gradient of = {.mean = {0}, .dy_mean = {0}, .slope = {0}, .scale = {0}};
    for (int l = 0; l < g->lanes; l++) {
        affine.mean[l] = of.mean[l] = 3;
        affine.scale[l] = of.scale[l] = 0.3f + (float)l;
        affine.shift[l] = of.slope[l] = of.dy_mean[l] = 0.1f;
        relu_last.scale[l] = 1;
    }
    loops->sums(g, x, r->doubles[4]);
    loops->moments(g, x, r->doubles[0], r->doubles[1]);
    loops->apply(g, &affine, x, NULL, r->floats[0], NULL);
    loops->apply(g, &affine, x, dy, r->floats[7], r->floats[8]);
    loops->apply(g, &relu_last, x, dy, NULL, r->floats[9]);
    loops->products(g, of.mean, x, dy, r->floats[0], r->doubles[2], r->doubles[3]);
    loops->gradient(g, &of, x, dy, r->floats[0], r->floats[1]);
    loops->gradient(g, &of, x, dy, NULL, r->floats[2]);
}

static void run_pool(const lksi_pool_loops *loops, results *r) {
    lksi_pool_shape s = {
        .h = 9, .w = 7, .out_h = 5, .out_w = 4, .window = {3, 2}, .stride = {2, 2}, .padding = {1, 1}, .lanes = 11};
    loops->largest(&s, x, r->floats[3], r->index);
    loops->largest_gradient(&s, dy, r->index, r->floats[4]);
    loops->mean(&s, x, r->floats[5]);
    loops->mean_gradient(&s, dy, r->floats[6]);
}

/* Groups with the strides of blocks and of rows, and of an image larger than a chunk. */
static const lksi_norm_group groups[] = {{5, 9, 9 * 16, 16, 8}, {150, 1, 24, 24, 8}, {2, 200, 200 * 8, 8, 8},
                                         {7, 3, 3 * 5, 5, 1},   {130, 1, 3, 3, 1},   {4, 1, 8, 8, 8}};
enum { N_GROUPS = sizeof groups / sizeof groups[0] };

static void run_all(const lksi_batch_norm_loops *norm, const lksi_pool_loops *pool, int group, results *r) {
    memset(r, 0, sizeof *r);
    run_norm(norm, &groups[group], r);
    run_pool(pool, r);
}

static void every_instruction_set_gives_the_same_bits(void **state) {
    (void)state;
    static results expected, got;
    for (int i = 0; i < N_GROUPS; i++) {
        run_all(&lksi_batch_norm_loops_base, &lksi_pool_loops_base, i, &expected);
#if defined(__x86_64__)
        if (lksi_isa_level() >= 1) {
            run_all(&lksi_batch_norm_loops_avx2, &lksi_pool_loops_avx2, i, &got);
            assert_memory_equal(&expected, &got, sizeof expected);
        }
        if (lksi_isa_level() >= 2) {
            run_all(&lksi_batch_norm_loops_avx512, &lksi_pool_loops_avx512, i, &got);
            assert_memory_equal(&expected, &got, sizeof expected);
        }
#endif
        run_all(LKSI_ISA_PICK(lksi_batch_norm_loops), LKSI_ISA_PICK(lksi_pool_loops), i, &got);
        assert_memory_equal(&expected, &got, sizeof expected);
    }
}

/* With a mean far from 0, the variance must keep its digits. */
static void moments_keep_their_digits_far_from_zero(void **state) {
    (void)state;
    static float far[1024 * 8];
    for (int i = 0; i < 1024 * 8; i++) far[i] = 10000.0f + (float)(i / 8 % 2);
    lksi_norm_group g = {.n = 1024, .positions = 1, .sample_stride = 8, .position_stride = 8, .lanes = 8};
    double mean[LKSI_NORM_LANES], squares[LKSI_NORM_LANES];
    LKSI_ISA_PICK(lksi_batch_norm_loops)->moments(&g, far, mean, squares);
    for (int l = 0; l < 8; l++) {
        assert_float_equal(mean[l], 10000.5, 1e-3);
        assert_float_equal(squares[l] / 1024, 0.25, 1e-6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(moments_keep_their_digits_far_from_zero),
    };
    return cmocka_run_group_tests(tests, fill, nothing_is_left);
}
