/* A trainer that runs ahead while gradients are in transit: the same bits, and no partial update is ever visible. */
#include "ranks.h"

#include "parallel/parallel_internal.h"
#include "train/trainer_internal.h"

#include <lockstep/operators.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Batches of 24, 24 and 5 samples. In every third step, rank 5 of 6 has no sample. */
enum { N_SAMPLES = 53, BATCH = 24, N_FEATURES = 75, N_CLASSES = 5, FC_HIDDEN = 160, N_EPOCHS = 3, N_STEPS = 9 };

typedef enum disturbance { NONE, READ, CHECK, BROADCAST, EVALUATE, SET_LR, SAVE, N_DISTURBANCES } disturbance;

typedef struct job {
    int runs_ahead;
    int64_t accumulate, grains;
    lks_strategy strategy;
    const char *transport;
    double clip_norm;
    disturbance disturbance; /* after every fourth step */
    double losses[N_STEPS];
    lks_metrics evaluated;
    char hex[65];
    size_t n_buckets;
    int64_t n_samples, step_allocations; /* in the last epoch */
} job;

typedef struct set_up {
    lks_group *group;
    lks_graph *graph;
    lks_dataset *data;
    lks_loader *loader;
    lks_trainer *trainer;
} set_up;

static lks_status create_trainer(set_up *s, const job *j) {
    lks_trainer_options options = {.group = s->group,
                                   .seed = 4,
                                   .optimizer = lks_adam(&(lks_adam_options){.lr = 1e-2, .clip_norm = j->clip_norm}),
                                   .strategy = j->strategy,
                                   .bucket_nbytes = 1,
                                   .accumulate = j->accumulate,
                                   .grains = j->grains,
                                   .runs_ahead = j->runs_ahead};
    options.features = lks_input(s->graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 3, 5, 5});
    options.labels = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *x = lks_relu(lks_batch_norm(lks_conv2d(options.features, 8, 3, "conv", NULL), "norm"));
    x = lks_dropout(lks_tanh(lks_linear(lks_reshape(x, 2, (int64_t[]){LKS_BATCH, 72}), FC_HIDDEN, "fc1")), 0.2);
    options.logits = lks_linear(x, N_CLASSES, "fc2");
    return lks_trainer_create(&s->trainer, lks_cross_entropy(options.logits, options.labels), &options);
}

/* Overlaps even if there are too few CPUs. */
static void overlap(const set_up *s) {
    lks_distributed_optimizer *optimizer = s->trainer->optimizer;
    optimizer->may_overlap = optimizer->may_overlap || !lks_symmetric_supported(s->group);
}

static int create(set_up *s, const job *j) {
    RANK_OK(lks_init(&s->group, &(lks_init_options){.transport = j->transport}));
    RANK_OK(lks_dataset_classification(&s->data, &(lks_classification_options){.n_samples = N_SAMPLES,
                                                                               .n_features = N_FEATURES,
                                                                               .n_informative = 20,
                                                                               .n_classes = N_CLASSES,
                                                                               .clusters_per_class = 1}));
    RANK_OK(lks_loader_create(&s->loader, s->data,
                              &(lks_loader_options){.batch = BATCH,
                                                    .seed = 2,
                                                    .grains = j->grains,
                                                    .n_workers = -1,
                                                    .rank = lks_group_rank(s->group),
                                                    .n_ranks = lks_group_size(s->group)}));
    s->graph = lks_graph_create(lks_device_default(s->group));
    RANK_OK(create_trainer(s, j));
    overlap(s);
    return 0;
}

static void destroy(set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_loader_destroy(s->loader);
    lks_dataset_destroy(s->data);
    lks_group_destroy(s->group);
}

/* Events between two steps while the update is still in progress. */
static int disturb(const set_up *s, disturbance how, int n_steps, lks_metrics *evaluated) {
    lks_store *store = lks_trainer_store(s->trainer);
    float bias[FC_HIDDEN];
    lks_position position = {.epoch = n_steps / 3, .step = n_steps % 3, .steps_per_epoch = 3, .global_batch = BATCH};
    switch (how) {
    case READ:
        RANK_OK(lks_store_read(store, lks_store_find(store, "fc1.bias"), bias));
        break;
    case CHECK:
        RANK_OK(lks_check_replicas(s->group, store));
        break;
    case BROADCAST:
        RANK_OK(lks_broadcast_parameters(s->group, store));
        break;
    case EVALUATE:
        RANK_OK(lks_trainer_evaluate(s->trainer, s->data, evaluated));
        break;
    case SET_LR:
        RANK_OK(lks_trainer_set_lr(s->trainer, 5e-3));
        break;
    case SAVE:
        RANK_OK(lks_trainer_save(s->trainer, LKSI_BUILD_DIR "/tests/runs_ahead.safetensors", &position));
        break;
    default:
        break;
    }
    return 0;
}

static int train_all(set_up *s, job *j) {
    lks_batch batch;
    lks_metrics metrics;
    int n_steps = 0;
    for (int epoch = 0; epoch < N_EPOCHS; epoch++)
        while (lks_loader_next(s->loader, &batch)) {
            int64_t before = lks_memory_allocation_count();
            RANK_OK(lks_trainer_step(s->trainer, &batch, &metrics));
            if (epoch + 1 == N_EPOCHS) j->step_allocations += lks_memory_allocation_count() - before;
            j->n_samples += metrics.n_samples;
            j->losses[n_steps] = metrics.loss;
            if (++n_steps % 4 == 0) RANK_CHECK(disturb(s, j->disturbance, n_steps, &j->evaluated) == 0);
        }
    RANK_OK(lks_trainer_catch_up(s->trainer, &metrics));
    RANK_CHECK(n_steps == N_STEPS && metrics.n_samples == 0);
    return 0;
}

static int train(void *argument) {
    job *j = argument, own = *j;
    set_up s = {0};
    own.n_samples = own.step_allocations = 0;
    RANK_CHECK(create(&s, j) == 0);
    RANK_CHECK(train_all(&s, &own) == 0);
    own.n_buckets = s.trainer->optimizer->n_buckets;
    RANK_OK(lks_trainer_evaluate(s.trainer, s.data, &own.evaluated));
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), own.hex));
    RANK_OK(lks_check_replicas(s.group, lks_trainer_store(s.trainer)));
    if (lks_group_rank(s.group) == 0) *j = own;
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

/* Runs processes, which write into `j`. They use tcp where they shall run ahead, because only ranks reached over a
 * network do. */
static void run_processes_of(int size, int (*function)(void *), job *j) {
    job *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    *shared = *j;
    if (size > 1 && j->runs_ahead && j->strategy == LKS_STRATEGY_BUCKETED) shared->transport = "tcp";
    if (lks_spawn(size, LKS_PROCESSES, function, shared) != LKS_OK) fail_msg("%d ranks: %s", size, lks_error_text());
    *j = *shared;
    munmap(shared, sizeof *shared);
}

static void assert_same(const job *ahead, const job *plain) {
    assert_string_equal(ahead->hex, plain->hex);
    assert_int_equal(ahead->n_samples, plain->n_samples);
    assert_true(ahead->evaluated.loss == plain->evaluated.loss);
    assert_memory_equal(ahead->losses, plain->losses, sizeof plain->losses);
}

static void over_tcp_running_ahead_gives_the_same_bits(void **state) {
    (void)state;
    for (int size = 2; size <= 3; size++) {
        job plain = {.runs_ahead = 0}, ahead = {.runs_ahead = 1, .strategy = LKS_STRATEGY_BUCKETED};
        run_processes_of(size, train, &plain);
        run_processes_of(size, train, &ahead);
        assert_same(&ahead, &plain);
        assert_true(ahead.n_buckets >= 3);
        assert_int_equal(ahead.step_allocations, 0);
    }
}

/* With pieces, grains, clipping, every strategy, and idle ranks. Steps that cannot run ahead behave as usual. */
static void every_kind_of_step_gives_the_same_bits(void **state) {
    (void)state;
    static const job kinds[] = {{.accumulate = 1}, {.accumulate = 2}, {.grains = 4}, {.clip_norm = 0.1}};
    for (int kind = 0; kind < 4; kind++) {
        const bool has_grains = kinds[kind].grains > 0;
        const int least = IS_SLOW_BUILD ? 3 - has_grains : 1, most = has_grains ? 4 : IS_SLOW_BUILD ? 3 : 6;
        for (int size = least; size <= most; size += 1 + (has_grains && size == 2))
            for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
                job plain = kinds[kind], ahead = plain;
                plain.strategy = ahead.strategy = (lks_strategy)strategy;
                ahead.runs_ahead = 1;
                run_processes_of(size, train, &plain);
                run_processes_of(size, train, &ahead);
                assert_same(&ahead, &plain);
            }
    }
}

static void whoever_looks_in_between_sees_whole_updates(void **state) {
    (void)state;
    for (disturbance how = READ; how < N_DISTURBANCES; how++)
        for (int64_t accumulate = IS_SLOW_BUILD ? 1 + how % 2 : 1; accumulate <= 2;
             accumulate += IS_SLOW_BUILD ? 2 : 1) {
            job plain = {.strategy = LKS_STRATEGY_BUCKETED, .accumulate = accumulate, .disturbance = how},
                ahead = plain;
            ahead.runs_ahead = 1;
            run_processes_of(3, train, &plain);
            run_processes_of(3, train, &ahead);
            assert_same(&ahead, &plain);
        }
    remove(LKSI_BUILD_DIR "/tests/runs_ahead.safetensors");
}

/* --- messages --- */

static int check_order(const lks_distributed_optimizer *optimizer) {
    size_t last = optimizer->n_buckets - 1, n_early = optimizer->n_early;
    const lksi_bucket *buckets = optimizer->buckets;
    for (size_t i = 1; i < n_early; i++) RANK_CHECK(buckets[i - 1].ended_ns <= buckets[i].began_ns);
    for (size_t i = n_early + 1; i <= last; i++) RANK_CHECK(buckets[i].ended_ns <= buckets[i - 1].began_ns);
    if (n_early > 0 && n_early <= last) RANK_CHECK(buckets[n_early - 1].ended_ns <= buckets[last].began_ns);
    return 0;
}

static int step_and_look(void *argument) {
    job *j = argument;
    set_up s = {0};
    lks_batch batch;
    lks_metrics metrics;
    RANK_CHECK(create(&s, j) == 0);
    const lks_distributed_optimizer *optimizer = s.trainer->optimizer;
    RANK_CHECK(optimizer->n_buckets >= 3);
    for (int epoch = 0; epoch < N_EPOCHS; epoch++)
        while (lks_loader_next(s.loader, &batch)) {
            RANK_OK(lks_trainer_step(s.trainer, &batch, &metrics));
            RANK_CHECK(optimizer->is_trailing && metrics.n_samples == batch.global_count);
            RANK_CHECK(lks_barrier(s.group, NULL) == LKS_ERR_STATE);
            RANK_CHECK(strstr(lks_error_text(), "a trainer that runs ahead ends it in lks_trainer_catch_up") != NULL);
            if (batch.step == 0) RANK_OK(lks_trainer_catch_up(s.trainer, NULL));
            if (batch.step == 0) RANK_CHECK(check_order(optimizer) == 0);
        }
    RANK_OK(lks_trainer_catch_up(s.trainer, NULL));
    RANK_CHECK(!optimizer->is_trailing && check_order(optimizer) == 0);
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void what_the_backward_pass_leaves_is_sent_from_the_first_layer_on(void **state) {
    (void)state;
    run_processes_of(2, step_and_look, &(job){.strategy = LKS_STRATEGY_BUCKETED, .runs_ahead = 1});
}

/* --- metrics that were not requested --- */

static int ask_for_the_third_step(void *argument) {
    set_up s = {0};
    lks_batch batch;
    lks_metrics metrics;
    RANK_CHECK(create(&s, argument) == 0);
    for (int step = 0; step < 3; step++) {
        RANK_CHECK(lks_loader_next(s.loader, &batch));
        RANK_OK(lks_trainer_step(s.trainer, &batch, step < 2 ? NULL : &metrics));
        RANK_CHECK(step < 2 || metrics.n_samples == batch.global_count);
    }
    RANK_CHECK(!lks_loader_next(s.loader, &batch) && lks_loader_next(s.loader, &batch));
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_OK(lks_trainer_catch_up(s.trainer, &metrics));
    RANK_CHECK(metrics.n_samples == batch.global_count);
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static void metrics_are_those_of_the_step(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_BUCKETED; strategy++)
        for (int runs_ahead = 0; runs_ahead < 2; runs_ahead++)
            run_processes_of(2, ask_for_the_third_step,
                             &(job){.strategy = (lks_strategy)strategy, .runs_ahead = runs_ahead});
}

/* --- two trainers of one group --- */

static int step_with_another_trainer(void *argument) {
    set_up s = {0};
    lks_batch batch;
    RANK_CHECK(create(&s, argument) == 0);
    set_up other = s;
    other.graph = lks_graph_create(lks_device_default(s.group));
    RANK_OK(create_trainer(&other, argument));
    overlap(&other);
    for (int step = 0; step < 2; step++) { /* the first step also compares batches, which is a collective */
        RANK_CHECK(lks_loader_next(s.loader, &batch));
        RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
        RANK_CHECK(lks_trainer_step(other.trainer, &batch, NULL) == LKS_ERR_STATE);
        RANK_CHECK(strstr(lks_error_text(), "another optimizer's step on rank ") != NULL);
        RANK_OK(lks_trainer_catch_up(s.trainer, NULL));
        RANK_OK(lks_trainer_step(other.trainer, &batch, NULL));
        RANK_OK(lks_trainer_catch_up(other.trainer, NULL));
    }
    RANK_OK(lks_check_replicas(s.group, lks_trainer_store(s.trainer)));
    RANK_OK(lks_check_replicas(s.group, lks_trainer_store(other.trainer)));
    lks_trainer_destroy(other.trainer);
    lks_graph_destroy(other.graph);
    destroy(&s);
    return 0;
}

static void another_trainer_has_to_wait_for_the_step(void **state) {
    (void)state;
    run_processes_of(3, step_with_another_trainer, &(job){.strategy = LKS_STRATEGY_BUCKETED, .runs_ahead = 1});
}

/* --- an error of a step is returned by the next step --- */

static int abort_behind_a_step(void *argument) {
    set_up s = {0};
    lks_batch batch;
    RANK_CHECK(create(&s, argument) == 0 && lks_loader_next(s.loader, &batch));
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    if (lks_group_rank(s.group) == 1) {
        lks_group_abort(s.group, "had enough");
        destroy(&s);
        return 0;
    }
    lks_status status = LKS_OK;
    for (int i = 0; i < 2 && status == LKS_OK; i++) status = lks_trainer_step(s.trainer, &batch, NULL);
    RANK_CHECK(status == LKS_ERR_PEER && strstr(lks_error_text(), "had enough") != NULL);
    destroy(&s);
    return 0;
}

static void a_rank_that_gives_up_behind_a_step_ends_the_next(void **state) {
    (void)state;
    run_processes_of(2, abort_behind_a_step, &(job){.strategy = LKS_STRATEGY_BUCKETED, .runs_ahead = 1});
}

/* The last rank has no samples in a step whose sum is therefore wrong, while the previous step is still in progress. */
static int bring_too_few(void *argument) {
    set_up s = {0};
    lks_batch batch;
    RANK_CHECK(create(&s, argument) == 0 && lks_loader_next(s.loader, &batch));
    RANK_OK(lks_trainer_step(s.trainer, &batch, NULL));
    RANK_CHECK(lks_loader_next(s.loader, &batch));
    if (lks_group_rank(s.group) == 2) batch.count = batch.n_labels = 0;
    RANK_CHECK(lks_trainer_step(s.trainer, &batch, NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "step 2: the ranks brought 16 labels together") != NULL);
    RANK_CHECK(s.trainer->n_steps == 1 && !s.trainer->optimizer->is_trailing);
    destroy(&s);
    return 0;
}

static void a_step_that_does_not_add_up_is_refused_on_all_ranks(void **state) {
    (void)state;
    run_processes_of(3, bring_too_few, &(job){.strategy = LKS_STRATEGY_BUCKETED, .runs_ahead = 1});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_tcp_running_ahead_gives_the_same_bits), /* first, because it forks: no threads yet */
        cmocka_unit_test(every_kind_of_step_gives_the_same_bits),
        cmocka_unit_test(whoever_looks_in_between_sees_whole_updates),
        cmocka_unit_test(what_the_backward_pass_leaves_is_sent_from_the_first_layer_on),
        cmocka_unit_test(metrics_are_those_of_the_step),
        cmocka_unit_test(another_trainer_has_to_wait_for_the_step),
        cmocka_unit_test(a_rank_that_gives_up_behind_a_step_ends_the_next),
        cmocka_unit_test(a_step_that_does_not_add_up_is_refused_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
