/* The trainer computes steps in pieces. */
#include "ranks.h"

#include "train/trainer_internal.h"

#include <lockstep/operators.h>
#include <math.h>
#include <string.h>

enum { N_FEATURES = 16, N_CLASSES = 4, MAX_RANKS = 3, N_STEPS = 20 };

typedef struct run {
    int64_t n_pieces;
    double losses[N_STEPS], accuracy;
    int64_t step_allocations; /* in the last steps */
    char text[4096];          /* description of the program */
} run;

static int step_through(run *r, lks_group *group, lks_trainer *trainer, lks_loader *loader) {
    lks_batch batch;
    lks_metrics metrics;
    for (int step = 0; step < N_STEPS; step++) {
        if (!lks_loader_next(loader, &batch)) RANK_CHECK(lks_loader_next(loader, &batch));
        int64_t before = lks_memory_allocation_count();
        RANK_OK(lks_trainer_step(trainer, &batch, &metrics));
        if (lks_group_rank(group) == 0) {
            r->losses[step] = metrics.loss;
            r->accuracy = metrics.accuracy;
            if (step >= N_STEPS / 2) r->step_allocations += lks_memory_allocation_count() - before;
        }
        RANK_OK(lks_barrier(group, NULL)); /* no rank may allocate while another still counts */
    }
    return 0;
}

/* Batches of 10 and, at the end of an epoch, of 6 samples. On three ranks these are 4 3 3 and 2 2 2, fewer than the
 * requested pieces. */
static int train(void *argument) {
    run *r = argument;
    lks_group *group;
    lks_dataset *data;
    lks_loader *loader;
    lks_trainer *trainer;
    RANK_OK(lks_init(&group, NULL));
    RANK_OK(lks_dataset_classification(&data, &(lks_classification_options){.n_samples = 96,
                                                                            .n_features = N_FEATURES,
                                                                            .n_informative = N_FEATURES,
                                                                            .n_classes = N_CLASSES,
                                                                            .clusters_per_class = 1}));
    RANK_OK(lks_loader_create(
        &loader, data,
        &(lks_loader_options){
            .batch = 10, .n_workers = -1, .rank = lks_group_rank(group), .n_ranks = lks_group_size(group)}));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = lks_linear(lks_relu(lks_linear(x, 32, "fc1")), N_CLASSES, "fc2");
    lks_sgd_options sgd = {.lr = 0.05, .momentum = 0.9, .clip_norm = 1};
    RANK_OK(lks_trainer_create(&trainer, lks_cross_entropy(logits, y),
                               &(lks_trainer_options){.group = group,
                                                      .logits = logits,
                                                      .features = x,
                                                      .labels = y,
                                                      .optimizer = lks_sgd(&sgd),
                                                      .accumulate = r->n_pieces,
                                                      .is_timed = 1}));
    RANK_CHECK(step_through(r, group, trainer, loader) == 0);
    if (lks_group_rank(group) == 0) lks_trainer_describe(trainer, r->text, sizeof r->text);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(g);
    lks_loader_destroy(loader);
    lks_dataset_destroy(data);
    lks_group_destroy(group);
    return 0;
}

/* The tolerance covers f32 sums in another order, over 20 steps. */
static void pieces_follow_the_whole_batch(void **state) {
    (void)state;
    for (int size = 1; size <= MAX_RANKS; size++) {
        run whole = {0};
        run_ranks(size, train, &whole);
        for (int64_t n = 2; n <= 5; n++) {
            run pieces = {.n_pieces = n};
            run_ranks(size, train, &pieces);
            for (int step = 0; step < N_STEPS; step++)
                assert_true(fabs(pieces.losses[step] - whole.losses[step]) < 1e-5 * whole.losses[step]);
            assert_true(pieces.accuracy == whole.accuracy);
            assert_int_equal(pieces.step_allocations, 0);
        }
    }
}

/* The description is of the largest piece, which is smaller than the batch. */
static void the_program_is_that_of_a_piece(void **state) {
    (void)state;
    run whole = {0}, pieces = {.n_pieces = 2};
    run_ranks(1, train, &whole);
    run_ranks(1, train, &pieces);
    assert_non_null(strstr(whole.text, "f32 (10, 32)"));
    assert_non_null(strstr(pieces.text, "f32 (5, 32)"));
    assert_null(strstr(pieces.text, "f32 (10, 32)"));
    assert_non_null(strstr(pieces.text, " us\n")); /* the kernels are timed */
}

/* --- labels that do not count --- */

enum { N_LABELS = 8 };

/* Another cross entropy of the same labels, on which the loss does not depend. */
typedef enum cross_entropies { ONE, ANOTHER_BEFORE, ANOTHER_BEHIND } cross_entropies;

typedef struct ignoring {
    int32_t ignored;
    cross_entropies kind;
    int64_t accumulate, grains;
    lks_metrics step, evaluated;
    char hex[65];
} ignoring;

static int create_ignoring(const ignoring *how, lks_graph *g, lks_group *group, lks_trainer **trainer) {
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = lks_linear(x, 4, "fc");
    if (how->kind == ANOTHER_BEFORE) (void)lks_cross_entropy(logits, y); /* the loss does not depend on it */
    lks_node *flipped = lks_transpose(lks_reshape(y, 3, (int64_t[]){LKS_BATCH, 1, 1}), (int[]){0, 2, 1});
    lks_node *read = how->kind == ANOTHER_BEHIND ? lks_reshape(flipped, 1, (int64_t[]){LKS_BATCH}) : y;
    lks_node *loss =
        lks_cross_entropy_with(logits, read, &(lks_cross_entropy_options){.has_ignored = 1, .ignored = how->ignored});
    if (how->kind == ANOTHER_BEHIND) (void)lks_cross_entropy(logits, y);
    RANK_OK(lks_trainer_create(trainer, loss,
                               &(lks_trainer_options){.group = group,
                                                      .logits = logits,
                                                      .features = x,
                                                      .labels = y,
                                                      .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                                                      .accumulate = how->accumulate,
                                                      .grains = how->grains}));
    return 0;
}

/* Four labels count. The others are 0 or, where 0 is a class, another number. */
static int ignore_labels(void *argument) {
    static const int32_t marked[N_LABELS] = {3, 1, 2, 0, 0, 0, 1, 0};
    ignoring *how = argument;
    float features[N_LABELS * 4];
    int32_t labels[N_LABELS];
    for (int i = 0; i < N_LABELS; i++) labels[i] = marked[i] != 0 ? marked[i] : how->ignored;
    for (int i = 0; i < N_LABELS * 4; i++) features[i] = (float)(i % 7) - 3;
    lks_batch batch = {
        .features = features, .labels = labels, .count = 8, .global_count = 8, .n_labels = 4, .global_n_labels = 4};
    lks_group *group;
    lks_trainer *trainer;
    RANK_OK(lks_init(&group, NULL));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    RANK_CHECK(create_ignoring(how, g, group, &trainer) == 0);
    RANK_OK(lks_trainer_step(trainer, &batch, &how->step));
    RANK_OK(lks_store_sha256(lks_trainer_store(trainer), how->hex));
    lks_trainer_destroy(trainer);
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

static void labels_that_are_ignored_count_in_no_piece(void **state) {
    (void)state;
    static const int64_t pieces[][2] = {{1, 0}, {2, 0}, {8, 0}, {0, 4}};
    for (int i = 0; i < 4; i++) {
        ignoring outside = {.ignored = -1, .accumulate = pieces[i][0], .grains = pieces[i][1]};
        run_ranks(1, ignore_labels, &outside);
        for (cross_entropies kind = ONE; kind <= ANOTHER_BEHIND; kind++) {
            ignoring class = outside;
            class.ignored = 0, class.kind = kind;
            run_ranks(1, ignore_labels, &class);
            assert_int_equal(class.step.n_samples, 4);
            assert_true(class.step.loss == outside.step.loss && class.step.accuracy == outside.step.accuracy);
            assert_string_equal(class.hex, outside.hex);
        }
    }
}

typedef struct uncountable {
    bool has_ignored, are_two; /* the loss ignores label 0; it depends on a second cross entropy that ignores none */
    int64_t accumulate, grains;
    bool has_logits, evaluates, has_state;
    const char *text; /* of the error; NULL: it trains */
} uncountable;

/* The labels are a slice of the input, so which labels of the input count is not known. */
static lks_node *uncountable_loss(const uncountable *u, lks_node *logits, lks_node *y) {
    lks_node *sliced = lks_reshape(lks_slice(y, 1, 0, 1), 1, (int64_t[]){LKS_BATCH});
    lks_node *direct = lks_reshape(y, 1, (int64_t[]){LKS_BATCH});
    lks_cross_entropy_options options = {.has_ignored = u->has_ignored};
    if (!u->are_two) return lks_cross_entropy_with(logits, sliced, &options);
    return lks_add(lks_cross_entropy_with(logits, direct, &options), lks_cross_entropy(logits, direct));
}

static int train_uncountable(void *argument) {
    const uncountable *u = argument;
    static const float features[8];
    static const int32_t labels[2] = {1, 2};
    lks_group *group;
    lks_dataset *data;
    lks_trainer *trainer = NULL;
    lks_metrics metrics;
    RANK_OK(lks_init(&group, NULL));
    RANK_OK(lks_dataset_create(
        &data,
        &(lks_dataset_options){.features = features, .labels = labels, .count = 2, .n_features = 4, .n_classes = 4}));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
    lks_node *y = lks_input(g, "y", LKS_I32, 2, (int64_t[]){LKS_BATCH, 1});
    lks_node *logits = lks_linear(x, 4, "fc"), *both = lks_reshape(logits, 3, (int64_t[]){LKS_BATCH, 1, 4});
    lks_state *state = lksi_alloc(sizeof *state); /* the trainer copies it */
    *state = (lks_state){lks_input(g, "h", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4}), lks_tanh(logits)};
    lks_status status = lks_trainer_create(&trainer, uncountable_loss(u, logits, y),
                                           &(lks_trainer_options){.group = group,
                                                                  .states = state,
                                                                  .n_states = u->has_state,
                                                                  .logits = u->has_logits ? both : NULL,
                                                                  .features = x,
                                                                  .labels = y,
                                                                  .optimizer = lks_sgd(NULL),
                                                                  .accumulate = u->accumulate,
                                                                  .grains = u->grains});
    lks_batch batch = {
        .features = features, .labels = labels, .count = 2, .global_count = 2, .n_labels = 2, .global_n_labels = 2};
    if (status == LKS_OK) RANK_OK(lks_trainer_step(trainer, &batch, NULL));
    if (status == LKS_OK && u->evaluates) status = lks_trainer_evaluate(trainer, data, &metrics);
    RANK_CHECK(status == (u->text != NULL ? LKS_ERR_ARGUMENT : LKS_OK));
    if (u->text != NULL) RANK_CHECK(strstr(lks_error_text(), u->text) != NULL);
    lks_trainer_destroy(trainer);
    lksi_free(state);
    lks_graph_destroy(g);
    lks_dataset_destroy(data);
    lks_group_destroy(group);
    return 0;
}

static void labels_that_cannot_be_counted_are_refused(void **state) {
    (void)state;
    static uncountable cases[] = {
        {.has_ignored = true},
        {.has_ignored = true, .accumulate = 2, .text = "accumulate: a trainer cannot count the labels, because"},
        {.has_ignored = true, .grains = 2, .text = "grains: a trainer cannot count"},
        {.has_ignored = true, .accumulate = 2, .has_state = true, .text = "accumulate: a trainer cannot count"},
        {.has_ignored = true, .has_logits = true, .text = "the accuracy (logits): a trainer cannot count"},
        {.has_ignored = true, .evaluates = true, .text = "evaluation: a trainer cannot count"},
        {.accumulate = 2, .has_logits = true, .evaluates = true},
        {.grains = 2, .has_logits = true, .evaluates = true},
        {.are_two = true, .accumulate = 2},
        {.has_ignored = true, .are_two = true},
        {.has_ignored = true, .are_two = true, .accumulate = 2, .text = "two cross entropies that do not ignore the"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_ranks(1, train_uncountable, &cases[i]);
}

/* Pieces of a batch that has no labels, or a wrong one, get the errors that a whole batch gets. */
static int step_on_bad_labels(void *argument) {
    (void)argument;
    static const float features[16];
    static const int32_t labels[4] = {1, 0, -1, 2};
    for (int has_labels = 0; has_labels < 2; has_labels++) {
        lks_group *group;
        lks_trainer *trainer;
        lks_batch batch = {.features = features,
                           .labels = has_labels ? labels : NULL,
                           .count = 4,
                           .global_count = 4,
                           .n_labels = 4,
                           .global_n_labels = 4};
        RANK_OK(lks_init(&group, NULL));
        lks_graph *g = lks_graph_create(lks_device_default(group));
        lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
        lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
        RANK_OK(lks_trainer_create(
            &trainer, lks_cross_entropy(lks_linear(x, 4, "fc"), y),
            &(lks_trainer_options){
                .group = group, .features = x, .labels = y, .optimizer = lks_sgd(NULL), .accumulate = 2}));
        lks_status status = lks_trainer_step(trainer, &batch, NULL);
        RANK_CHECK(status == (has_labels ? LKS_ERR_ARGUMENT : LKS_ERR_STATE));
        RANK_CHECK(strstr(lks_error_text(), has_labels ? "label -1 of sample" : "input 'y' has no data") != NULL);
        lks_trainer_destroy(trainer);
        lks_graph_destroy(g);
        lks_group_destroy(group);
    }
    return 0;
}

static void bad_labels_of_pieces_are_named(void **state) {
    (void)state;
    run_ranks(1, step_on_bad_labels, NULL);
}

/* Rank 1's loader counted all four labels, two of which the loss ignores. */
static int step_on_a_wrong_count(void *argument) {
    (void)argument;
    static const float features[16];
    static const int32_t labels[4] = {1, 0, 2, 0};
    ignoring how = {.accumulate = 2};
    lks_group *group;
    lks_trainer *trainer;
    RANK_OK(lks_init(&group, NULL));
    bool is_wrong = lks_group_rank(group) == 1;
    lks_batch batch = {.features = features,
                       .labels = labels,
                       .count = 4,
                       .global_count = 8,
                       .n_labels = is_wrong ? 4 : 2,
                       .global_n_labels = 4};
    lks_graph *g = lks_graph_create(lks_device_default(group));
    RANK_CHECK(create_ignoring(&how, g, group, &trainer) == 0);
    RANK_CHECK(lks_trainer_step(trainer, &batch, NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(),
                      "step 1: n_labels of the batch of rank 1 is 4, but the loss counts 2 of its labels") != NULL);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

static void a_wrong_count_of_labels_is_named(void **state) {
    (void)state;
    run_ranks(2, step_on_a_wrong_count, NULL);
}

enum { N_EVALUATED = 1000 };

/* One chunk of the data set has far more labels that count than the other. */
static int evaluate_ignoring(void *argument) {
    ignoring *how = argument;
    static const int32_t others[] = {1, 3};
    float *features = lksi_alloc_array(N_EVALUATED * 4, sizeof *features);
    int32_t *labels = lksi_alloc_array(N_EVALUATED, sizeof *labels);
    lks_group *group;
    lks_dataset *data;
    lks_trainer *trainer;
    lks_program *program;
    RANK_CHECK(features != NULL && labels != NULL);
    for (int i = 0; i < N_EVALUATED; i++) labels[i] = i < 499 ? 0 : others[i % 2];
    for (int i = 0; i < N_EVALUATED * 4; i++) features[i] = (float)(i * i % 17) / 4 - 2;
    RANK_OK(lks_init(&group, NULL));
    RANK_OK(lks_dataset_create(
        &data, &(lks_dataset_options){
                   .features = features, .labels = labels, .count = N_EVALUATED, .n_features = 4, .n_classes = 4}));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    RANK_CHECK(create_ignoring(how, g, group, &trainer) == 0);
    RANK_OK(lks_trainer_evaluate(trainer, data, &how->evaluated));
    RANK_OK(lks_program_create(&program, lks_trainer_store(trainer),
                               &(lks_program_options){.batch = N_EVALUATED, .loss = trainer->loss}));
    RANK_OK(lks_program_set_input(program, trainer->options.features, features));
    RANK_OK(lks_program_set_input(program, trainer->options.labels, labels));
    RANK_OK(lks_program_forward(program));
    how->step.loss = lks_program_scalar(program, trainer->loss);
    lks_program_destroy(program);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(g);
    lks_dataset_destroy(data);
    lks_group_destroy(group);
    lksi_free(features);
    lksi_free(labels);
    return 0;
}

static void evaluation_is_over_the_labels_that_count(void **state) {
    (void)state;
    ignoring how = {.ignored = 0};
    run_ranks(1, evaluate_ignoring, &how);
    assert_true(fabs(how.evaluated.loss - how.step.loss) < 1e-5 * how.step.loss);
    assert_int_equal(how.evaluated.n_samples, 501);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_follow_the_whole_batch),
        cmocka_unit_test(the_program_is_that_of_a_piece),
        cmocka_unit_test(labels_that_are_ignored_count_in_no_piece),
        cmocka_unit_test(labels_that_cannot_be_counted_are_refused),
        cmocka_unit_test(a_wrong_count_of_labels_is_named),
        cmocka_unit_test(bad_labels_of_pieces_are_named),
        cmocka_unit_test(evaluation_is_over_the_labels_that_count),
    };
    return run_group(tests);
}
