/* Choices that ranks make by trials and must make alike: how wide the chunks of large reductions are, and whether data
 * is read in place or staged. */
#include "../ranks.h" /* not comm/ranks.h, which does not know launch/ */

#include "comm/comm_internal.h"

#include <lockstep/comm.h>

/* Enough calls to try both widths and then take one. After that, rank 0 is made to change its choice. */
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

static void say(lks_group *group, bool is_wide) {
    group->all_reduce_rounds.wide.trial.turn.is_second_better = is_wide;
    group->reduce_rounds.wide.trial.turn.is_second_better = is_wide;
}

/* Each call has two wide chunks and a rest. Rank 1 passes symmetric memory in every third call. All other memory is
 * ordinary. */
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
        if (rank == 0 && call >= N_TRIED) say(group, is_wide);
        float *data = rank == 1 && call % 3 == 0 ? symmetric : ordinary;
        for (size_t i = 0; i < count; i++) data[i] = value_at(i, rank, call);
        RANK_OK(lks_all_reduce(group, data, sums, count, LKS_F32, LKS_SUM, NULL));
        RANK_CHECK(is_sum(sums, count, size, call));
        RANK_OK(lks_reduce(group, data, data, count, LKS_F32, LKS_SUM, call % size, NULL));
        RANK_CHECK(rank != call % size || is_sum(data, count, size, call));
        if (call < N_TRIED) continue;
        RANK_CHECK(group->all_reduce_rounds.wide.is_second_known == is_wide);
        RANK_CHECK(group->reduce_rounds.wide.is_second_known == is_wide);
        n_changes += call % N_BEFORE_CHANGE == 0;
    }
    RANK_CHECK(n_changes == (N_CALLS - N_TRIED) / N_BEFORE_CHANGE);
    lks_symmetric_free(group, symmetric);
    lksi_free(ordinary), lksi_free(sums);
    lks_group_destroy(group);
    return 0;
}

/* Data is staged or read in place, by the kernel or from symmetric memory. The sizes are those for which both ways are
 * tried. In a third of the calls only rank 1 passes symmetric memory, in another third all ranks do. */
enum { LONGEST = 70000 };

static bool is_block(const float *block, size_t count, int source, int reader, int call) {
    for (size_t i = 0; i < count; i++)
        if (block[i] != value_at(i, source * 10 + reader, call)) return false;
    return true;
}

static bool is_sum_of_blocks(const float *sums, size_t count, int size, int reader, int call) {
    for (size_t i = 0; i < count; i++) {
        float wanted = 0;
        for (int rank = 0; rank < size; rank++) wanted += value_at(i, rank * 10 + reader, call);
        if (sums[i] != wanted) return false;
    }
    return true;
}

static void say_of_places(lks_group *group, bool is_in_place) {
    lksi_places *places[] = {&group->all_reduce_places, &group->reduce_places,    &group->scatter_places,
                             &group->of_all[0].places,  &group->of_all[1].places, &group->of_root[0].places,
                             &group->of_root[1].places, &group->to_root[0].places};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (int size = 0; size < LKSI_PLACE_SIZES; size++)
            places[i]->by_size[size].trial.turn.is_second_better = is_in_place;
}

static int go_either_way(void *argument) {
    const bool *sees_fewer_cpus = argument;
    static const size_t counts[] = {1000, 1024, 2047, 2048, 4099, 8192, 16383, LONGEST / sizeof(float)};
    lks_group *group;
    void *symmetric;
    RANK_OK(lks_init(&group, NULL));
    size_t rank = (size_t)lks_group_rank(group), size = (size_t)lks_group_size(group);
    float *ordinary = lksi_alloc(size * LONGEST), *out = lksi_alloc(size * LONGEST);
    if (rank == 1 && *sees_fewer_cpus) group->may_spin = false;
    RANK_CHECK(ordinary != NULL && out != NULL);
    RANK_OK(lks_symmetric_alloc(group, size * LONGEST, &symmetric));
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
        size_t count = counts[n];
        for (int call = 0; call < N_CALLS; call++) {
            if (rank == 0 && call >= N_TRIED) say_of_places(group, call / N_BEFORE_CHANGE % 2 == 0);
            float *data = (rank == 1 && call % 3 == 0) || call % 3 == 1 ? symmetric : ordinary;
            for (size_t i = 0; i < size * count; i++) data[i] = value_at(i % count, (int)(rank * 10 + i / count), call);
            RANK_OK(lks_all_to_all(group, data, out, count, LKS_F32, NULL));
            for (size_t i = 0; i < size; i++) RANK_CHECK(is_block(out + i * count, count, (int)i, (int)rank, call));
            RANK_OK(lks_scatter(group, data, out, count, LKS_F32, 0, NULL));
            RANK_CHECK(is_block(out, count, 0, (int)rank, call));
            RANK_OK(lks_gather(group, data, out, count, LKS_F32, 1, NULL));
            for (size_t i = 0; rank == 1 && i < size; i++)
                RANK_CHECK(is_block(out + i * count, count, (int)i, 0, call));
            RANK_OK(lks_all_gather(group, data, out, count, LKS_F32, NULL));
            for (size_t i = 0; i < size; i++) RANK_CHECK(is_block(out + i * count, count, (int)i, 0, call));
            RANK_OK(lks_reduce_scatter(group, data, out, count, LKS_F32, LKS_SUM, NULL));
            RANK_CHECK(is_sum_of_blocks(out, count, (int)size, (int)rank, call));
            RANK_OK(lks_reduce(group, data, out, count, LKS_F32, LKS_SUM, 1, NULL));
            RANK_CHECK(rank != 1 || is_sum_of_blocks(out, count, (int)size, 0, call));
            float *block = data + rank * count; /* for all_reduce in place */
            for (size_t i = 0; i < count; i++) block[i] = value_at(i, (int)(rank * 10), call);
            RANK_OK(lks_all_reduce(group, block, block, count, LKS_F32, LKS_SUM, NULL));
            RANK_CHECK(is_sum_of_blocks(block, count, (int)size, 0, call));
            for (size_t i = 0; i < count; i++) data[i] = value_at(i, (int)(rank * 10), call);
            RANK_OK(lks_broadcast(group, data, count, LKS_F32, 1, NULL));
            RANK_CHECK(is_block(data, count, 1, 0, call));
        }
    }
    lks_symmetric_free(group, symmetric);
    lksi_free(ordinary), lksi_free(out);
    lks_group_destroy(group);
    return 0;
}

static void all_ranks_read_in_place_or_stage_alike(void **state) {
    (void)state;
    for (int sees_fewer_cpus = 0; sees_fewer_cpus < 2; sees_fewer_cpus++) {
        bool one_does = sees_fewer_cpus == 1; /* rank 1 sees fewer CPUs than the others */
        for (int n = IS_SLOW_BUILD ? 3 : 2; n <= 3; n++) {
            run_ranks(n, go_either_way, &one_does); /* threads can read each other's memory without the kernel */
            if (!IS_ABOUT_THREADS) assert_int_equal(lks_spawn(n, LKS_PROCESSES, go_either_way, &one_does), LKS_OK);
        }
    }
}

static void all_ranks_take_the_same_chunks(void **state) {
    (void)state;
    run_ranks(2, reduce_in_chunks_of_both_widths, NULL);
    run_ranks(3, reduce_in_chunks_of_both_widths, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_take_the_same_chunks),
        cmocka_unit_test(all_ranks_read_in_place_or_stage_alike),
    };
    return run_group(tests);
}
