/* labels: no-tsan */
/* Checkpoints are independent of the strategy that saved them: any other reads them and continues with the same bits.
 * They contain no compression errors: a run that continues from a checkpoint holds nothing back. */
#include "ranks.h"

#include "base/base.h"

#include <lockstep/train.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 16, N_FEATURES = 64, STEPS_PER_EPOCH = 8, SAVED_AT = 3 };

static char directory[] = "/tmp/lockstep_strategies_XXXXXX";
static char saved_path[128], other_path[128];

typedef struct run {
    lks_strategy strategy;
    size_t bucket_nbytes;
    lks_compression compression;
    int64_t n_abandoned;     /* steps before the checkpoint is loaded and replaces them */
    int64_t n_steps;         /* number of steps to train, from the start or from the checkpoint */
    const char *load, *save; /* before and after training; NULL: none */
    char hex[65];
    size_t activations_nbytes; /* rank 0's */
} run;

typedef struct set_up {
    lks_group *group;
    lks_graph *graph;
    lks_dataset *data;
    lks_loader *loader;
    lks_trainer *trainer;
} set_up;

/* The model is large enough for several buckets on several ranks. */
static int create(set_up *s, const run *r) {
    RANK_OK(lks_init(&s->group, NULL));
    RANK_OK(lks_dataset_classification(&s->data, &(lks_classification_options){.n_samples = BATCH * STEPS_PER_EPOCH,
                                                                               .n_features = N_FEATURES,
                                                                               .n_informative = N_FEATURES,
                                                                               .n_classes = 4,
                                                                               .clusters_per_class = 1,
                                                                               .seed = 1}));
    RANK_OK(lks_loader_create(
        &s->loader, s->data,
        &(lks_loader_options){
            .batch = BATCH, .n_workers = -1, .rank = lks_group_rank(s->group), .n_ranks = lks_group_size(s->group)}));
    s->graph = lks_graph_create(lks_device_default(s->group));
    lks_node *x = lks_input(s->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_relu(lks_linear(lks_relu(lks_linear(x, 512, "fc1")), 128, "fc2"));
    RANK_OK(lks_trainer_create(&s->trainer, lks_cross_entropy(lks_linear(h, 4, "fc3"), y),
                               &(lks_trainer_options){.group = s->group,
                                                      .features = x,
                                                      .labels = y,
                                                      .optimizer = lks_adam(&(lks_adam_options){.clip_norm = 1}),
                                                      .strategy = r->strategy,
                                                      .bucket_nbytes = r->bucket_nbytes,
                                                      .compression = r->compression}));
    return 0;
}

static int make_steps(set_up *s, int64_t first, int64_t n_steps) {
    lks_batch batch;
    lks_loader_seek(s->loader, 0, first);
    for (int64_t i = 0; i < n_steps; i++) {
        RANK_CHECK(lks_loader_next(s->loader, &batch));
        RANK_OK(lks_trainer_step(s->trainer, &batch, NULL));
    }
    return 0;
}

static int train(void *argument) {
    run *r = argument;
    set_up s = {0};
    lks_position position = {.steps_per_epoch = STEPS_PER_EPOCH, .global_batch = BATCH};
    RANK_CHECK(create(&s, r) == 0);
    RANK_CHECK(make_steps(&s, 0, r->n_abandoned) == 0);
    if (r->load != NULL) RANK_OK(lks_trainer_load(s.trainer, r->load, &position));
    RANK_CHECK(make_steps(&s, position.step, r->n_steps) == 0);
    position.step += r->n_steps;
    if (r->save != NULL) RANK_OK(lks_trainer_save(s.trainer, r->save, &position));
    lks_distributed_memory memory;
    lks_trainer_memory(s.trainer, &memory);
    char hex[65];
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), hex));
    if (lks_group_rank(s.group) == 0) {
        memcpy(r->hex, hex, sizeof hex);
        r->activations_nbytes = memory.activations_nbytes;
    }
    RANK_OK(lks_barrier(s.group, NULL));
    lks_trainer_destroy(s.trainer);
    lks_graph_destroy(s.graph);
    lks_loader_destroy(s.loader);
    lks_dataset_destroy(s.data);
    lks_group_destroy(s.group);
    return 0;
}

static const run strategies[] = {{.strategy = LKS_STRATEGY_SHARED},
                                 {.strategy = LKS_STRATEGY_BUCKETED, .bucket_nbytes = 50000},
                                 {.strategy = LKS_STRATEGY_SHARDED, .bucket_nbytes = 1},
                                 {.strategy = LKS_STRATEGY_SHARDED, .bucket_nbytes = 1 << 30}};
enum { N_STRATEGIES = 4 };

static void compare_files(const char *a, const char *b) {
    void *bytes_a, *bytes_b;
    size_t nbytes_a, nbytes_b;
    assert_ok(lksi_file_read(a, 1 << 24, &bytes_a, &nbytes_a));
    assert_ok(lksi_file_read(b, 1 << 24, &bytes_b, &nbytes_b));
    assert_int_equal(nbytes_a, nbytes_b);
    assert_memory_equal(bytes_a, bytes_b, nbytes_a);
    lksi_free(bytes_a);
    lksi_free(bytes_b);
}

/* State that was restored to the wrong place, or not at all, would change the copied file or the later steps. */
static void every_strategy_reads_what_any_other_saved(void **state) {
    (void)state;
    for (int size = IS_SLOW_BUILD ? 2 : 1; size <= (IS_SLOW_BUILD ? 2 : 3); size++)
        for (int from = 0; from < N_STRATEGIES; from++) {
            run saved = strategies[from], through = strategies[from];
            saved.n_steps = SAVED_AT, saved.save = saved_path;
            through.n_steps = STEPS_PER_EPOCH;
            run_ranks(size, train, &saved);
            run_ranks(size, train, &through);
            for (int to = 0; to < N_STRATEGIES; to++) {
                run copied = strategies[to], resumed = strategies[to];
                copied.load = resumed.load = saved_path, copied.save = other_path;
                resumed.n_steps = STEPS_PER_EPOCH - SAVED_AT;
                run_ranks(size % 3 + 1, train, &copied); /* on another number of ranks */
                compare_files(saved_path, other_path);
                run_ranks(size, train, &resumed);
                assert_string_equal(resumed.hex, through.hex);
            }
        }
}

/* Holds for a new run, and for a run that abandons steps: its errors belong to other parameters than those it continues
 * from. */
static void who_goes_on_holds_back_nothing(void **state) {
    (void)state;
    static const lks_compression kinds[] = {
        {.kind = LKS_COMPRESS_BF16}, {.kind = LKS_COMPRESS_F16}, {.kind = LKS_COMPRESS_POWERSGD, .rank = 2}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int size = 2; size <= 3; size++) {
            run saved = {.compression = kinds[k], .n_steps = SAVED_AT, .save = saved_path};
            run begun = {.compression = kinds[k], .load = saved_path, .n_steps = STEPS_PER_EPOCH - SAVED_AT};
            run through = {.compression = kinds[k], .n_steps = STEPS_PER_EPOCH}, gone_back = begun;
            gone_back.n_abandoned = SAVED_AT + 2;
            run_ranks(size, train, &saved);
            run_ranks(size, train, &begun);
            run_ranks(size, train, &gone_back);
            run_ranks(size, train, &through);
            assert_string_equal(gone_back.hex, begun.hex);
            assert_string_not_equal(through.hex, begun.hex); /* this run held something back at the checkpoint */
        }
}

static void activations_are_counted(void **state) {
    (void)state;
    run r = {.n_steps = 1};
    run_ranks(2, train, &r);
    assert_true(r.activations_nbytes >= BATCH / 2 * (512 + 128) * sizeof(float));
}

static int remove_directory(void **state) {
    unlink(saved_path);
    unlink(other_path);
    rmdir(directory);
    return nothing_is_left(state);
}

int main(void) {
    if (mkdtemp(directory) == NULL) return 1;
    snprintf(saved_path, sizeof saved_path, "%s/saved", directory);
    snprintf(other_path, sizeof other_path, "%s/other", directory);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_reads_what_any_other_saved),
        cmocka_unit_test(who_goes_on_holds_back_nothing),
        cmocka_unit_test(activations_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, remove_directory);
}
