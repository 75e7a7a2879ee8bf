/* labels: no-tsan */
/* States of a model with samples from a loader: a sequence classifier that carries its states from batch to batch. */
#include "cuda/cuda_test.h"
#include "ranks.h"

#include <lockstep/operators.h>
#include <lockstep/train.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = 3, K = 4, C = 3, HIDDEN = 8, COUNT = 700 /* two chunks in an evaluation */, BATCH = 64 };

typedef struct job {
    bool has_states, resets, evaluates_between;
    lks_metrics evaluated; /* of rank 0, like the fields below */
    char hex[65];
} job;

typedef struct set_up {
    lks_group *group;
    lks_graph *graph;
    lks_dataset *data;
    lks_loader *loader;
    lks_trainer *trainer;
} set_up;

static int create_trainer(set_up *s, bool has_states) {
    lks_graph *g = s->graph = lks_graph_create(lks_device_default(s->group));
    lks_node *x = lks_input(g, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, T, K});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *zeros = lks_scale(lks_reshape(lks_slice(x, 1, 0, HIDDEN / K), 2, (int64_t[]){LKS_BATCH, HIDDEN}), 0);
    lks_recurrent_options options = {.hidden = HIDDEN, .h0 = {zeros}, .c0 = {zeros}};
    if (has_states) {
        options.h0[0] = lks_input(g, "h0", LKS_F32, 2, (int64_t[]){LKS_BATCH, HIDDEN});
        options.c0[0] = lks_input(g, "c0", LKS_F32, 2, (int64_t[]){LKS_BATCH, HIDDEN});
    }
    lks_recurrent_result r = lks_recurrent_layers(x, "lstm", &options);
    lks_state states[] = {{options.h0[0], r.h[0]}, {options.c0[0], r.c[0]}};
    lks_node *logits = lks_linear(lks_reshape(r.y, 2, (int64_t[]){LKS_BATCH, T * HIDDEN}), C, "out");
    RANK_OK(lks_trainer_create(&s->trainer, lks_cross_entropy(logits, y),
                               &(lks_trainer_options){.group = s->group,
                                                      .logits = logits,
                                                      .features = x,
                                                      .labels = y,
                                                      .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                                                      .seed = 3,
                                                      .states = states,
                                                      .n_states = has_states ? 2 : 0}));
    return 0;
}

static int create(set_up *s, int64_t count, int64_t batch, lks_shard_mode shard, bool has_states) {
    RANK_OK(lks_init(&s->group, NULL));
    RANK_OK(lks_dataset_classification(&s->data, &(lks_classification_options){.n_samples = count,
                                                                               .n_features = T * K,
                                                                               .n_informative = T * K,
                                                                               .n_classes = C,
                                                                               .clusters_per_class = 1,
                                                                               .seed = 1}));
    RANK_OK(lks_loader_create(&s->loader, s->data,
                              &(lks_loader_options){.batch = batch,
                                                    .seed = 3,
                                                    .n_workers = -1,
                                                    .shard = shard,
                                                    .rank = lks_group_rank(s->group),
                                                    .n_ranks = lks_group_size(s->group)}));
    return create_trainer(s, has_states);
}

static void destroy(set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_loader_destroy(s->loader);
    lks_dataset_destroy(s->data);
    lks_group_destroy(s->group);
}

static int train(void *argument) {
    job *j = argument;
    set_up s = {0};
    lks_batch batch;
    lks_metrics evaluated;
    char hex[65];
    RANK_CHECK(create(&s, COUNT, BATCH, LKS_SHARD_BLOCKS, j->has_states) == 0);
    while (lks_loader_next(s.loader, &batch)) {
        if (j->resets || batch.count < BATCH / lks_group_size(s.group)) lks_trainer_reset_states(s.trainer);
        RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
        if (j->evaluates_between) RANK_OK(lks_trainer_evaluate(s.trainer, s.data, &evaluated));
    }
    RANK_OK(lks_trainer_evaluate(s.trainer, s.data, &evaluated));
    RANK_CHECK(evaluated.n_samples == COUNT);
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), hex));
    if (lks_group_rank(s.group) == 0) {
        j->evaluated = evaluated;
        memcpy(j->hex, hex, sizeof hex);
    }
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

/* The reference is a model that carries nothing from step to step. */
static void evaluation_begins_every_sample_with_states_of_0(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++) {
        job with = {.has_states = true, .resets = true}, without = {.has_states = false};
        run_ranks(size, train, &with);
        run_ranks(size, train, &without);
        assert_true(with.evaluated.loss == without.evaluated.loss);
        assert_string_equal(with.hex, without.hex);
    }
}

static void evaluation_leaves_the_states_of_training_alone(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++) {
        job plain = {.has_states = true}, interrupted = {.has_states = true, .evaluates_between = true};
        job reset = {.has_states = true, .resets = true};
        run_ranks(size, train, &plain);
        run_ranks(size, train, &interrupted);
        run_ranks(size, train, &reset);
        assert_string_equal(interrupted.hex, plain.hex);
        assert_true(interrupted.evaluated.loss == plain.evaluated.loss);
        assert_string_not_equal(reset.hex, plain.hex); /* the states have an effect */
    }
}

/* --- checkpoints with a data set that is smaller than the batch: an epoch is one step --- */

enum { FEW = 10, SAVED_AT = 3, N_STEPS = 6, MAX_FILE = 1 << 14 };

static char directory[] = "/tmp/lockstep_states_XXXXXX";
static char saved_path[64], other_path[64];

typedef struct run {
    lks_shard_mode shard;
    int64_t from, until;    /* steps; from 0: no checkpoint is loaded */
    const char *saved_path; /* NULL: none */
    char hex[65];           /* of rank 0 */
} run;

static int train_on_few(void *argument) {
    run *r = argument;
    set_up s = {0};
    lks_batch batch;
    char hex[65];
    lks_position position = {.steps_per_epoch = 1, .global_batch = BATCH};
    RANK_CHECK(create(&s, FEW, BATCH, r->shard, true) == 0);
    if (r->from > 0) RANK_OK(lks_trainer_load(s.trainer, saved_path, &position));
    RANK_CHECK(position.epoch * position.steps_per_epoch + position.step == r->from);
    for (int64_t epoch = r->from; epoch < r->until; epoch++) {
        lks_loader_seek(s.loader, epoch, 0);
        RANK_CHECK(lks_loader_next(s.loader, &batch) && batch.global_count == FEW);
        RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    }
    position.epoch = r->until, position.step = 0;
    if (r->saved_path != NULL) RANK_OK(lks_trainer_save(s.trainer, r->saved_path, &position));
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), hex));
    if (lks_group_rank(s.group) == 0) memcpy(r->hex, hex, sizeof hex);
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static size_t read_file(const char *path, char bytes[MAX_FILE]) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t nbytes = fread(bytes, 1, MAX_FILE, file);
    assert_true(nbytes < MAX_FILE);
    fclose(file);
    return nbytes;
}

static void a_run_on_fewer_samples_than_its_batch_takes_is_resumed(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) {
        run through = {.until = N_STEPS}, saved = {.until = SAVED_AT, .saved_path = saved_path};
        run resumed = {.from = SAVED_AT, .until = N_STEPS};
        run_ranks(size, train_on_few, &through);
        run_ranks(size, train_on_few, &saved);
        run_ranks(size, train_on_few, &resumed);
        assert_string_equal(resumed.hex, through.hex);
    }
}

/* --- batches that are divided differently from the previous one --- */

enum { N_UNEVEN = 10 };

/* The ranks have 4, 4 and 2 samples. In step `again` they have 5, 3 and 2. */
static int step_unevenly(set_up *s, int step, int again, lks_status *status) {
    static const int64_t ends[2][4] = {{0, 4, 8, N_UNEVEN}, {0, 5, 8, N_UNEVEN}};
    static float features[N_UNEVEN * T * K];
    static int32_t labels[N_UNEVEN];
    const int64_t *end = &ends[step == again][lks_group_rank(s->group)];
    lks_batch batch = {.features = features,
                       .labels = labels,
                       .count = end[1] - end[0],
                       .n_labels = end[1] - end[0],
                       .global_offset = end[0],
                       .global_count = N_UNEVEN,
                       .global_n_labels = N_UNEVEN};
    *status = lks_trainer_step(s->trainer, &batch, NULL);
    return 0;
}

static int cut_otherwise(void *argument) {
    const bool *resets = argument;
    set_up s = {0};
    lks_status status;
    RANK_CHECK(create(&s, FEW, BATCH, LKS_SHARD_BLOCKS, true) == 0);
    for (int step = 0; step < 2; step++) RANK_CHECK(step_unevenly(&s, step, 2, &status) == 0 && status == LKS_OK);
    if (*resets) lks_trainer_reset_states(s.trainer);
    RANK_CHECK(step_unevenly(&s, 2, 2, &status) == 0);
    if (*resets) {
        RANK_CHECK(status == LKS_OK);
    } else if (lks_group_rank(s.group) == 2) {
        RANK_CHECK(status == LKS_ERR_PEER);
    } else {
        RANK_CHECK(status == LKS_ERR_ARGUMENT);
        RANK_CHECK(strstr(lks_error_text(), "step 3: rank") != NULL && strstr(lks_error_text(), "of 10") != NULL);
    }
    destroy(&s);
    return 0;
}

static void a_batch_that_is_cut_otherwise_needs_new_states(void **state) {
    (void)state;
    for (int resets = 0; resets < 2; resets++) run_ranks(3, cut_otherwise, &(bool){resets != 0});
}

static void states_are_loaded_by_ranks_whose_parts_are_uneven(void **state) {
    (void)state;
    for (int size = 2; size <= 4; size++) {
        run through = {.shard = LKS_SHARD_BATCHES, .until = N_STEPS};
        run saved = {.shard = LKS_SHARD_BATCHES, .until = SAVED_AT, .saved_path = saved_path};
        run resumed = {.shard = LKS_SHARD_BATCHES, .from = SAVED_AT, .until = N_STEPS};
        run_ranks(size, train_on_few, &through);
        run_ranks(size, train_on_few, &saved);
        run_ranks(size, train_on_few, &resumed);
        assert_string_equal(resumed.hex, through.hex);
    }
}

static int save_too_large(void *argument) {
    (void)argument;
    set_up s = {0};
    lks_status status;
    RANK_CHECK(create(&s, FEW, BATCH, LKS_SHARD_BLOCKS, true) == 0);
    RANK_CHECK(step_unevenly(&s, 0, 1, &status) == 0 && status == LKS_OK);
    lks_position position = {.epoch = 1, .steps_per_epoch = 1, .global_batch = N_UNEVEN - 1};
    RANK_CHECK(lks_trainer_save(s.trainer, other_path, &position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "batches have 10 samples, the position says at most 9") != NULL);
    destroy(&s);
    return 0;
}

/* Rank 0's samples are the last of the batch. */
static int save_out_of_order(void *argument) {
    (void)argument;
    static float features[N_UNEVEN * T * K];
    static int32_t labels[N_UNEVEN];
    set_up s = {0};
    RANK_CHECK(create(&s, FEW, BATCH, LKS_SHARD_BLOCKS, true) == 0);
    lks_batch batch = {.features = features,
                       .labels = labels,
                       .count = N_UNEVEN / 2,
                       .n_labels = N_UNEVEN / 2,
                       .global_offset = lks_group_rank(s.group) == 0 ? N_UNEVEN / 2 : 0,
                       .global_count = N_UNEVEN,
                       .global_n_labels = N_UNEVEN};
    lks_position position = {.epoch = 1, .steps_per_epoch = 1, .global_batch = N_UNEVEN};
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_CHECK(lks_trainer_save(s.trainer, other_path, &position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "begins at sample 5 of a batch, the ranks before it have 0:") != NULL ||
               lks_group_rank(s.group) > 0);
    RANK_OK(lks_barrier(s.group, NULL)); /* the group is usable */
    destroy(&s);
    return 0;
}

static void states_that_no_trainer_would_load_are_not_saved(void **state) {
    (void)state;
    run_ranks(3, save_too_large, NULL);
    run_ranks(2, save_out_of_order, NULL);
}

static void its_states_go_to_any_number_of_ranks(void **state) {
    (void)state;
    static char before[MAX_FILE], after[MAX_FILE];
    run saved = {.until = SAVED_AT, .saved_path = saved_path};
    run_ranks(3, train_on_few, &saved);
    size_t nbytes = read_file(saved_path, before);
    for (int size = 1; size <= 5; size++) {
        run loaded = {.from = SAVED_AT, .until = SAVED_AT, .saved_path = other_path};
        run_ranks(size, train_on_few, &loaded);
        assert_int_equal(read_file(other_path, after), nbytes);
        assert_memory_equal(after, before, nbytes);
    }
}

/* --- states whose output is an input --- */

enum { N_ROWS = 4, WIDTH = 2, N_DELAYED = 5, N_ORDERS = 6 };

/* Three states in a row: the first is the features of the step before, the others are what the state before them was.
 * `order` lists them. */
static void create_delay(set_up *s, const int order[3], int64_t accumulate) {
    const int64_t shape[] = {LKS_BATCH, WIDTH};
    lks_node *x = lks_input(s->graph, "x", LKS_F32, 2, shape), *y = lks_input(s->graph, "y", LKS_F32, 2, shape);
    lks_node *first = lks_input(s->graph, "first", LKS_F32, 2, shape);
    lks_node *second = lks_input(s->graph, "second", LKS_F32, 2, shape);
    lks_node *third = lks_input(s->graph, "third", LKS_F32, 2, shape);
    const lks_state chain[] = {{first, x}, {second, first}, {third, lks_reshape(second, 2, shape)}};
    const lks_state states[] = {chain[order[0]], chain[order[1]], chain[order[2]]};
    lks_node *zeros = lks_scale(lks_linear(x, WIDTH, "unused"), 0);
    assert_ok(lks_trainer_create(&s->trainer, lks_mse(lks_add(third, zeros), y),
                                 &(lks_trainer_options){.group = s->group,
                                                        .features = x,
                                                        .labels = y,
                                                        .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                                                        .accumulate = accumulate,
                                                        .states = states,
                                                        .n_states = 3}));
}

/* Row i of step s has features s (i + 1), whose squares have a mean of 7.5 s^2. */
static void step_delay(lks_trainer *trainer, int step) {
    static const float targets[N_ROWS * WIDTH];
    float features[N_ROWS * WIDTH];
    lks_metrics metrics;
    for (int i = 0; i < N_ROWS * WIDTH; i++) features[i] = (float)(step * (i / WIDTH + 1));
    lks_batch batch = {.features = features,
                       .targets = targets,
                       .n_targets = WIDTH,
                       .count = N_ROWS,
                       .n_labels = N_ROWS,
                       .global_count = N_ROWS,
                       .global_n_labels = N_ROWS};
    assert_ok(lks_trainer_step(trainer, &batch, &metrics));
    int delayed = step > 3 ? step - 3 : 0;
    assert_true(metrics.loss == 7.5 * delayed * delayed);
}

static void check_delay(const char *device_name) {
    static const int orders[N_ORDERS][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < N_ORDERS * 2; i++) {
        set_up s = {0};
        lks_device *device;
        assert_ok(lks_init(&s.group, NULL));
        assert_ok(lks_device_create(&device, &(lks_device_options){.name = device_name}));
        s.graph = lks_graph_create(device);
        create_delay(&s, orders[i / 2], i % 2 + 1);
        for (int step = 1; step <= N_DELAYED; step++) step_delay(s.trainer, step);
        destroy(&s);
        lks_device_destroy(device);
    }
}

static void a_state_gets_what_another_was_before_the_step(void **state) {
    (void)state;
    check_delay("reference");
    check_delay("cpu");
}

static void and_so_it_does_on_a_gpu(void **state) {
    (void)state;
    use_gpu();
    check_delay("cuda:0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_begins_every_sample_with_states_of_0),
        cmocka_unit_test(evaluation_leaves_the_states_of_training_alone),
        cmocka_unit_test(a_run_on_fewer_samples_than_its_batch_takes_is_resumed),
        cmocka_unit_test(its_states_go_to_any_number_of_ranks),
        cmocka_unit_test(a_batch_that_is_cut_otherwise_needs_new_states),
        cmocka_unit_test(states_are_loaded_by_ranks_whose_parts_are_uneven),
        cmocka_unit_test(states_that_no_trainer_would_load_are_not_saved),
        cmocka_unit_test(a_state_gets_what_another_was_before_the_step),
        cmocka_unit_test(and_so_it_does_on_a_gpu),
    };
    if (mkdtemp(directory) == NULL) return 1;
    snprintf(saved_path, sizeof saved_path, "%s/saved", directory);
    snprintf(other_path, sizeof other_path, "%s/other", directory);
    int n_failed = run_group(tests);
    unlink(saved_path);
    unlink(other_path);
    return rmdir(directory) != 0 ? 1 : n_failed;
}
