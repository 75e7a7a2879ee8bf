/* labels: no-tsan */
/* A trainer whose samples have targets instead of labels: the same model on any number of ranks, with the same bits
 * with grains, and the same as a user's own loop. Unsuitable models are refused. */
#include "ranks.h"

#include <lockstep/operators.h>
#include <lockstep/train.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { COUNT = 50, K = 5, M = 3, BATCH = 8, N_EPOCHS = 3, MAX_RANKS = 4 };

typedef struct job {
    int64_t grains, accumulate;
    int is_synchronised, has_own_loop, has_detached;
    lks_strategy strategy;
    const char *transport;
    double loss;           /* of the last step */
    lks_metrics evaluated; /* of rank 0, like the loss */
    float weight[M * K];
    char hex[MAX_RANKS][65];
} job;

typedef struct model {
    lks_node *x, *y, *loss;
} model;

static model build(lks_graph *graph, const job *j) {
    model m = {.x = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, K}),
               .y = lks_input(graph, "y", LKS_F32, 2, (int64_t[]){LKS_BATCH, M})};
    lks_node *h = lks_linear(m.x, M, "fc");
    if (j->is_synchronised) h = lks_batch_norm_with(h, "norm", &(lks_batch_norm_options){.is_synchronised = 1});
    if (j->has_detached) h = lks_add(h, lks_detach(lks_linear(m.x, M, "still")));
    m.loss = lks_mse(h, m.y);
    return m;
}

/* y = (sum of x, its first element, 2): no labels could have such values. */
static lks_dataset *make_data(int64_t n_targets) {
    float x[COUNT * K], y[COUNT * M];
    for (int64_t i = 0; i < COUNT; i++) {
        float *target = y + i * n_targets;
        target[0] = 0;
        for (int64_t k = 0; k < K; k++) {
            x[i * K + k] = (float)((i * 7 + k * 3) % 11) / 8 - 0.5f;
            target[0] += x[i * K + k];
        }
        if (n_targets == M) target[1] = x[i * K], target[2] = 2;
    }
    lks_dataset *data;
    assert_ok(lks_dataset_create(
        &data,
        &(lks_dataset_options){.features = x, .targets = y, .count = COUNT, .n_features = K, .n_targets = n_targets}));
    return data;
}

static const lks_sgd_options sgd = {.lr = 0.25};

static int read_still(const lks_store *store, float *values) {
    RANK_OK(lks_store_read(store, lks_store_find(store, "still.weight"), values));
    return 0;
}

static int train_by_trainer(lks_group *group, const model *m, const lks_dataset *data, lks_loader *loader, job *j) {
    lks_trainer *trainer;
    lks_batch batch;
    lks_metrics metrics = {0};
    int rank = lks_group_rank(group);
    RANK_OK(lks_trainer_create(&trainer, m->loss,
                               &(lks_trainer_options){.group = group,
                                                      .features = m->x,
                                                      .labels = m->y,
                                                      .optimizer = lks_sgd(&sgd),
                                                      .grains = j->grains,
                                                      .strategy = j->strategy,
                                                      .accumulate = j->accumulate}));
    float before[M * K], after[M * K];
    if (j->has_detached) RANK_CHECK(read_still(lks_trainer_store(trainer), before) == 0);
    for (int epoch = 0; epoch < N_EPOCHS; epoch++)
        while (lks_loader_next(loader, &batch)) {
            RANK_OK(lks_trainer_step(trainer, &batch, &metrics));
            RANK_CHECK(metrics.n_samples == batch.global_count);
        }
    lks_metrics evaluated;
    RANK_OK(lks_trainer_evaluate(trainer, data, &evaluated));
    RANK_CHECK(evaluated.n_samples == COUNT);
    lks_store *store = lks_trainer_store(trainer);
    if (j->has_detached) RANK_CHECK(read_still(store, after) == 0 && memcmp(after, before, sizeof after) == 0);
    RANK_OK(lks_check_replicas(group, store));
    RANK_OK(lks_store_sha256(store, j->hex[rank]));
    if (rank == 0) {
        j->loss = metrics.loss, j->evaluated = evaluated;
        RANK_OK(lks_store_read(store, lks_store_find(store, "fc.weight"), j->weight));
    }
    RANK_OK(lks_barrier(group, NULL));
    lks_trainer_destroy(trainer);
    return 0;
}

/* On one rank. */
static int train_by_hand(lks_group *group, const model *m, lks_loader *loader, job *j) {
    lks_store *store;
    lks_program *programs[2]; /* the last batch of an epoch is short */
    lks_distributed_optimizer *optimizer;
    lks_optimizer rule = lks_sgd(&sgd);
    lks_batch batch;
    RANK_OK(lks_store_create(&store, m->loss, NULL));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    for (int i = 0; i < 2; i++)
        RANK_OK(lks_program_create(
            &programs[i], store,
            &(lks_program_options){.batch = i == 0 ? BATCH : COUNT % BATCH, .is_training = 1, .loss = m->loss}));
    for (int epoch = 0; epoch < N_EPOCHS; epoch++)
        while (lks_loader_next(loader, &batch)) {
            lks_program *program = programs[batch.count < BATCH];
            RANK_OK(lks_program_set_batch(program, m->x, m->y, &batch));
            RANK_OK(lks_program_forward(program));
            RANK_OK(lks_program_backward(program, (double)batch.count));
            lks_step_sums mine = {.n_samples = (double)batch.count,
                                  .loss = (double)batch.count * lks_program_scalar(program, m->loss)};
            RANK_OK(lks_distributed_optimizer_step(optimizer, &mine, NULL));
        }
    RANK_OK(lks_store_sha256(store, j->hex[0]));
    lks_distributed_optimizer_destroy(optimizer);
    for (int i = 0; i < 2; i++) lks_program_destroy(programs[i]);
    lks_store_destroy(store);
    return 0;
}

static int train(void *argument) {
    job *j = argument;
    lks_group *group;
    lks_loader *loader;
    RANK_OK(lks_init(&group, &(lks_init_options){.transport = j->transport}));
    lks_graph *graph = lks_graph_create(lks_device_default(group));
    model m = build(graph, j);
    lks_dataset *data = make_data(M);
    RANK_OK(lks_loader_create(&loader, data,
                              &(lks_loader_options){.batch = BATCH,
                                                    .seed = 3,
                                                    .grains = j->grains,
                                                    .rank = lks_group_rank(group),
                                                    .n_ranks = lks_group_size(group)}));
    int failed = j->has_own_loop ? train_by_hand(group, &m, loader, j) : train_by_trainer(group, &m, data, loader, j);
    lks_loader_destroy(loader);
    lks_dataset_destroy(data);
    lks_graph_destroy(graph);
    lks_group_destroy(group);
    return failed;
}

static void check_close(const job *j, const job *whole) {
    assert_true(fabs(j->loss - whole->loss) < 1e-6);
    assert_true(fabs(j->evaluated.loss - whole->evaluated.loss) < 1e-6);
    for (int i = 0; i < M * K; i++)
        if (!(fabsf(j->weight[i] - whole->weight[i]) < 1e-5f))
            fail_msg("weight %d: %.9g, of one rank %.9g", i, j->weight[i], whole->weight[i]);
}

/* The last batch of an epoch has two samples, so some ranks have none. */
static void any_number_of_ranks_and_pieces_trains_the_same_model(void **state) {
    (void)state;
    for (int is_synchronised = 0; is_synchronised < 2; is_synchronised++) {
        job whole = {.is_synchronised = is_synchronised};
        run_ranks(1, train, &whole);
        assert_true(whole.evaluated.loss < 0.5 && whole.loss > 0);
        for (int size = 1; size <= MAX_RANKS; size++)
            for (int64_t accumulate = 1; accumulate <= 2; accumulate++) {
                job j = {.is_synchronised = is_synchronised, .accumulate = accumulate};
                if (is_synchronised && accumulate > 1) continue; /* each piece has its own statistics */
                run_ranks(size, train, &j);
                check_close(&j, &whole);
            }
    }
}

static void with_grains_to_the_bit(void **state) {
    (void)state;
    job whole = {.grains = 4};
    run_ranks(1, train, &whole);
    for (int size = 2; size <= MAX_RANKS; size *= 2) {
        job j = {.grains = 4};
        run_ranks(size, train, &j);
        assert_string_equal(j.hex[size - 1], whole.hex[0]);
        assert_true(j.loss == whole.loss && j.evaluated.loss == whole.evaluated.loss);
    }
}

static void a_loop_of_ones_own_trains_what_a_trainer_does(void **state) {
    (void)state;
    job by_trainer = {0}, by_hand = {.has_own_loop = 1};
    run_ranks(1, train, &by_trainer);
    run_ranks(1, train, &by_hand);
    assert_string_equal(by_hand.hex[0], by_trainer.hex[0]);
}

/* Gradients are in transit during the backward pass. This test comes first: it forks, so no thread may exist yet. */
static void over_tcp_what_is_only_used_detached_stays_as_it_is(void **state) {
    (void)state;
    for (lks_strategy strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        job j = {.has_detached = 1, .strategy = strategy, .transport = "tcp"};
        if (lks_spawn(2, LKS_PROCESSES, train, &j) != LKS_OK) fail_msg("%s", lks_error_text());
    }
}

/* Holds for every division of the work, and if parameter and gradient arrays are swapped. */
static void what_is_only_used_detached_stays_as_it_is(void **state) {
    (void)state;
    for (int size = 1; size <= MAX_RANKS; size++)
        for (lks_strategy strategy = LKS_STRATEGY_AUTO; strategy <= LKS_STRATEGY_SHARDED; strategy++)
            for (int64_t accumulate = 1; accumulate <= 2; accumulate++) {
                job j = {.has_detached = 1, .strategy = strategy, .accumulate = accumulate};
                run_ranks(size, train, &j);
            }
}

/* --- errors --- */

static void check_refused(lks_status status, const char *text) {
    assert_int_equal(status, LKS_ERR_SHAPE);
    if (strstr(lks_error_text(), text) == NULL) fail_msg("\"%s\" is not in: %s", text, lks_error_text());
}

/* Takes a step, runs a batch in a program, and evaluates `data`, with a model of labels or of targets. */
static void refuse(lks_dataset *data, bool has_labels, const char *text) {
    lks_group *group;
    lks_trainer *trainer;
    lks_program *program;
    lks_loader *loader;
    lks_batch batch;
    lks_metrics metrics;
    for (int is_evaluation = 0; is_evaluation < 2; is_evaluation++) {
        assert_ok(lks_init(&group, NULL));
        lks_graph *graph = lks_graph_create(lks_device_default(group));
        model m = build(graph, &(job){0});
        if (has_labels) {
            m.y = lks_input(graph, "labels", LKS_I32, 1, (int64_t[]){LKS_BATCH});
            m.loss = lks_cross_entropy(lks_linear(m.x, M, "classes"), m.y);
        }
        lks_trainer_options options = {.group = group, .features = m.x, .labels = m.y, .optimizer = lks_sgd(&sgd)};
        assert_ok(lks_trainer_create(&trainer, m.loss, &options));
        assert_ok(lks_loader_create(&loader, data, &(lks_loader_options){.batch = BATCH}));
        assert_true(lks_loader_next(loader, &batch));
        assert_ok(lks_program_create(&program, lks_trainer_store(trainer),
                                     &(lks_program_options){.batch = BATCH, .loss = m.loss}));
        check_refused(lks_program_set_batch(program, m.x, m.y, &batch), text);
        check_refused(is_evaluation ? lks_trainer_evaluate(trainer, data, &metrics)
                                    : lks_trainer_step(trainer, &batch, &metrics),
                      text);
        lks_program_destroy(program);
        lks_loader_destroy(loader);
        lks_trainer_destroy(trainer);
        lks_graph_destroy(graph);
        lks_group_destroy(group);
    }
}

/* Targets of a fixed number of samples, or one scalar for all of them. */
static void targets_need_the_batch_first(void **state) {
    (void)state;
    lks_dataset *data = make_data(M);
    for (int n_dims = 0; n_dims <= 2; n_dims += 2) {
        lks_group *group;
        lks_trainer *trainer;
        lks_loader *loader;
        lks_batch batch;
        assert_ok(lks_init(&group, NULL));
        lks_graph *graph = lks_graph_create(lks_device_default(group));
        lks_node *x = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, K});
        lks_node *y = lks_input(graph, "y", LKS_F32, n_dims, (int64_t[]){BATCH, M});
        lks_node *difference = lks_sub(lks_mean(lks_linear(x, M, "fc"), 0, NULL, 0), y);
        lks_node *loss = lks_mean(lks_mul(difference, difference), 0, NULL, 0);
        assert_ok(lks_trainer_create(
            &trainer, loss,
            &(lks_trainer_options){.group = group, .features = x, .labels = y, .optimizer = lks_sgd(&sgd)}));
        assert_ok(lks_loader_create(&loader, data, &(lks_loader_options){.batch = BATCH}));
        assert_true(lks_loader_next(loader, &batch));
        check_refused(lks_trainer_step(trainer, &batch, NULL), "does not begin with the batch, LKS_BATCH");
        lks_loader_destroy(loader);
        lks_trainer_destroy(trainer);
        lks_graph_destroy(graph);
        lks_group_destroy(group);
    }
    lks_dataset_destroy(data);
}

static void labels_and_targets_are_not_taken_for_each_other(void **state) {
    (void)state;
    lks_dataset *classes, *one = make_data(1), *three = make_data(M);
    assert_ok(lks_dataset_classification(
        &classes, &(lks_classification_options){.n_features = K, .n_classes = M, .clusters_per_class = 1}));
    refuse(classes, false, "have 0 targets (f32; 0: they have labels), the model's input takes 3 (f32)");
    refuse(one, false, "have 1 targets (f32; 0: they have labels), the model's input takes 3 (f32)");
    refuse(one, true, "have 1 targets (f32), the model's input takes labels (i32)");
    refuse(three, true, "have 3 targets (f32), the model's input takes labels (i32)");
    lks_dataset_destroy(classes);
    lks_dataset_destroy(one);
    lks_dataset_destroy(three);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(over_tcp_what_is_only_used_detached_stays_as_it_is),
                                       cmocka_unit_test(any_number_of_ranks_and_pieces_trains_the_same_model),
                                       cmocka_unit_test(with_grains_to_the_bit),
                                       cmocka_unit_test(a_loop_of_ones_own_trains_what_a_trainer_does),
                                       cmocka_unit_test(what_is_only_used_detached_stays_as_it_is),
                                       cmocka_unit_test(targets_need_the_batch_first),
                                       cmocka_unit_test(labels_and_targets_are_not_taken_for_each_other)};
    return run_group(tests);
}
