/* How `lockstep bench` counts errors: it finds every wrong element and accepts a right result. */
#include "cli/bench.h"
#include "test.h"

#include "../../src/cli/bench_values.c" /* the files of the command are not in the library that tests link with */

enum { N_RANKS = 3, COUNT = 1000 };

static int one(const lksi_bench_call *call) {
    (void)call;
    return 1;
}
static int a_block_of_each(const lksi_bench_call *call) { return call->size; }
static lksi_bench_segment combined(const lksi_bench_call *call, int index) {
    (void)index;
    return (lksi_bench_segment){.source = LKSI_BENCH_COMBINED, .count = call->count};
}
static lksi_bench_segment of_each(const lksi_bench_call *call, int index) {
    return (lksi_bench_segment){.source = index, .count = call->count};
}
static const lksi_bench_operation sum_of_all = {
    .name = "all_reduce", .segment_count = one, .segment = combined, .is_reduction = true};
static const lksi_bench_operation gather = {
    .name = "all_gather", .segment_count = a_block_of_each, .segment = of_each, .has_blocks = true};

static lksi_bench_call call_of(int rank) {
    return (lksi_bench_call){.rank = rank, .size = N_RANKS, .count = COUNT, .type = LKS_F32, .op = LKS_SUM};
}

static void sum_inputs(float *sum) {
    float input[COUNT];
    memset(sum, 0, COUNT * sizeof *sum);
    for (int rank = 0; rank < N_RANKS; rank++) {
        lksi_bench_call call = call_of(rank);
        lksi_bench_fill(&sum_of_all, &call, input, COUNT);
        for (int i = 0; i < COUNT; i++) sum[i] += input[i];
    }
}

static void right_sum_has_no_errors(void **state) {
    (void)state;
    float sum[COUNT];
    lksi_bench_call call = call_of(1);
    sum_inputs(sum);
    call.out = sum;
    assert_int_equal(lksi_bench_count_errors(&sum_of_all, &call), 0);
}

static void every_wrong_element_is_counted(void **state) {
    (void)state;
    float sum[COUNT];
    lksi_bench_call call = call_of(1);
    sum_inputs(sum);
    sum[0] += 1, sum[61] += 1, sum[COUNT - 1] += 1;
    call.out = sum;
    assert_int_equal(lksi_bench_count_errors(&sum_of_all, &call), 3);
}

/* The blocks are reversed, as if ranks were mixed up, then shifted by one element, as if an offset were wrong. */
static void misplaced_blocks_are_errors(void **state) {
    (void)state;
    float gathered[N_RANKS * COUNT + 1];
    lksi_bench_call call = call_of(0);
    for (int rank = 0; rank < N_RANKS; rank++) {
        lksi_bench_call other = call_of(rank);
        lksi_bench_fill(&gather, &other, gathered + rank * COUNT, COUNT);
    }
    call.out = gathered;
    assert_int_equal(lksi_bench_count_errors(&gather, &call), 0);
    for (int rank = 0; rank < N_RANKS; rank++) {
        lksi_bench_call other = call_of(rank);
        lksi_bench_fill(&gather, &other, gathered + (N_RANKS - 1 - rank) * COUNT, COUNT);
    }
    assert_true(lksi_bench_count_errors(&gather, &call) > COUNT);
    lksi_bench_fill(&gather, &call, gathered + 1, COUNT);
    assert_true(lksi_bench_count_errors(&gather, &call) > COUNT / 2);
}

static void sums_stay_exact_in_narrow_types(void **state) {
    (void)state;
    const lks_type types[] = {LKS_I8, LKS_U8, LKS_BF16, LKS_F16};
    for (int size = 1; size <= 300; size += 23)
        for (int t = 0; t < 4; t++) {
            lksi_bench_call call = {.size = size, .count = 1, .type = types[t], .op = LKS_SUM};
            for (int place = 0; place < PERIOD; place++)
                assert_in_range(combined_at(&sum_of_all, &call, place), 0, exact_limit(types[t]));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_sum_has_no_errors),
        cmocka_unit_test(every_wrong_element_is_counted),
        cmocka_unit_test(misplaced_blocks_are_errors),
        cmocka_unit_test(sums_stay_exact_in_narrow_types),
    };
    return run_group(tests);
}
