/* labels: no-tsan */
/* Grains: the same bits at every world size that divides their number, and what is refused. */
#include "ranks.h"

#include "parallel/parallel_internal.h"
#include "train/trainer_internal.h"

#include <lockstep/operators.h>
#include <lockstep/train.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The batches are 24, 24 and 5 samples: the last one is smaller than the number of grains. The text's 11 columns end
 * early. In windows of 4, some grains have no label in the last step. */
enum { GRAINS = 8, N_SAMPLES = 53, BATCH = 24, N_FEATURES = 75, N_CLASSES = 5 };
enum { FC_HIDDEN = 160, HIDDEN = 40 }; /* enough weights for several buckets of the minimum size */
enum { N_TOKENS = 103, COLUMNS = 11, BPTT = 4, N_EPOCHS = 2, MAX_STEPS = 16 };

typedef enum model_kind { PLAIN, BATCH_NORM, DROPOUT, LSTM, FEW_COLUMNS, N_KINDS } model_kind;

typedef struct result {
    char hex[65], later[65]; /* after all epochs, and after one more step */
    int n_steps;
    double losses[MAX_STEPS], accuracies[MAX_STEPS], norms[MAX_STEPS];
    lks_metrics evaluated;
    int64_t step_allocations; /* in the second epoch */
    size_t n_buckets;
} result;

typedef struct job {
    model_kind kind;
    int64_t grains;
    lks_strategy strategy;
    size_t bucket_nbytes;
    const char *transport, *save, *load; /* path of a checkpoint in the middle of the first epoch, or NULL */
    result result;
} job;

typedef struct set_up {
    lks_group *group;
    lks_graph *graph;
    lks_dataset *data;
    lks_loader *loader;
    lks_windows *windows; /* for a text model, instead of the data set */
    lks_trainer *trainer;
    int32_t tokens[N_TOKENS];
    int64_t steps_per_epoch, global_batch;
} set_up;

static bool is_text(model_kind kind) { return kind == LSTM || kind == FEW_COLUMNS; }

/* --- models --- */

static lks_optimizer rule_of(model_kind kind) {
    if (kind == PLAIN) return lks_sgd(&(lks_sgd_options){.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3});
    if (is_text(kind)) return lks_sgd(&(lks_sgd_options){.lr = 1, .clip_norm = 0.1});
    if (kind == BATCH_NORM)
        return lks_adamw(&(lks_adamw_options){.lr = 1e-2, .weight_decay = 1, .decay_matrices_only = 1});
    return lks_adam(&(lks_adam_options){.lr = 1e-2, .clip_norm = 0.5});
}

static lks_node *classifier(lks_node *image, model_kind kind) {
    lks_node *x = image;
    if (kind == BATCH_NORM) x = lks_relu(lks_batch_norm(lks_conv2d(x, 6, 3, "conv", NULL), "norm"));
    int64_t count = lks_node_dim(x, 1) * lks_node_dim(x, 2) * lks_node_dim(x, 3);
    x = lks_reshape(x, 2, (int64_t[]){LKS_BATCH, count});
    x = lks_tanh(lks_linear(x, FC_HIDDEN, "fc1"));
    if (kind == DROPOUT) x = lks_dropout(x, 0.3);
    return lks_linear(x, N_CLASSES, "fc2");
}

static lks_status create_classifier(set_up *s, const lks_trainer_options *common, model_kind kind) {
    lks_trainer_options options = *common;
    options.features = lks_input(s->graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 3, 5, 5});
    options.labels = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    options.logits = classifier(options.features, kind);
    return lks_trainer_create(&s->trainer, lks_cross_entropy(options.logits, options.labels), &options);
}

static lks_status create_language_model(set_up *s, const lks_trainer_options *common) {
    lks_trainer_options options = *common;
    options.features = lks_input(s->graph, "words", LKS_I32, 2, (int64_t[]){LKS_BATCH, BPTT});
    options.labels = lks_input(s->graph, "next_words", LKS_I32, 2, (int64_t[]){LKS_BATCH, BPTT});
    lks_node *h0 = lks_input(s->graph, "h0", LKS_F32, 2, (int64_t[]){LKS_BATCH, HIDDEN});
    lks_node *c0 = lks_input(s->graph, "c0", LKS_F32, 2, (int64_t[]){LKS_BATCH, HIDDEN});
    lks_node *x = lks_dropout(lks_embedding(options.features, N_CLASSES, HIDDEN, "embedding", NULL), 0.2);
    lks_recurrent_result r =
        lks_recurrent_layers(x, "lstm", &(lks_recurrent_options){.hidden = HIDDEN, .h0 = {h0}, .c0 = {c0}});
    options.logits = lks_linear(r.y, N_CLASSES, "decoder");
    options.states = (lks_state[]){{h0, r.h[0]}, {c0, r.c[0]}};
    options.n_states = 2;
    lks_node *loss = lks_cross_entropy_with(options.logits, options.labels,
                                            &(lks_cross_entropy_options){.has_ignored = 1, .ignored = -1});
    return lks_trainer_create(&s->trainer, loss, &options);
}

/* --- runs --- */

static lks_status create_text(set_up *s, const job *j) {
    s->global_batch = j->kind == LSTM ? COLUMNS : GRAINS / 2 + 1;
    for (int i = 0; i < N_TOKENS; i++) s->tokens[i] = (i * i + i / 3) % N_CLASSES;
    lks_status status = lks_windows_create(&s->windows, s->tokens, N_TOKENS,
                                           &(lks_windows_options){.batch = s->global_batch,
                                                                  .n_steps = BPTT,
                                                                  .grains = j->grains,
                                                                  .rank = lks_group_rank(s->group),
                                                                  .n_ranks = lks_group_size(s->group)});
    if (status == LKS_OK) s->steps_per_epoch = lks_windows_steps(s->windows);
    return status;
}

static lks_status create_samples(set_up *s, const job *j) {
    s->global_batch = BATCH;
    lks_status status = lks_dataset_classification(&s->data, &(lks_classification_options){.n_samples = N_SAMPLES,
                                                                                           .n_features = N_FEATURES,
                                                                                           .n_informative = 20,
                                                                                           .n_classes = N_CLASSES,
                                                                                           .clusters_per_class = 1});
    if (status != LKS_OK) return status;
    status = lks_loader_create(&s->loader, s->data,
                               &(lks_loader_options){.batch = BATCH,
                                                     .seed = 2,
                                                     .grains = j->grains,
                                                     .n_workers = -1,
                                                     .rank = lks_group_rank(s->group),
                                                     .n_ranks = lks_group_size(s->group)});
    if (status == LKS_OK) s->steps_per_epoch = lks_loader_steps(s->loader);
    return status;
}

static int create(set_up *s, const job *j) {
    RANK_OK(lks_init(&s->group, &(lks_init_options){.transport = j->transport}));
    RANK_OK(is_text(j->kind) ? create_text(s, j) : create_samples(s, j));
    s->graph = lks_graph_create(lks_device_default(s->group));
    lks_trainer_options common = {.group = s->group,
                                  .optimizer = rule_of(j->kind),
                                  .seed = 4,
                                  .grains = j->grains,
                                  .strategy = j->strategy,
                                  .bucket_nbytes = j->bucket_nbytes};
    RANK_OK(is_text(j->kind) ? create_language_model(s, &common) : create_classifier(s, &common, j->kind));
    return 0;
}

static void destroy(set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_loader_destroy(s->loader);
    lks_dataset_destroy(s->data);
    lks_windows_destroy(s->windows);
    lks_group_destroy(s->group);
}

static int next(set_up *s, lks_batch *batch) {
    return s->loader != NULL ? lks_loader_next(s->loader, batch) : lks_windows_next(s->windows, batch);
}

static lks_position position_of(const set_up *s) {
    return (lks_position){.step = 1, .steps_per_epoch = s->steps_per_epoch, .global_batch = s->global_batch};
}

static int step_once(set_up *s, const lks_batch *batch, int epoch, result *r) {
    lks_metrics metrics;
    int64_t before = lks_memory_allocation_count();
    RANK_OK(lks_trainer_step(s->trainer, batch, &metrics));
    if (epoch > 0) r->step_allocations += lks_memory_allocation_count() - before;
    RANK_OK(lks_barrier(s->group, NULL)); /* no rank may allocate while another still counts */
    RANK_CHECK(r->n_steps < MAX_STEPS);
    r->losses[r->n_steps] = metrics.loss;
    r->accuracies[r->n_steps] = metrics.accuracy;
    r->norms[r->n_steps++] = metrics.grad_norm;
    return 0;
}

static int train_epochs(set_up *s, const job *j, result *r) {
    lks_batch batch;
    lks_position position = position_of(s);
    if (j->load != NULL) RANK_OK(lks_trainer_load(s->trainer, j->load, &position));
    if (j->load != NULL) RANK_CHECK(position.step == 1 && next(s, &batch));
    for (int epoch = 0; epoch < N_EPOCHS; epoch++) {
        if (epoch > 0) lks_trainer_reset_states(s->trainer);
        while (next(s, &batch)) {
            RANK_CHECK(step_once(s, &batch, epoch, r) == 0);
            if (j->save != NULL && batch.epoch == 0 && batch.step == 0)
                RANK_OK(lks_trainer_save(s->trainer, j->save, &position));
        }
    }
    return 0;
}

static int train(void *argument) {
    job *j = argument;
    set_up s = {0};
    result r = {0};
    lks_batch batch;
    RANK_CHECK(create(&s, j) == 0);
    RANK_CHECK(train_epochs(&s, j, &r) == 0);
    r.n_buckets = s.trainer->optimizer->n_buckets;
    RANK_OK(is_text(j->kind) ? lks_trainer_evaluate_text(s.trainer, s.tokens, N_TOKENS, &r.evaluated)
                             : lks_trainer_evaluate(s.trainer, s.data, &r.evaluated));
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), r.hex));
    RANK_OK(lks_check_replicas(s.group, lks_trainer_store(s.trainer)));
    RANK_CHECK(next(&s, &batch));
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), r.later));
    if (lks_group_rank(s.group) == 0) j->result = r;
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void assert_same(const result *a, const result *b) {
    assert_string_equal(a->hex, b->hex);
    assert_string_equal(a->later, b->later);
    assert_string_not_equal(a->hex, a->later);
    assert_int_equal(a->n_steps, b->n_steps);
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_memory_equal(a->accuracies, b->accuracies, sizeof a->accuracies);
    assert_memory_equal(a->norms, b->norms, sizeof a->norms);
    assert_true(a->evaluated.loss == b->evaluated.loss && a->evaluated.accuracy == b->evaluated.accuracy);
}

/* --- the same bits --- */

static result of_a_process; /* threads must have the same result */

/* Processes of one host share a replica. Over tcp each has its own. This test comes first: it forks, so no thread may
 * exist yet. */
static void processes_give_the_same_bits_over_shared_memory_and_tcp(void **state) {
    (void)state;
    enum { N_JOBS = 4 };
    static const struct {
        int size;
        const char *transport;
    } worlds[N_JOBS] = {{1, NULL}, {2, "tcp"}, {4, "shm"}, {8, "tcp"}};
    job *jobs = mmap(NULL, N_JOBS * sizeof *jobs, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(jobs, MAP_FAILED);
    for (model_kind kind = PLAIN; kind < N_KINDS; kind++)
        for (int i = 0; i < N_JOBS; i++) {
            jobs[i] = (job){.kind = kind, .grains = GRAINS, .transport = worlds[i].transport};
            if (lks_spawn(worlds[i].size, LKS_PROCESSES, train, &jobs[i]) != LKS_OK) fail_msg("%s", lks_error_text());
            assert_same(&jobs[0].result, &jobs[i].result);
        }
    of_a_process = jobs[0].result; /* FEW_COLUMNS */
    munmap(jobs, N_JOBS * sizeof *jobs);
}

/* Includes steps whose buckets are reduced during the backward pass of the last grain. */
static void any_number_of_threads_gives_the_same_bits_by_any_strategy(void **state) {
    (void)state;
    static const lks_strategy strategies[] = {LKS_STRATEGY_SHARED, LKS_STRATEGY_BUCKETED, LKS_STRATEGY_SHARDED};
    job one, many;
    for (model_kind kind = PLAIN; kind < N_KINDS; kind++) {
        one = (job){.kind = kind, .grains = GRAINS};
        run_ranks(1, train, &one);
        assert_int_equal(one.result.step_allocations, 0);
        for (int size = 2; size <= GRAINS; size *= 2)
            for (int i = 0; i < 3; i++) {
                many = (job){.kind = kind, .grains = GRAINS, .strategy = strategies[i], .bucket_nbytes = 1000};
                run_ranks(size, train, &many);
                assert_same(&one.result, &many.result);
                assert_int_equal(many.result.step_allocations, 0);
                assert_true(strategies[i] != LKS_STRATEGY_BUCKETED || many.result.n_buckets >= 3);
            }
    }
    assert_same(&one.result, &of_a_process);
}

/* Without these differences, the tests above could pass even if grains were not summed in a fixed order. */
static void the_number_of_grains_and_without_any_that_of_ranks_change_the_bits(void **state) {
    (void)state;
    job eight = {.grains = GRAINS}, four = {.grains = GRAINS / 2}, one_rank = {0}, two_ranks = {0};
    run_ranks(1, train, &eight);
    run_ranks(1, train, &four);
    run_ranks(1, train, &one_rank);
    run_ranks(2, train, &two_ranks);
    assert_string_not_equal(eight.result.hex, four.result.hex);
    assert_string_not_equal(eight.result.hex, one_rank.result.hex);
    assert_string_not_equal(one_rank.result.hex, two_ranks.result.hex);
}

/* The run resumes in the middle of an epoch: rows of states move to other ranks, some of which may have no rows. */
static void a_run_goes_on_to_the_same_bits_at_another_world_size(void **state) {
    (void)state;
    static const char path[] = LKSI_BUILD_DIR "/tests/grains.safetensors";
    for (model_kind kind = BATCH_NORM; kind <= FEW_COLUMNS; kind++) {
        job whole = {.kind = kind, .grains = GRAINS, .save = path};
        run_ranks(kind == FEW_COLUMNS ? GRAINS : 2, train, &whole);
        for (int size = 1; size <= GRAINS; size *= 8) {
            job resumed = {.kind = kind, .grains = GRAINS, .load = path};
            run_ranks(size, train, &resumed);
            assert_string_equal(resumed.result.hex, whole.result.hex);
            assert_int_equal(resumed.result.n_steps, whole.result.n_steps - 1);
        }
        remove(path);
    }
}

static int load_with_other_grains(void *argument) {
    job *j = argument;
    set_up s = {0};
    RANK_CHECK(create(&s, j) == 0);
    lks_position position = position_of(&s);
    RANK_CHECK(lks_trainer_load(s.trainer, j->load, &position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "it was saved with grains 8, this run has 4") != NULL);
    destroy(&s);
    return 0;
}

static void a_checkpoint_of_other_grains_is_refused(void **state) {
    (void)state;
    static const char path[] = LKSI_BUILD_DIR "/tests/grains_refused.safetensors";
    job saved = {.grains = GRAINS, .save = path}, other = {.grains = GRAINS / 2, .load = path};
    run_ranks(1, train, &saved);
    run_ranks(2, load_with_other_grains, &other);
    remove(path);
}

/* --- what is refused --- */

/* The options of rank 0's trainer. The others request 8 grains. */
typedef struct refusal {
    int64_t grains, accumulate;
    lks_status status;
    const char *text;
    lks_order order; /* of the group */
} refusal;

static int ask_for_a_trainer(void *argument) {
    const refusal *r = argument;
    set_up s = {0};
    RANK_OK(lks_init(&s.group, &(lks_init_options){.order = r->order}));
    s.graph = lks_graph_create(lks_device_default(s.group));
    bool is_asking = lks_group_rank(s.group) == 0;
    lks_trainer_options options = {.group = s.group,
                                   .optimizer = rule_of(PLAIN),
                                   .grains = is_asking ? r->grains : GRAINS,
                                   .accumulate = is_asking ? r->accumulate : 0};
    lks_status status = create_classifier(&s, &options, PLAIN);
    if (is_asking || r->status == LKS_ERR_MISMATCH) RANK_CHECK(status == r->status);
    if (is_asking || r->status == LKS_ERR_MISMATCH) RANK_CHECK(strstr(lks_error_text(), r->text) != NULL);
    RANK_CHECK(status != LKS_OK);
    destroy(&s);
    return 0;
}

static void grains_that_cannot_be_meant_are_refused_by_number(void **state) {
    (void)state;
    static const struct {
        int size;
        refusal refusal;
    } cases[] = {
        {2, {6, 0, LKS_ERR_ARGUMENT, "grains 6 is not a power of two", LKS_ORDER_CANONICAL}},
        {2, {-8, 0, LKS_ERR_ARGUMENT, "grains -8 is not a power of two", LKS_ORDER_CANONICAL}},
        {2,
         {(int64_t)1 << 21, 0, LKS_ERR_ARGUMENT, "grains 2097152 is not a power of two in 1..1048576",
          LKS_ORDER_CANONICAL}},
        {3, {8, 0, LKS_ERR_ARGUMENT, "grains 8 cannot be divided equally among 3 ranks", LKS_ORDER_CANONICAL}},
        {4, {2, 0, LKS_ERR_ARGUMENT, "grains 2 cannot be divided equally among 4 ranks", LKS_ORDER_CANONICAL}},
        {2, {8, 2, LKS_ERR_ARGUMENT, "grains 8 are pieces of a step already: with accumulate 2", LKS_ORDER_CANONICAL}},
        {2, {8, 0, LKS_ERR_ARGUMENT, "grains 8 in a group that adds in any order", LKS_ORDER_ANY}},
        {2, {4, 0, LKS_ERR_MISMATCH, "grains | 4      | 8", LKS_ORDER_CANONICAL}},
        {2, {0, 0, LKS_ERR_MISMATCH, "grains | 0      | 8", LKS_ORDER_CANONICAL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refusal r = cases[i].refusal;
        run_ranks(cases[i].size, ask_for_a_trainer, &r);
    }
}

static void an_algorithm_that_adds_in_another_order_takes_no_grains(void **state) {
    (void)state;
    static const char *const algorithms[][2] = {{"all_reduce=ring", "LOCKSTEP_ALGORITHM: all_reduce=ring"},
                                                {"reduce_scatter=ring", "LOCKSTEP_ALGORITHM: reduce_scatter=ring"},
                                                {"ring", "LOCKSTEP_ALGORITHM: all_reduce=ring"}};
    for (size_t i = 0; i < 3; i++) {
        setenv("LOCKSTEP_ALGORITHM", algorithms[i][0], 1);
        run_ranks(2, ask_for_a_trainer,
                  (&(refusal){.grains = GRAINS, .status = LKS_ERR_ARGUMENT, .text = algorithms[i][1]}));
    }
    setenv("LOCKSTEP_ALGORITHM", "all_reduce=butterfly,broadcast=ring", 1); /* which keep the order, or add nothing */
    job j = {.grains = GRAINS};
    run_ranks(2, train, &j);
    unsetenv("LOCKSTEP_ALGORITHM");
}

/* 53 samples in batches of 24: on 2 ranks the parts of the last batch are 3 and 2 samples, but 2 and 3 with grains. */
static int train_on_a_loader_without_grains(void *argument) {
    set_up s = {0};
    RANK_CHECK(create(&s, argument) == 0);
    lks_loader *plain;
    lks_batch batch;
    RANK_OK(lks_loader_create(
        &plain, s.data,
        &(lks_loader_options){
            .batch = BATCH, .n_workers = -1, .rank = lks_group_rank(s.group), .n_ranks = lks_group_size(s.group)}));
    for (int step = 0; step < 2; step++) {
        RANK_CHECK(lks_loader_next(plain, &batch));
        RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    }
    RANK_CHECK(lks_loader_next(plain, &batch));
    lks_status status = lks_trainer_step(s.trainer, &batch, NULL);
    bool is_told = status == LKS_ERR_MISMATCH && strstr(lks_error_text(), "step 3: rank ") != NULL &&
                   strstr(lks_error_text(), "of 5, its part of 8 grains is ") != NULL;
    RANK_CHECK(is_told || status == LKS_ERR_PEER); /* the rank that detects it first tells the other */
    lks_loader_destroy(plain);
    destroy(&s);
    return 0;
}

static void batches_that_are_not_cut_in_grains_are_refused(void **state) {
    (void)state;
    job j = {.grains = GRAINS};
    run_ranks(2, train_on_a_loader_without_grains, &j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_give_the_same_bits_over_shared_memory_and_tcp),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits_by_any_strategy),
        cmocka_unit_test(the_number_of_grains_and_without_any_that_of_ranks_change_the_bits),
        cmocka_unit_test(a_run_goes_on_to_the_same_bits_at_another_world_size),
        cmocka_unit_test(a_checkpoint_of_other_grains_is_refused),
        cmocka_unit_test(grains_that_cannot_be_meant_are_refused_by_number),
        cmocka_unit_test(an_algorithm_that_adds_in_another_order_takes_no_grains),
        cmocka_unit_test(batches_that_are_not_cut_in_grains_are_refused),
    };
    return run_group(tests);
}
