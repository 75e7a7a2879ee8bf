/* labels: no-tsan */
/* Synchronised batch norm in the trainer: any number of ranks follows one rank's curve, also if some have no sample in
 * a step, and if steps are taken in pieces. */
#include "ranks.h"

#include <lockstep/train.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { N_FEATURES = 16, N_CLASSES = 4, MAX_RANKS = 8, N_STEPS = 20, BATCH = 10, N_SAMPLES = 96, N_HIDDEN = 512 };

typedef struct run {
    int64_t n_pieces;
    int is_synchronised;
    lks_strategy strategy;
    double losses[N_STEPS];
    float variance[N_HIDDEN];
    int64_t n_empty;          /* number of parts of a batch without samples */
    int64_t step_allocations; /* in the last steps */
    char hex[MAX_RANKS][65];
} run;

typedef struct setting {
    lks_group *group;
    lks_dataset *data;
    lks_loader *loader;
    lks_graph *graph;
    lks_trainer *trainer;
} setting;

static int set_up(setting *s, const run *r) {
    RANK_OK(lks_init(&s->group, NULL));
    RANK_OK(lks_dataset_classification(&s->data, &(lks_classification_options){.n_samples = N_SAMPLES,
                                                                               .n_features = N_FEATURES,
                                                                               .n_informative = N_FEATURES,
                                                                               .n_classes = N_CLASSES,
                                                                               .clusters_per_class = 1}));
    RANK_OK(lks_loader_create(
        &s->loader, s->data,
        &(lks_loader_options){
            .batch = BATCH, .n_workers = -1, .rank = lks_group_rank(s->group), .n_ranks = lks_group_size(s->group)}));
    s->graph = lks_graph_create(lks_device_default(s->group));
    lks_node *x = lks_input(s->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_linear_with(x, N_HIDDEN, "fc1", &(lks_linear_options){.no_bias = 1});
    h = lks_relu(lks_batch_norm_with(h, "bn", &(lks_batch_norm_options){.is_synchronised = r->is_synchronised}));
    lks_node *logits = lks_linear(h, N_CLASSES, "fc2");
    lks_sgd_options sgd = {.lr = 0.05, .momentum = 0.9};
    RANK_OK(lks_trainer_create(&s->trainer, lks_cross_entropy(logits, y),
                               &(lks_trainer_options){.group = s->group,
                                                      .logits = logits,
                                                      .features = x,
                                                      .labels = y,
                                                      .optimizer = lks_sgd(&sgd),
                                                      .strategy = r->strategy,
                                                      .bucket_nbytes = 16384, /* several buckets */
                                                      .accumulate = r->n_pieces}));
    return 0;
}

static void tear_down(setting *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_loader_destroy(s->loader);
    lks_dataset_destroy(s->data);
    lks_group_destroy(s->group);
}

/* Batches of 10 and, at the end of an epoch, of 6 samples: then two of eight ranks have none. */
static int step_through(run *r, setting *s) {
    lks_batch batch;
    lks_metrics metrics;
    for (int step = 0; step < N_STEPS; step++) {
        if (!lks_loader_next(s->loader, &batch)) RANK_CHECK(lks_loader_next(s->loader, &batch));
        int64_t before = lks_memory_allocation_count();
        RANK_OK(lks_trainer_step(s->trainer, &batch, &metrics));
        if (lks_group_rank(s->group) == 0) {
            r->losses[step] = metrics.loss;
            if (step > N_STEPS / 2) r->step_allocations += lks_memory_allocation_count() - before;
        }
        if (lks_group_rank(s->group) == lks_group_size(s->group) - 1) r->n_empty += batch.count == 0;
        RANK_OK(lks_barrier(s->group, NULL)); /* no rank may allocate while another still counts */
    }
    return 0;
}

static int train(void *argument) {
    run *r = argument;
    setting s;
    lks_metrics metrics;
    RANK_CHECK(set_up(&s, r) == 0);
    RANK_CHECK(step_through(r, &s) == 0);
    const lks_store *store = lks_trainer_store(s.trainer);
    RANK_OK(lks_check_replicas(s.group, store));
    RANK_OK(lks_store_sha256(store, r->hex[lks_group_rank(s.group)]));
    if (lks_group_rank(s.group) == 0)
        RANK_OK(lks_store_read(store, lks_store_find(store, "bn.running_var"), r->variance));
    RANK_OK(lks_trainer_evaluate(s.trainer, s.data, &metrics)); /* uses running statistics, no other ranks */
    RANK_CHECK(metrics.n_samples == N_SAMPLES && isfinite(metrics.loss));
    RANK_OK(lks_barrier(s.group, NULL));
    tear_down(&s);
    return 0;
}

static void check_run(const run *divided, const run *whole, int size) {
    for (int step = 0; step < N_STEPS; step++)
        assert_true(fabs(divided->losses[step] - whole->losses[step]) < 1e-5 * whole->losses[step]);
    for (int c = 0; c < N_HIDDEN; c++)
        assert_float_equal(divided->variance[c], whole->variance[c], 1e-5f * whole->variance[c]);
    for (int rank = 1; rank < size; rank++) assert_string_equal(divided->hex[rank], divided->hex[0]);
    assert_int_equal(divided->step_allocations, 0);
    assert_int_equal(divided->n_empty, size > 6 ? N_STEPS / 10 : 0);
}

/* The tolerance covers f32 sums in another order, over 20 steps. If buckets are in transit during the backward pass, so
 * are statistics. */
static void any_number_of_ranks_follows_one_by_every_strategy(void **state) {
    (void)state;
    run whole = {0};
    run_ranks(1, train, &whole);
    for (int size = 1; size <= MAX_RANKS; size++) {
        run shared = {.is_synchronised = 1, .strategy = LKS_STRATEGY_SHARED};
        run_ranks(size, train, &shared);
        check_run(&shared, &whole, size);
        for (lks_strategy strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
            run bucketed = {.is_synchronised = 1, .strategy = strategy};
            run_ranks(size, train, &bucketed);
            check_run(&bucketed, &whole, size);
            assert_string_equal(bucketed.hex[0], shared.hex[0]);
        }
    }
}

/* The steps have more pieces than some ranks, or all, have samples. All ranks must make equally many passes, otherwise
 * they would deadlock. */
static void pieces_are_as_many_on_every_rank(void **state) {
    (void)state;
    for (int size = 1; size <= MAX_RANKS; size += size < 3 ? 1 : 5)
        for (int64_t n = 2; n <= 12; n += 5) {
            run pieces = {.is_synchronised = 1, .n_pieces = n, .strategy = (lks_strategy)(1 + n % 3)};
            run_ranks(size, train, &pieces);
            for (int rank = 1; rank < size; rank++) assert_string_equal(pieces.hex[rank], pieces.hex[0]);
            for (int step = 0; step < N_STEPS; step++) assert_true(isfinite(pieces.losses[step]));
        }
}

/* Rank 1's label is not a class. The others are in the middle of their pass then. */
static int step_with_a_bad_label(void *argument) {
    setting s;
    lks_batch batch;
    RANK_CHECK(set_up(&s, argument) == 0);
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    int32_t bad[BATCH] = {N_CLASSES};
    if (lks_group_rank(s.group) == 1) batch.labels = bad;
    lks_status status = lks_trainer_step(s.trainer, &batch, NULL);
    RANK_CHECK(status == (lks_group_rank(s.group) == 1 ? LKS_ERR_ARGUMENT : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(), "label") != NULL);
    tear_down(&s);
    return 0;
}

static void a_rank_that_fails_in_its_pass_fails_the_step_on_all(void **state) {
    (void)state;
    for (lks_strategy strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        run r = {.is_synchronised = 1, .strategy = strategy};
        run_ranks(3, step_with_a_bad_label, &r);
    }
}

/* Rank 1's sample is NaN. In the summed statistics it would spread to all ranks. */
static int step_with_a_bad_sample(void *argument) {
    setting s;
    lks_batch batch;
    RANK_CHECK(set_up(&s, argument) == 0);
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    bool is_bad = lks_group_rank(s.group) == 1;
    if (is_bad) ((float *)(uintptr_t)batch.features)[0] = NAN;
    RANK_CHECK(lks_trainer_step(s.trainer, &batch, NULL) == (is_bad ? LKS_ERR_NUMERIC : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(), "rank 1 passed values that are not finite to a synchronised batch norm") !=
               NULL);
    tear_down(&s);
    return 0;
}

static void a_sample_that_is_no_number_is_its_ranks(void **state) {
    (void)state;
    for (lks_strategy strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        run r = {.is_synchronised = 1, .strategy = strategy};
        run_ranks(3, step_with_a_bad_sample, &r);
    }
}

static int create_with_grains(void *argument) {
    (void)argument;
    lks_group *group;
    lks_trainer *trainer;
    RANK_OK(lks_init(&group, NULL));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_CLASSES});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = lks_batch_norm_with(x, "bn", &(lks_batch_norm_options){.is_synchronised = 1});
    lks_status status = lks_trainer_create(
        &trainer, lks_cross_entropy(logits, y),
        &(lks_trainer_options){
            .group = group, .features = x, .labels = y, .optimizer = lks_sgd(&(lks_sgd_options){0}), .grains = 2});
    RANK_CHECK(status == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "grains 2 cannot be used with synchronised batch norms") != NULL);
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

static void grains_have_statistics_of_their_own(void **state) {
    (void)state;
    run_ranks(1, create_with_grains, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_follows_one_by_every_strategy),
        cmocka_unit_test(pieces_are_as_many_on_every_rank),
        cmocka_unit_test(grains_have_statistics_of_their_own),
        cmocka_unit_test(a_sample_that_is_no_number_is_its_ranks),
        cmocka_unit_test(a_rank_that_fails_in_its_pass_fails_the_step_on_all),
    };
    return run_group(tests);
}
