/* The trainer: steps, evaluation, errors. */
#include "ranks.h"

#include <lockstep/train.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct result {
    char hex[65];
    lks_metrics first, last, evaluated;
    int64_t step_allocations;
} result;

typedef struct set_up {
    lks_group *group;
    lks_graph *graph;
    lks_dataset *data;
    lks_loader *loader;
    lks_trainer *trainer;
} set_up;

static int create(set_up *s) {
    RANK_OK(lks_init(&s->group, NULL));
    RANK_OK(lks_dataset_classification(&s->data, &(lks_classification_options){.n_samples = 1030,
                                                                               .n_features = 16,
                                                                               .n_informative = 16,
                                                                               .n_classes = 4,
                                                                               .clusters_per_class = 2,
                                                                               .seed = 1}));
    RANK_OK(lks_loader_create(&s->loader, s->data,
                              &(lks_loader_options){.batch = 64,
                                                    .seed = 2,
                                                    .n_workers = -1,
                                                    .rank = lks_group_rank(s->group),
                                                    .n_ranks = lks_group_size(s->group)}));
    s->graph = lks_graph_create(lks_device_default(s->group));
    lks_node *x = lks_input(s->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 16});
    lks_node *y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = lks_linear(lks_relu(lks_linear(x, 32, "fc1")), 4, "fc2");
    (void)lks_input(s->graph, "of no use", LKS_F32, 1, (int64_t[]){LKS_BATCH});
    RANK_OK(lks_trainer_create(&s->trainer, lks_cross_entropy(logits, y),
                               &(lks_trainer_options){.group = s->group,
                                                      .logits = logits,
                                                      .features = x,
                                                      .labels = y,
                                                      .optimizer = lks_adam(&(lks_adam_options){.lr = 1e-2}),
                                                      .seed = 4}));
    return 0;
}

static void destroy(set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_loader_destroy(s->loader);
    lks_dataset_destroy(s->data);
    lks_group_destroy(s->group);
}

static int train(void *argument) {
    set_up s = {0};
    RANK_CHECK(create(&s) == 0);
    result r = {0};
    lks_batch batch;
    for (int epoch = 0; epoch < 2; epoch++)
        for (int step = 0; lks_loader_next(s.loader, &batch); step++) {
            int64_t before = lks_memory_allocation_count();
            RANK_OK(lks_trainer_step(s.trainer, &batch, &r.last));
            if (epoch == 0 && step == 0) r.first = r.last;
            if (epoch == 1) r.step_allocations += lks_memory_allocation_count() - before;
            RANK_OK(lks_barrier(s.group, NULL)); /* no rank may evaluate while another still counts */
        }
    RANK_OK(lks_trainer_evaluate(s.trainer, s.data, &r.evaluated));
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), r.hex));
    if (lks_group_rank(s.group) == 0) *(result *)argument = r;
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void training_learns_and_repeats_to_the_bit(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) {
        result a, b;
        run_ranks(size, train, &a);
        run_ranks(size, train, &b);
        assert_string_equal(a.hex, b.hex);
        assert_true(a.evaluated.loss < a.first.loss / 2);
        assert_int_equal(a.first.n_samples, 64);
        assert_int_equal(a.last.n_samples, 1030 % 64); /* the short last batch is not dropped */
        assert_int_equal(a.evaluated.n_samples, 1030);
        assert_int_equal(a.step_allocations, 0); /* the programs of all batch sizes were compiled in the first epoch */
    }
}

static int evaluate(void *argument) {
    set_up s = {0};
    RANK_CHECK(create(&s) == 0);
    lks_metrics metrics;
    RANK_OK(lks_trainer_evaluate(s.trainer, s.data, &metrics));
    if (lks_group_rank(s.group) == 0) *(lks_metrics *)argument = metrics;
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void evaluation_is_the_same_on_any_number_of_ranks(void **state) {
    (void)state;
    lks_metrics one, many;
    run_ranks(1, evaluate, &one);
    for (int size = 2; size <= 5; size++) {
        run_ranks(size, evaluate, &many);
        assert_true(many.loss == one.loss && many.accuracy == one.accuracy);
    }
}

static int evaluate_samples_of_another_size(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_dataset *other;
    lks_metrics metrics;
    RANK_CHECK(create(&s) == 0);
    RANK_OK(lks_dataset_classification(
        &other,
        &(lks_classification_options){.n_samples = 10, .n_features = 8, .n_classes = 2, .clusters_per_class = 1}));
    RANK_CHECK(lks_trainer_evaluate(s.trainer, other, &metrics) == LKS_ERR_SHAPE);
    RANK_CHECK(strstr(lks_error_text(), "samples of 8 features do not fit the model's input of 16") != NULL);
    lks_dataset_destroy(other);
    destroy(&s);
    return 0;
}

static void samples_of_another_size_are_refused(void **state) {
    (void)state;
    run_ranks(2, evaluate_samples_of_another_size, NULL);
}

/* One sample is NaN. It belongs to one of the ranks. */
static int evaluate_to_nan(void *argument) {
    (void)argument;
    enum { N = 1100 };
    float features[N * 16] = {0}; /* on the stack, because a rank may be a thread */
    int32_t labels[N] = {0};
    set_up s = {0};
    lks_dataset *spoilt;
    lks_metrics metrics;
    RANK_CHECK(create(&s) == 0);
    features[(N - 1) * 16] = (float)NAN;
    RANK_OK(lks_dataset_create(
        &spoilt,
        &(lks_dataset_options){.count = N, .n_features = 16, .n_classes = 4, .features = features, .labels = labels}));
    RANK_CHECK(lks_trainer_evaluate(s.trainer, spoilt, &metrics) == LKS_ERR_NUMERIC);
    RANK_CHECK(strcmp(lks_error_text(), "the loss of the evaluation is nan") == 0);
    RANK_CHECK(isnan(metrics.loss) && metrics.n_samples == N);
    RANK_OK(lks_trainer_evaluate(s.trainer, s.data, &metrics)); /* the group is usable */
    lks_dataset_destroy(spoilt);
    destroy(&s);
    return 0;
}

static void an_evaluation_to_nan_is_an_error_on_all_ranks(void **state) {
    (void)state;
    run_ranks(3, evaluate_to_nan, NULL);
}

static int evaluate_four_labels_each(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_metrics metrics;
    RANK_CHECK(create(&s) == 0);
    lks_graph *g = lks_graph_create(lks_device_default(s.group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 16});
    lks_node *y = lks_input(g, "y", LKS_I32, 2, (int64_t[]){LKS_BATCH, 4});
    lks_node *logits = lks_linear(lks_reshape(x, 3, (int64_t[]){LKS_BATCH, 4, 4}), 4, "fc");
    lks_trainer *trainer;
    RANK_OK(lks_trainer_create(
        &trainer, lks_cross_entropy(logits, y),
        &(lks_trainer_options){.group = s.group, .features = x, .labels = y, .optimizer = lks_sgd(NULL)}));
    RANK_CHECK(lks_trainer_evaluate(trainer, s.data, &metrics) == LKS_ERR_SHAPE);
    RANK_CHECK(strstr(lks_error_text(), "one label per sample, the model's input takes 4") != NULL);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(g);
    destroy(&s);
    return 0;
}

static void a_data_set_has_one_label_per_sample(void **state) {
    (void)state;
    run_ranks(2, evaluate_four_labels_each, NULL);
}

/* Only rank 1 fails to begin. Rank 0 gets the error and does not wait. */
static int evaluate_what_one_rank_cannot(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_dataset *other;
    lks_metrics metrics;
    RANK_CHECK(create(&s) == 0);
    RANK_OK(lks_dataset_classification(
        &other,
        &(lks_classification_options){.n_samples = 10, .n_features = 8, .n_classes = 2, .clusters_per_class = 1}));
    bool is_odd = lks_group_rank(s.group) == 1;
    lks_status status = lks_trainer_evaluate(s.trainer, is_odd ? other : s.data, &metrics);
    RANK_CHECK(status == (is_odd ? LKS_ERR_SHAPE : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(), "samples of 8 features") != NULL);
    lks_dataset_destroy(other);
    destroy(&s);
    return 0;
}

static void a_rank_that_cannot_evaluate_is_not_waited_for(void **state) {
    (void)state;
    run_ranks(2, evaluate_what_one_rank_cannot, NULL);
}

/* Only rank 1 passes no data set, or no place for the metrics. */
static int evaluate_nothing(void *argument) {
    const char *missing = argument;
    set_up s = {0};
    lks_metrics metrics;
    RANK_CHECK(create(&s) == 0);
    bool is_odd = lks_group_rank(s.group) == 1, has_dataset = strcmp(missing, "dataset") != 0;
    lks_status status = lks_trainer_evaluate(s.trainer, is_odd && !has_dataset ? NULL : s.data,
                                             is_odd && has_dataset ? NULL : &metrics);
    char text[64];
    snprintf(text, sizeof text, "trainer_evaluate: `%s` is NULL", missing);
    RANK_CHECK(status == (is_odd ? LKS_ERR_ARGUMENT : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(), text) != NULL);
    destroy(&s);
    return 0;
}

static void an_evaluation_of_nothing_is_refused(void **state) {
    (void)state;
    run_ranks(2, evaluate_nothing, "dataset");
    run_ranks(2, evaluate_nothing, "metrics");
    lks_metrics metrics;
    assert_int_equal(lks_trainer_evaluate(NULL, NULL, &metrics), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "trainer_evaluate: `trainer` is NULL");
    assert_int_equal(lks_trainer_evaluate_text(NULL, NULL, 2, &metrics), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "trainer_evaluate_text: `trainer` is NULL");
}

/* The last rank has other samples, as many or fewer. */
static int evaluate_different_data(void *argument) {
    const int64_t *n_samples = argument;
    set_up s = {0};
    lks_dataset *other;
    lks_metrics metrics = {.n_samples = 7};
    char expected[64];
    RANK_CHECK(create(&s) == 0);
    RANK_OK(lks_dataset_classification(&other, &(lks_classification_options){.n_samples = *n_samples,
                                                                             .n_features = 16,
                                                                             .n_informative = 16,
                                                                             .n_classes = 4,
                                                                             .clusters_per_class = 2,
                                                                             .seed = 2}));
    int last = lks_group_size(s.group) - 1;
    bool is_odd = lks_group_rank(s.group) == last, has_as_many = *n_samples == lks_dataset_count(s.data);
    RANK_CHECK(lks_trainer_evaluate(s.trainer, is_odd ? other : s.data, &metrics) == LKS_ERR_MISMATCH);
    snprintf(expected, sizeof expected, has_as_many ? "ranks 0 and %d evaluate on different data" : "rank %d called ",
             last);
    RANK_CHECK(strstr(lks_error_text(), expected) != NULL);
    RANK_CHECK(metrics.n_samples == 7);
    if (has_as_many) RANK_OK(lks_trainer_evaluate(s.trainer, s.data, &metrics));
    lks_dataset_destroy(other);
    destroy(&s);
    return 0;
}

static void data_that_differs_is_noticed_in_evaluation(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) run_ranks(size, evaluate_different_data, &(int64_t){1030});
    run_ranks(2, evaluate_different_data, &(int64_t){400});
}

typedef struct bad_batch {
    int64_t count, n_labels;
    const char *text;
} bad_batch;

/* Rank 1 passes the bad batch. The other rank gets the error and does not wait. */
static int step_on_a_bad_batch(void *argument) {
    const bad_batch *bad = argument;
    set_up s = {0};
    RANK_CHECK(create(&s) == 0);
    static const float features[2 * 16];
    static const int32_t labels[2];
    lks_batch batch = {
        .features = features, .labels = labels, .count = 2, .global_count = 4, .n_labels = 2, .global_n_labels = 4};
    bool is_bad = lks_group_rank(s.group) == 1;
    if (is_bad) batch.count = bad->count, batch.n_labels = bad->n_labels;
    RANK_CHECK(lks_trainer_step(s.trainer, is_bad && bad->count == 0 ? NULL : &batch, NULL) ==
               (is_bad ? LKS_ERR_ARGUMENT : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(), bad->text) != NULL);
    destroy(&s);
    return 0;
}

static void a_batch_that_cannot_be_is_refused(void **state) {
    (void)state;
    static bad_batch bad[] = {{0, 0, "trainer_step: `batch` is NULL"},
                              {-1, 0, "the batch of rank 1 has -1 samples"},
                              {5, 2, "the batch of rank 1 has 5 samples, and all ranks together 4"},
                              {2, 3, "the batch of rank 1 has 2 samples and 3 labels that count"},
                              {2, -1, "the batch of rank 1 has 2 samples and -1 labels that count"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) run_ranks(2, step_on_a_bad_batch, &bad[i]);
}

/* Rank 1's loader makes smaller batches than rank 0's. */
static int step_with_different_loaders(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s) == 0);
    static const float features[2 * 16];
    static const int32_t labels[2];
    lks_batch batch = {
        .features = features, .labels = labels, .count = 2, .global_count = 4, .n_labels = 2, .global_n_labels = 4};
    if (lks_group_rank(s.group) == 1) batch.count = batch.n_labels = 1, batch.global_n_labels = 2;
    RANK_CHECK(lks_trainer_step(s.trainer, &batch, NULL) == LKS_ERR_MISMATCH);
    destroy(&s);
    return 0;
}

static void loaders_that_differ_are_noticed(void **state) {
    (void)state;
    run_ranks(2, step_with_different_loaders, NULL);
}

/* Rank 1's batch has the announced number of samples in the first step, but not in the second. */
static int step_with_loaders_that_part(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s) == 0);
    static const float features[2 * 16];
    static const int32_t labels[2];
    lks_batch batch = {
        .features = features, .labels = labels, .count = 2, .global_count = 4, .n_labels = 2, .global_n_labels = 4};
    char before[65], after[65];
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), before));
    RANK_OK(lks_barrier(s.group, NULL));
    if (lks_group_rank(s.group) == 1) batch.count = batch.n_labels = 1;
    RANK_CHECK(lks_trainer_step(s.trainer, &batch, NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "step 2: the ranks brought 3 labels together") != NULL);
    RANK_CHECK(strstr(lks_error_text(), "their loaders differ, or a batch's global_n_labels is wrong") != NULL);
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), after));
    RANK_CHECK(strcmp(before, after) == 0);
    destroy(&s);
    return 0;
}

/* 1030 samples are 16 batches of 64 and one of 6. */
static int train_on_whole_batches(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_batch batch;
    lks_metrics metrics;
    int64_t n_steps = 0;
    RANK_CHECK(create(&s) == 0);
    lks_loader_destroy(s.loader);
    RANK_OK(lks_loader_create(
        &s.loader, s.data,
        &(lks_loader_options){
            .batch = 64, .drop_last = 1, .rank = lks_group_rank(s.group), .n_ranks = lks_group_size(s.group)}));
    for (int epoch = 0; epoch < 2; epoch++)
        for (; lks_loader_next(s.loader, &batch); n_steps++) {
            RANK_OK(lks_trainer_step(s.trainer, &batch, &metrics));
            RANK_CHECK(metrics.n_samples == 64);
        }
    RANK_CHECK(n_steps == 32);
    destroy(&s);
    return 0;
}

static void a_trainer_takes_whole_batches_alone(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++) run_ranks(size, train_on_whole_batches, NULL);
}

static int step_with_drop_last_on_one_rank(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_batch batch;
    RANK_CHECK(create(&s) == 0);
    lks_loader_destroy(s.loader);
    int rank = lks_group_rank(s.group);
    RANK_OK(lks_loader_create(&s.loader, s.data,
                              &(lks_loader_options){.batch = 64, .drop_last = rank == 1, .rank = rank, .n_ranks = 2}));
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    RANK_CHECK(lks_trainer_step(s.trainer, &batch, NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "order of samples (hash)") != NULL);
    destroy(&s);
    return 0;
}

static void drop_last_on_one_rank_is_noticed(void **state) {
    (void)state;
    run_ranks(2, step_with_drop_last_on_one_rank, NULL);
}

static int skip_a_batch(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_batch batch;
    RANK_CHECK(create(&s) == 0);
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    if (lks_group_rank(s.group) == 1) RANK_CHECK(lks_loader_next(s.loader, &batch));
    RANK_CHECK(lks_trainer_step(s.trainer, &batch, NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), ", batch 1 of epoch 0), rank 1 called ") != NULL);
    RANK_CHECK(strstr(lks_error_text(), ", batch 2 of epoch 0)") != NULL);
    destroy(&s);
    return 0;
}

static void loaders_that_part_later_are_noticed(void **state) {
    (void)state;
    run_ranks(2, step_with_loaders_that_part, NULL);
    run_ranks(2, skip_a_batch, NULL);
}

/* The sum of labels shows that one rank's part of a batch is not the whole batch. */
static int step_on_half_a_batch(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s) == 0);
    static const float features[4 * 16];
    static const int32_t labels[4];
    const lks_batch batch = {
        .features = features, .labels = labels, .count = 4, .global_count = 8, .n_labels = 4, .global_n_labels = 8};
    RANK_CHECK(lks_trainer_step(s.trainer, &batch, NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "brought 4 labels together, rank 0 expects 8") != NULL);
    destroy(&s);
    return 0;
}

static void half_a_batch_is_refused(void **state) {
    (void)state;
    run_ranks(1, step_on_half_a_batch, NULL);
}

/* A batch of the user's own without labels. The group stays usable. */
static int step_without_labels(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_batch batch;
    RANK_CHECK(create(&s) == 0);
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    lks_batch without = batch;
    without.n_labels = without.global_n_labels = 0;
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_CHECK(lks_trainer_step(s.trainer, &without, NULL) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "(n_labels of a trainer's batch) is 0 on every rank") != NULL);
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_CHECK(lks_trainer_set_lr(NULL, 1) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strcmp(lks_error_text(), "trainer_set_lr: `trainer` is NULL") == 0);
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void a_step_in_which_no_label_counts_is_refused(void **state) {
    (void)state;
    for (int size = 1; size <= 2; size++) run_ranks(size, step_without_labels, NULL);
}

static int change_the_lr(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_batch batch;
    lks_metrics metrics;
    RANK_CHECK(create(&s) == 0);
    for (int step = 0; step < 3; step++) {
        RANK_CHECK(lks_loader_next(s.loader, &batch));
        if (step == 1) RANK_OK(lks_trainer_set_lr(s.trainer, 0.25));
        if (step == 2) RANK_CHECK(lks_trainer_set_lr(s.trainer, -1) == LKS_ERR_ARGUMENT); /* changes nothing */
        RANK_OK(lks_trainer_step(s.trainer, &batch, &metrics));
        RANK_CHECK(metrics.lr == (step == 0 ? 1e-2 : 0.25));
    }
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_OK(lks_trainer_set_lr(s.trainer, 0.125)); /* from the next step on */
    RANK_OK(lks_trainer_catch_up(s.trainer, &metrics));
    RANK_CHECK(metrics.n_samples > 0 && metrics.lr == 0.25);
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void the_learning_rate_can_be_set_between_steps(void **state) {
    (void)state;
    run_ranks(2, change_the_lr, NULL);
}

static int step_on_bad_data(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_CHECK(create(&s) == 0);
    float features[16] = {NAN};
    int32_t label = 0;
    lks_batch batch = {
        .features = features, .labels = &label, .count = 1, .global_count = 1, .n_labels = 1, .global_n_labels = 1};
    RANK_CHECK(lks_trainer_step(s.trainer, &batch, NULL) == LKS_ERR_NUMERIC);
    RANK_CHECK(strstr(lks_error_text(), "loss of rank 0 in step 1 is") != NULL);
    destroy(&s);
    return 0;
}

static void a_loss_that_is_not_finite_is_an_error(void **state) {
    (void)state;
    run_ranks(1, step_on_bad_data, NULL);
}

/* Wrong arguments on one rank only. The others get the error and do not wait. */
typedef enum mistake {
    LR_NAN,
    NESTEROV_ALONE,
    NO_LABELS,
    BYTE_LABELS,
    NEGATIVE_ACCUMULATE,
    F64_DEVICE,
    STATES_OF_NULL,
    NEGATIVE_STATES,
    COMPUTED_FEATURES,
    FOREIGN_LOGITS,
    UNFED_LOSS,
    UNFED_LOGITS,
    N_MISTAKES
} mistake;

static lks_status create_wrongly(lks_group *group, mistake which, lks_device *f64) {
    int is_wrong = lks_group_rank(group) == 0;
    lks_graph *g = lks_graph_create(is_wrong && which == F64_DEVICE ? f64 : lks_device_default(group));
    lks_graph *other = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 16});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_trainer_options options = {
        .group = group, .features = x, .labels = y, .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1})};
    if (is_wrong && which == LR_NAN) options.optimizer.lr = (double)NAN;
    if (is_wrong && which == NESTEROV_ALONE) options.optimizer.is_nesterov = 1;
    if (is_wrong && which == NO_LABELS) options.labels = NULL;
    if (is_wrong && which == BYTE_LABELS) options.labels = lks_input(g, "b", LKS_U8, 2, (int64_t[]){LKS_BATCH, 9});
    if (is_wrong && which == NEGATIVE_ACCUMULATE) options.accumulate = -1;
    if (is_wrong && which == STATES_OF_NULL) options.n_states = 2;
    if (is_wrong && which == NEGATIVE_STATES) options.n_states = -1;
    if (is_wrong && which == COMPUTED_FEATURES) options.features = lks_relu(x);
    if (is_wrong && which == FOREIGN_LOGITS)
        options.logits = lks_input(other, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
    lks_node *logits = lks_linear(x, 4, "fc"), *z = lks_input(g, "z", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
    if (is_wrong && which == UNFED_LOGITS) options.logits = lks_add(logits, z);
    if (is_wrong && which == UNFED_LOSS) logits = lks_add(logits, z);
    lks_trainer *trainer = NULL;
    lks_status status = lks_trainer_create(&trainer, lks_cross_entropy(logits, y), &options);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(other);
    lks_graph_destroy(g);
    return status;
}

static int make_mistakes(void *argument) {
    (void)argument;
    static const char *const texts[] = {
        "nan",
        "momentum",
        "a trainer needs features and labels",
        "a trainer's labels must be i32, or its targets f32, but the model's input takes u8",
        "accumulate -1 is negative",
        "a trainer's batches are f32",
        "a trainer was given 2 states, but no array of them",
        "a trainer was given -1 states",
        "a trainer's features must be an input (lks_input)",
        "a trainer's logits must be in the graph of its loss",
        "but the loss is computed from the input 'z'",
        "but its logits or states are computed from the input 'z'"};
    lks_device *f64;
    RANK_OK(lks_device_create(&f64, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
    for (int which = 0; which < N_MISTAKES; which++) {
        lks_group *group;
        RANK_OK(lks_init(&group, NULL));
        lks_status status = create_wrongly(group, (mistake)which, f64);
        if (lks_group_rank(group) == 0) {
            RANK_CHECK(status == (which == F64_DEVICE ? LKS_ERR_UNSUPPORTED : LKS_ERR_ARGUMENT));
            RANK_CHECK(strstr(lks_error_text(), texts[which]) != NULL);
        } else {
            RANK_CHECK(status == LKS_ERR_PEER);
        }
        lks_group_destroy(group);
    }
    lks_device_destroy(f64);
    return 0;
}

static void a_bad_option_of_one_rank_fails_all_ranks_at_once(void **state) {
    (void)state;
    lks_trainer *trainer = NULL;
    run_ranks(2, make_mistakes, NULL);
    assert_int_equal(lks_trainer_create(&trainer, NULL, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "a trainer needs a group");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_learns_and_repeats_to_the_bit),
        cmocka_unit_test(evaluation_is_the_same_on_any_number_of_ranks),
        cmocka_unit_test(samples_of_another_size_are_refused),
        cmocka_unit_test(an_evaluation_to_nan_is_an_error_on_all_ranks),
        cmocka_unit_test(a_data_set_has_one_label_per_sample),
        cmocka_unit_test(a_rank_that_cannot_evaluate_is_not_waited_for),
        cmocka_unit_test(an_evaluation_of_nothing_is_refused),
        cmocka_unit_test(data_that_differs_is_noticed_in_evaluation),
        cmocka_unit_test(a_batch_that_cannot_be_is_refused),
        cmocka_unit_test(loaders_that_differ_are_noticed),
        cmocka_unit_test(a_trainer_takes_whole_batches_alone),
        cmocka_unit_test(drop_last_on_one_rank_is_noticed),
        cmocka_unit_test(loaders_that_part_later_are_noticed),
        cmocka_unit_test(half_a_batch_is_refused),
        cmocka_unit_test(a_step_in_which_no_label_counts_is_refused),
        cmocka_unit_test(the_learning_rate_can_be_set_between_steps),
        cmocka_unit_test(a_loss_that_is_not_finite_is_an_error),
        cmocka_unit_test(a_bad_option_of_one_rank_fails_all_ranks_at_once),
    };
    return run_group(tests);
}
