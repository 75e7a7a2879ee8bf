/* One rank of a trainer gets other arguments than the others, or fails: every rank gets an error that says what and
 * where. */
#include "ranks.h"

#include <lockstep/train.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_RANKS = 3, N_FEATURES = 16, N_CLASSES = 4, COUNT = 16 /* samples of a rank in a step */ };

/* What rank 1 does differently. */
typedef enum fault {
    OTHER_WIDTH,
    OTHER_ACTIVATION,
    OTHER_ATTRIBUTE,
    ONE_LAYER_MORE,
    OTHER_SEED,
    OTHER_RATE,
    OTHER_OPTIMIZER,
    OTHER_SCHEDULE,
    OTHER_DATA,
    OTHER_THREADS,
    OTHER_ACCUMULATE,
    OTHER_CHECKS,
    OTHER_STRATEGY,
    OTHER_BUCKETS,
    OTHER_BATCH,
    OTHER_ORDER,
    N_FAULTS
} fault;

/* A line of the table without the spaces of its columns. */
static const char *const lines[N_FAULTS] = {
    [OTHER_WIDTH] = "\nparameter fc1.weight|f32 (8,16)|f32 (9,16)\n",
    [OTHER_ACTIVATION] = "|relu f32 (N,8) of 4|tanh f32 (N,8) of 4",
    [OTHER_ATTRIBUTE] = " number 0.25 #",
    [ONE_LAYER_MORE] = "\nparameter extra.weight|-|f32 (4,4)\n",
    [OTHER_SEED] = "\nseed|1|2",
    [OTHER_RATE] = "\nlr|0.1|0.11",
    [OTHER_OPTIMIZER] = "\noptimizer|SGD|AdamW\n",
    [OTHER_SCHEDULE] = "\nschedule|constant|cosine\n",
    [OTHER_DATA] = "\ndata (hash)|00000000000000aa|00000000000000bb",
    [OTHER_THREADS] = "\nthreads per rank|1|2",
    [OTHER_ACCUMULATE] = "\naccumulate|1|4",
    [OTHER_CHECKS] = "\ncheck_gradients|0|1",
    [OTHER_STRATEGY] = "\nstrategy|auto|sharded",
    [OTHER_BUCKETS] = "\nbucket_nbytes|0|65536",
    [OTHER_BATCH] = "\nsamples in the first step|48|32",
    [OTHER_ORDER] = "\norder of samples (hash)|",
};

typedef struct set_up {
    lks_group *group;
    lks_device *device;
    lks_graph *graph;
    lks_trainer *trainer;
    float features[COUNT * N_FEATURES];
    int32_t labels[COUNT];
    lks_batch batch;
} set_up;

static lks_node *build_logits(lks_node *x, fault which) {
    lks_node *h = lks_linear(x, which == OTHER_WIDTH ? 9 : 8, "fc1");
    lks_node *hidden =
        lks_scale(which == OTHER_ACTIVATION ? lks_tanh(h) : lks_relu(h), which == OTHER_ATTRIBUTE ? 0.25 : 0.5);
    lks_node *logits = lks_linear(hidden, N_CLASSES, "fc2");
    return which == ONE_LAYER_MORE ? lks_linear(logits, N_CLASSES, "extra") : logits;
}

static lks_trainer_options options_for(fault which) {
    lks_trainer_options options = {.optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}), .seed = 1, .data_hash = 0xaa};
    if (which == OTHER_SEED) options.seed = 2;
    if (which == OTHER_RATE) options.optimizer.lr = 0.11;
    if (which == OTHER_OPTIMIZER) options.optimizer = lks_adamw(&(lks_adamw_options){.lr = 0.1});
    if (which == OTHER_SCHEDULE) options.optimizer.schedule = lks_schedule_cosine(0.1, 100);
    if (which == OTHER_DATA) options.data_hash = 0xbb;
    if (which == OTHER_ACCUMULATE) options.accumulate = 4;
    if (which == OTHER_CHECKS) options.check_gradients = 1;
    if (which == OTHER_STRATEGY) options.strategy = LKS_STRATEGY_SHARDED;
    if (which == OTHER_BUCKETS) options.bucket_nbytes = 65536;
    return options;
}

static lks_status create(set_up *s, fault which, lks_trainer_options options, int has_one_layer) {
    lks_status status =
        lks_device_create(&s->device, &(lks_device_options){.num_threads = which == OTHER_THREADS ? 2 : 1});
    if (status != LKS_OK) return status;
    s->graph = lks_graph_create(s->device);
    lks_node *x = lks_input(s->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    options.group = s->group;
    options.features = x;
    options.labels = y;
    lks_node *logits = has_one_layer ? lks_linear(x, N_CLASSES, "fc") : build_logits(x, which);
    return lks_trainer_create(&s->trainer, lks_cross_entropy(logits, y), &options);
}

/* The samples differ by rank and step. */
static lks_batch *make_batch(set_up *s, int step) {
    int rank = lks_group_rank(s->group), size = lks_group_size(s->group);
    for (int i = 0; i < COUNT * N_FEATURES; i++) s->features[i] = (float)((i * 7 + rank * 3 + step) % 11 - 5) / 5;
    for (int i = 0; i < COUNT; i++) s->labels[i] = i % N_CLASSES;
    s->batch = (lks_batch){.features = s->features,
                           .labels = s->labels,
                           .count = COUNT,
                           .global_count = (int64_t)COUNT * size,
                           .n_labels = COUNT,
                           .global_n_labels = (int64_t)COUNT * size,
                           .global_offset = (int64_t)COUNT * rank};
    return &s->batch;
}

static void destroy(set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_device_destroy(s->device);
    lks_group_destroy(s->group);
}

/* Removes the spaces around "|" and at the start of a line. */
static void squeeze(const char *table, char *squeezed) {
    char before = '\n';
    for (; *table != '\0'; table++) {
        if (before == '|' || before == '\n' || table[strspn(table, " ")] == '|') table += strspn(table, " ");
        if (*table == '\0') break;
        before = *squeezed++ = *table;
    }
    *squeezed = '\0';
}

/* Takes a step on `rank`'s part of the samples, in the order given by `seed`. All ranks should use the same seed. */
static lks_status step_on_part(set_up *s, int rank, uint64_t seed) {
    int n_ranks = lks_group_size(s->group);
    lks_dataset *data;
    lks_loader *loader;
    lks_batch batch;
    for (int i = 0; i < COUNT; i++) s->labels[i] = i % N_CLASSES;
    RANK_OK(lks_dataset_create(&data, &(lks_dataset_options){.features = s->features,
                                                             .type = LKS_F32,
                                                             .labels = s->labels,
                                                             .count = COUNT,
                                                             .n_features = N_FEATURES,
                                                             .n_classes = N_CLASSES}));
    RANK_OK(lks_loader_create(&loader, data,
                              &(lks_loader_options){.batch = n_ranks, .seed = seed, .rank = rank, .n_ranks = n_ranks}));
    lks_loader_next(loader, &batch);
    lks_status status = lks_trainer_step(s->trainer, &batch, NULL);
    lks_loader_destroy(loader);
    lks_dataset_destroy(data);
    return status;
}

static const char *transport;

static int differ(void *argument) {
    fault which = *(const fault *)argument;
    set_up s = {0};
    RANK_OK(lks_init(&s.group, &(lks_init_options){.transport = transport}));
    int is_odd = lks_group_rank(s.group) == 1;
    lks_status status = create(&s, is_odd ? which : N_FAULTS, options_for(is_odd ? which : N_FAULTS), 0);
    if (which == OTHER_BATCH && status == LKS_OK) {
        lks_batch *batch = make_batch(&s, 0);
        if (is_odd) batch->global_count = 32;
        status = lks_trainer_step(s.trainer, batch, NULL);
    }
    if (which == OTHER_ORDER && status == LKS_OK) status = step_on_part(&s, lks_group_rank(s.group), is_odd ? 2 : 1);
    RANK_CHECK(status == LKS_ERR_MISMATCH);
    char table[1024];
    squeeze(lks_error_text(), table);
    RANK_CHECK(strstr(table, "\noption|ranks 0, 2|rank 1\n") != NULL);
    RANK_CHECK(strstr(table, lines[which]) != NULL);
    destroy(&s);
    return 0;
}

static void every_difference_is_a_line_of_a_table_on_every_rank(void **state) {
    (void)state;
    const char *const transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++)
        for (int which = 0; which < N_FAULTS; which++) {
            transport = transports[t];
            assert_ok(lks_spawn(N_RANKS, LKS_PROCESSES, differ, &(fault){(fault)which}));
        }
}

/* Rank 1 uses rank 0's part: the number of samples is what the ranks expect, but some of them come twice. */
static int take_the_part_of_another(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_OK(lks_init(&s.group, NULL));
    RANK_OK(create(&s, N_FAULTS, options_for(N_FAULTS), 0));
    int rank = lks_group_rank(s.group);
    RANK_CHECK(step_on_part(&s, rank == 1 ? 0 : rank, 1) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "rank 1 of 3 brought a batch of rank 0 of 3: was its loader made for another "
                                        "rank?") != NULL);
    destroy(&s);
    return 0;
}

static void the_part_of_another_rank_is_refused(void **state) {
    (void)state;
    assert_ok(lks_spawn(N_RANKS, LKS_PROCESSES, take_the_part_of_another, NULL));
}

/* In memory shared by the ranks. */
typedef struct told {
    _Atomic int is_ending, n_told;
} told;

/* Ranks 0 and 2 must get the error at the next chunk, not only at the end of the evaluation. */
static int be_lost_in_an_evaluation(void *argument) {
    enum { N_SAMPLES = 500 * 20 };
    static float features[N_SAMPLES * N_FEATURES];
    static int32_t labels[N_SAMPLES];
    told *t = argument;
    set_up s = {0};
    lks_dataset *data;
    lks_metrics metrics;
    RANK_OK(lks_init(&s.group, NULL));
    RANK_OK(create(&s, N_FAULTS, options_for(N_FAULTS), 0));
    RANK_OK(lks_dataset_create(&data, &(lks_dataset_options){.features = features,
                                                             .type = LKS_F32,
                                                             .labels = labels,
                                                             .count = N_SAMPLES,
                                                             .n_features = N_FEATURES,
                                                             .n_classes = N_CLASSES}));
    if (lks_group_rank(s.group) == 1) {
        atomic_store(&t->is_ending, 1);
        (void)raise(SIGKILL); /* at once, because exit takes long with a sanitizer */
    }
    while (!atomic_load(&t->is_ending)) usleep(1000);
    usleep(500 * 1000);
    RANK_CHECK(lks_trainer_evaluate(s.trainer, data, &metrics) == LKS_ERR_PEER);
    RANK_CHECK(strstr(lks_error_text(), "rank 1 (") != NULL && strstr(lks_error_text(), "evaluation, ") != NULL);
    atomic_fetch_add(&t->n_told, 1);
    lks_dataset_destroy(data);
    destroy(&s);
    return 0;
}

static void a_rank_lost_in_an_evaluation_is_named_before_its_end(void **state) {
    (void)state;
    told *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(t != MAP_FAILED);
    assert_int_equal(lks_spawn(N_RANKS, LKS_PROCESSES, be_lost_in_an_evaluation, t), LKS_ERR_PEER);
    assert_int_equal(atomic_load(&t->n_told), 2);
    munmap(t, sizeof *t);
}

/* Sets one feature to `value`. With 6e37 the logits and the loss stay finite, but the weights' gradients, which are
 * sums over the samples, do not. With NaN the loss is not finite either. */
static void spoil(lks_batch *batch, float *features, float value) {
    memset(features, 0, COUNT * N_FEATURES * sizeof *features);
    for (int i = 0; i < COUNT; i++) features[i * N_FEATURES] = value;
    batch->features = features;
}

typedef struct way {
    lks_strategy strategy;
    int64_t accumulate;
    float bad_feature;
} way;

/* Takes three steps. If `is_bad`, an extra step with an infinite gradient on rank 1 comes before the second. */
static int train_around_a_bad_step(const way *how, int is_bad, char hex[65]) {
    set_up s = {0};
    RANK_OK(lks_init(&s.group, NULL));
    lks_trainer_options options = options_for(N_FAULTS);
    options.check_gradients = 1;
    options.accumulate = how->accumulate;
    options.strategy = how->strategy;
    RANK_OK(create(&s, N_FAULTS, options, 1));
    for (int step = 0; step < 3; step++) {
        if (step == 1 && is_bad) {
            lks_batch *batch = make_batch(&s, 9);
            if (lks_group_rank(s.group) == 1) spoil(batch, s.features, how->bad_feature);
            RANK_CHECK(lks_trainer_step(s.trainer, batch, NULL) == LKS_ERR_NUMERIC);
            RANK_CHECK(strstr(lks_error_text(), "the gradient of 'fc.weight' on rank 1 in step 2 holds ") != NULL);
        }
        RANK_OK(lks_trainer_step(s.trainer, make_batch(&s, step), NULL));
    }
    RANK_OK(lks_store_sha256(lks_trainer_store(s.trainer), hex));
    RANK_OK(lks_barrier(s.group, NULL));
    destroy(&s);
    return 0;
}

static int compute_a_bad_gradient(void *argument) {
    char with[65], without[65];
    RANK_CHECK(train_around_a_bad_step(argument, 1, with) == 0);
    RANK_CHECK(train_around_a_bad_step(argument, 0, without) == 0);
    RANK_CHECK(strcmp(with, without) == 0); /* no trace of the bad step is left */
    return 0;
}

static void a_gradient_that_is_no_number_is_named_and_not_used(void **state) {
    (void)state;
    for (lks_strategy strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int64_t accumulate = 1; accumulate <= 2; accumulate++)
            for (int has_loss = 0; has_loss < 2; has_loss++)
                run_ranks(N_RANKS, compute_a_bad_gradient, &((way){strategy, accumulate, has_loss ? 6e37f : NAN}));
}

/* Checks the gradients in a user's own loop. */
static int check_own_gradients(void *argument) {
    (void)argument;
    lks_group *group;
    lks_store *store;
    RANK_OK(lks_init(&group, NULL));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *mask = lks_buffer(g, "mask", 1, (int64_t[]){N_CLASSES}, 0, 0); /* a constant may be infinite */
    RANK_OK(lks_store_create(&store, lks_cross_entropy(lks_add(lks_linear(x, N_CLASSES, "fc"), mask), y), NULL));
    size_t count;
    *(float *)lks_store_gradient(store, lks_store_find(store, "mask"), &count) = -INFINITY;
    RANK_OK(lks_check_gradients(group, store, 1));
    float *gradient = lks_store_gradient(store, lks_store_find(store, "fc.bias"), &count);
    if (lks_group_rank(group) == 2) gradient[N_CLASSES - 1] = NAN;
    RANK_CHECK(lks_check_gradients(group, store, 7) == LKS_ERR_NUMERIC);
    RANK_CHECK(strstr(lks_error_text(), "the gradient of 'fc.bias' on rank 2 in step 7 holds ") != NULL);
    RANK_OK(lks_barrier(group, NULL));
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

static void own_loops_can_ask_about_their_gradients(void **state) {
    (void)state;
    run_ranks(N_RANKS, check_own_gradients, NULL);
}

/* Rank 2 changes one bit of one value of its replica. */
static lks_status corrupt(set_up *s) {
    lks_store *store = lks_trainer_store(s->trainer);
    int index = lks_store_find(store, "fc2.weight");
    float values[8 * N_CLASSES];
    lks_status status = lks_store_read(store, index, values);
    if (lks_group_rank(s->group) == 2) values[5] = nextafterf(values[5], 1);
    return status == LKS_OK ? lks_store_write(store, index, values) : status;
}

/* Each rank has its own replica, as over tcp. */
static int corrupt_one_replica(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_OK(lks_init(&s.group, &(lks_init_options){.transport = "tcp"}));
    lks_trainer_options options = options_for(N_FAULTS);
    options.check_every = 2;
    RANK_OK(create(&s, N_FAULTS, options, 0));
    for (int step = 0; step < 3; step++) RANK_OK(lks_trainer_step(s.trainer, make_batch(&s, step), NULL));
    RANK_OK(corrupt(&s));
    RANK_OK(lks_trainer_step(s.trainer, make_batch(&s, 3), NULL));
    RANK_CHECK(lks_trainer_step(s.trainer, make_batch(&s, 4), NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "after step 4: replicas differ: parameter 'fc2.weight' of rank 2 ") != NULL);
    destroy(&s);
    return 0;
}

/* Ranks of one host have copies. The next update would overwrite the corrupt copy. The check before it must find the
 * difference, because nothing later can. */
static int corrupt_one_copy(void *argument) {
    (void)argument;
    set_up s = {0};
    RANK_OK(lks_init(&s.group, NULL));
    lks_trainer_options options = options_for(N_FAULTS);
    options.check_every = 1;
    options.strategy = LKS_STRATEGY_SHARDED;
    RANK_OK(create(&s, N_FAULTS, options, 0));
    for (int step = 0; step < 3; step++) RANK_OK(lks_trainer_step(s.trainer, make_batch(&s, step), NULL));
    RANK_OK(corrupt(&s));
    RANK_CHECK(lks_trainer_step(s.trainer, make_batch(&s, 3), NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "after step 3: replicas differ: parameter 'fc2.weight' of rank 2 ") != NULL);
    destroy(&s);
    return 0;
}

static void a_copy_that_went_wrong_between_two_steps_is_noticed_before_the_second(void **state) {
    (void)state;
    assert_ok(lks_spawn(N_RANKS, LKS_PROCESSES, corrupt_one_copy, NULL));
}

static void a_replica_that_went_its_own_way_is_noticed_within_check_every(void **state) {
    (void)state;
    assert_ok(lks_spawn(N_RANKS, LKS_PROCESSES, corrupt_one_replica, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        /* must be first: it forks, so no thread may exist yet */
        cmocka_unit_test(every_difference_is_a_line_of_a_table_on_every_rank),
        cmocka_unit_test(the_part_of_another_rank_is_refused),
        cmocka_unit_test(a_rank_lost_in_an_evaluation_is_named_before_its_end),
        cmocka_unit_test(a_replica_that_went_its_own_way_is_noticed_within_check_every),
        cmocka_unit_test(a_copy_that_went_wrong_between_two_steps_is_noticed_before_the_second),
        cmocka_unit_test(a_gradient_that_is_no_number_is_named_and_not_used),
        cmocka_unit_test(own_loops_can_ask_about_their_gradients),
    };
    return run_group(tests);
}
