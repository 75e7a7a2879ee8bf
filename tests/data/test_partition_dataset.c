/* lks_partition_dataset: the rank's part follows from its group. */
#include "test.h"

#include "comm/comm.h"
#include "data/data_internal.h"

#include <lockstep/graph.h>
#include <lockstep/nn.h>

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
    assert_ok(lksi_dataset_create(&dataset, LKS_F32, COUNT, 1, 1, 0));
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

static void a_data_set_smaller_than_the_batch_is_one_batch(void **state) {
    (void)state;
    lks_group *world;
    lks_dataset *dataset;
    lks_loader *loader;
    int64_t local_batch;
    lks_batch batch;
    assert_ok(lks_init(&world, NULL));
    assert_ok(lksi_dataset_create(&dataset, LKS_F32, COUNT, 1, 1, 0));
    assert_ok(lks_partition_dataset(world, dataset, 10 * COUNT, 1, &loader, &local_batch));
    assert_int_equal(local_batch, COUNT);
    assert_int_equal(lks_loader_next(loader, &batch), 1);
    assert_int_equal(batch.count, COUNT);
    assert_int_equal(lks_loader_next(loader, &batch), 0);
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
    lks_group_destroy(world);
}

/* A program with 8 samples: the last of 50 samples in batches of 8 has 2. */
static void a_program_takes_batches_of_its_size(void **state) {
    (void)state;
    lks_group *world;
    lks_dataset *dataset;
    lks_loader *loader;
    lks_store *store;
    lks_program *program;
    int64_t local_batch;
    lks_batch batch;
    assert_ok(lks_init(&world, NULL));
    assert_ok(lksi_dataset_create(&dataset, LKS_F32, COUNT, 1, 1, 0));
    assert_ok(lks_partition_dataset(world, dataset, BATCH, 1, &loader, &local_batch));
    lks_graph *g = lks_graph_create(lks_device_default(world));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 1});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(x, 1, "fc"), y);
    assert_ok(lks_store_create(&store, loss, NULL));
    assert_ok(lks_program_create(&program, store,
                                 &(lks_program_options){.batch = local_batch, .is_training = 1, .loss = loss}));
    lks_batch nothing = {.sample_nbytes = sizeof(float), .count = BATCH, .n_ranks = 1};
    assert_ok(lks_program_set_batch(program, x, y, &nothing)); /* the inputs are unset again */
    assert_int_equal(lks_program_forward(program), LKS_ERR_STATE);
    while (lks_loader_next(loader, &batch)) {
        if (batch.count == BATCH) {
            assert_ok(lks_program_set_batch(program, x, y, &batch));
            assert_ok(lks_program_forward(program));
            continue;
        }
        assert_int_equal(lks_program_set_batch(program, x, y, &batch), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), "a batch of 2 samples for a program of 8"));
    }
    assert_int_equal(lks_program_set_batch(program, x, y, NULL), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_program_set_batch(NULL, x, y, &batch), LKS_ERR_ARGUMENT);
    float features[BATCH] = {0}, targets[BATCH] = {0};
    lks_batch own = {.features = features, .targets = targets, .count = BATCH, .sample_nbytes = sizeof(float)};
    assert_int_equal(lks_program_set_batch(program, x, y, &own), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "a batch has targets, but its n_targets is 0"));
    own.targets = NULL, own.n_targets = 1;
    assert_int_equal(lks_program_set_batch(program, x, y, &own), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "a batch has no targets, but its n_targets is 1"));
    own.targets = targets, own.n_targets = 0;
    own.sample_type = LKS_I32;
    assert_int_equal(lks_program_set_batch(program, x, y, &own), LKS_ERR_SHAPE);
    assert_non_null(strstr(lks_error_text(), "samples of 1 i32 do not fit the model's input, of 1 f32"));
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
    lks_group_destroy(world);
}

static void what_the_loader_refuses_is_refused(void **state) {
    (void)state;
    lks_group *world;
    lks_dataset *dataset;
    lks_loader *loader;
    int64_t local_batch = -7;
    assert_ok(lks_init(&world, NULL));
    assert_ok(lksi_dataset_create(&dataset, LKS_F32, COUNT, 1, 1, 0));
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
        cmocka_unit_test(a_data_set_smaller_than_the_batch_is_one_batch),
        cmocka_unit_test(a_program_takes_batches_of_its_size),
        cmocka_unit_test(what_the_loader_refuses_is_refused),
    };
    return run_group(tests);
}
