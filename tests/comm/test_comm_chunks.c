/* Large reductions of ordinary memory, whose chunks all ranks must take alike. */
#include "../ranks.h" /* not comm/ranks.h, which knows no launch/ */

#include "comm/comm_internal.h"

#include <lockstep/comm.h>

/* So many calls that both widths are tried and then one is taken; afterwards rank 0 is made to change its mind. */
enum { N_CALLS = 60, N_TRIED = 30, N_BEFORE_CHANGE = 3 };

static float value_at(size_t i, int rank, int call) { return (float)(i % 251 + (size_t)rank * 3 + (size_t)call); }

static bool is_sum(const float *sums, size_t count, int size, int call) {
    for (size_t i = 0; i < count; i++) {
        float wanted = 0;
        for (int rank = 0; rank < size; rank++) wanted += value_at(i, rank, call);
        if (sums[i] != wanted) return false;
    }
    return true;
}

/* Two wide chunks and a rest. Rank 1 brings symmetric memory in every third call, and stages later than the others. */
static int reduce_in_chunks_of_both_widths(void *argument) {
    (void)argument;
    lks_group *group;
    void *symmetric;
    RANK_OK(lks_init(&group, NULL));
    int rank = lks_group_rank(group), size = lks_group_size(group), n_changes = 0;
    size_t count = 2 * group->control->wide_chunk_nbytes / sizeof(float) + 12345;
    float *ordinary = lksi_alloc(count * sizeof(float)), *sums = lksi_alloc(count * sizeof(float));
    RANK_CHECK(ordinary != NULL && sums != NULL);
    RANK_OK(lks_symmetric_alloc(group, count * sizeof(float), &symmetric));
    for (int call = 0; call < N_CALLS; call++) {
        bool is_wide = call / N_BEFORE_CHANGE % 2 == 0;
        if (rank == 0 && call >= N_TRIED)
            group->all_reduce_rounds.trial.is_second_better = group->reduce_rounds.trial.is_second_better = is_wide;
        float *data = rank == 1 && call % 3 == 0 ? symmetric : ordinary;
        for (size_t i = 0; i < count; i++) data[i] = value_at(i, rank, call);
        RANK_OK(lks_all_reduce(group, data, sums, count, LKS_F32, LKS_SUM, NULL));
        RANK_CHECK(is_sum(sums, count, size, call));
        RANK_OK(lks_reduce(group, data, data, count, LKS_F32, LKS_SUM, call % size, NULL));
        RANK_CHECK(rank != call % size || is_sum(data, count, size, call));
        if (call < N_TRIED) continue;
        RANK_CHECK(group->all_reduce_rounds.is_wide_known == is_wide && group->reduce_rounds.is_wide_known == is_wide);
        n_changes += call % N_BEFORE_CHANGE == 0;
    }
    RANK_CHECK(n_changes == (N_CALLS - N_TRIED) / N_BEFORE_CHANGE);
    lks_symmetric_free(group, symmetric);
    lksi_free(ordinary), lksi_free(sums);
    lks_group_destroy(group);
    return 0;
}

static void all_ranks_take_the_same_chunks(void **state) {
    (void)state;
    run_ranks(2, reduce_in_chunks_of_both_widths, NULL);
    run_ranks(3, reduce_in_chunks_of_both_widths, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_take_the_same_chunks),
    };
    return run_group(tests);
}
