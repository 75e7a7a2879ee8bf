/* lks_partition_dataset: a rank finds its part from its group. */
#include "test.h"

#include "comm/comm.h"
#include "data/data_internal.h"

#include <string.h>

enum { COUNT = 50, N_RANKS = 3, BATCH = 8 };

typedef struct rank_job {
    lksi_thread_world *world;
    lks_dataset *dataset;
    int rank;
    int n_seen[COUNT];
    int64_t local_batch, first_count;
    lks_status status;
} rank_job;

static lks_status read_one_epoch(rank_job *job, lks_group *group) {
    lks_loader *loader;
    LKS_TRY(lks_partition_dataset(group, job->dataset, BATCH, 1, &loader, &job->local_batch));
    lks_batch batch;
    while (lks_loader_next(loader, &batch)) {
        if (batch.step == 0) job->first_count = batch.count;
        for (int64_t i = 0; i < batch.count; i++) job->n_seen[batch.indices[i]]++;
    }
    lks_loader_destroy(loader);
    return LKS_OK;
}

static void run_rank(void *argument) {
    rank_job *job = argument;
    lks_group *group;
    lksi_thread_world_enter(job->world, job->rank);
    job->status = lks_init(&group, NULL);
    if (job->status == LKS_OK) {
        job->status = read_one_epoch(job, group);
        lks_group_destroy(group);
    }
    lksi_thread_world_leave(job->world, 0);
}

static void the_ranks_of_a_group_share_the_samples(void **state) {
    (void)state;
    rank_job jobs[N_RANKS] = {0};
    lksi_thread *threads[N_RANKS];
    lksi_thread_world *world;
    lks_dataset *dataset;
    assert_ok(lksi_dataset_create(&dataset, LKS_F32, COUNT, 1, 1));
    assert_ok(lksi_thread_world_create(&world, N_RANKS));
    for (int rank = 0; rank < N_RANKS; rank++) {
        jobs[rank] = (rank_job){.world = world, .dataset = dataset, .rank = rank};
        assert_ok(lksi_thread_create(&threads[rank], run_rank, &jobs[rank], "rank"));
    }
    for (int rank = 0; rank < N_RANKS; rank++) lksi_thread_join(threads[rank]);
    lksi_thread_world_destroy(world);
    lks_dataset_destroy(dataset);
    for (int rank = 0; rank < N_RANKS; rank++) {
        assert_int_equal(jobs[rank].status, LKS_OK);
        assert_int_equal(jobs[rank].local_batch, rank < 2 ? 3 : 2);
        assert_int_equal(jobs[rank].first_count, jobs[rank].local_batch);
    }
    for (int i = 0; i < COUNT; i++) assert_int_equal(jobs[0].n_seen[i] + jobs[1].n_seen[i] + jobs[2].n_seen[i], 1);
}

static void what_the_loader_refuses_is_refused(void **state) {
    (void)state;
    lks_group *world;
    lks_dataset *dataset;
    lks_loader *loader;
    int64_t local_batch = -7;
    assert_ok(lks_init(&world, NULL));
    assert_ok(lksi_dataset_create(&dataset, LKS_F32, COUNT, 1, 1));
    assert_int_equal(lks_partition_dataset(world, dataset, 0, 1, &loader, &local_batch), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "global batch 0"));
    assert_int_equal(lks_partition_dataset(NULL, dataset, BATCH, 1, &loader, &local_batch), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "partition_dataset: `group` is NULL");
    assert_int_equal(lks_partition_dataset(world, NULL, BATCH, 1, &loader, &local_batch), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "partition_dataset: `dataset` is NULL");
    assert_int_equal(lks_partition_dataset(world, dataset, BATCH, 1, NULL, &local_batch), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "partition_dataset: `loader` is NULL");
    assert_int_equal(lks_partition_dataset(world, dataset, BATCH, 1, &loader, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "partition_dataset: `local_batch` is NULL");
    assert_int_equal(local_batch, -7);
    lks_dataset_destroy(dataset);
    lks_group_destroy(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ranks_of_a_group_share_the_samples),
        cmocka_unit_test(what_the_loader_refuses_is_refused),
    };
    return run_group(tests);
}
