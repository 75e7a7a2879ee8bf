/* labels: no-tsan */
/* Synchronised batch norm: a batch divided among ranks in any way gives the results of one rank with the whole batch.
 * That one rank uses plain batch norm, which has other kernels. */
#include "ranks.h"

#include "comm/ranks.h"

#include "base/base.h"

#include <lockstep/nn.h>
#include <lockstep/parallel.h>
#include <math.h>
#include <string.h>

enum { BATCH = 24, CHANNELS = 3, SIDE = 5, N_CLASSES = 4, MAX_RANKS = 8, MAX_TENSORS = 24, MAX_COUNT = 4096 };
enum { SAMPLE = CHANNELS * SIDE * SIDE };

/* All that is compared after a step: the loss, the sums of all gradients, the running statistics. */
typedef struct outcome {
    double loss;
    int n_parameters, n_tensors;
    char names[MAX_TENSORS][40];
    int64_t counts[MAX_TENSORS];
    double values[MAX_TENSORS][MAX_COUNT]; /* of parameters: the gradient; of buffers: the new value */
    char hex[65];                          /* hash of all trained values */
} outcome;

typedef struct run {
    const char *device;
    lks_type precision;
    int is_synchronised, is_shifted;
    lks_strategy strategy;
    int is_attached; /* gradients are in transit when the pass ends, and are not read */
    int n_ranks, counts[MAX_RANKS];
    outcome *result; /* written by rank 0 */
} run;

typedef struct model {
    lks_device *device;
    lks_graph *graph;
    lks_node *x, *label, *loss;
} model;

static lks_node *conv_bn(lks_node *x, int64_t channels, const char *conv, const char *norm, int is_synchronised) {
    lks_conv2d_options same = {.window = {.padding = {1, 1}}, .no_bias = 1};
    return lks_batch_norm_with(lks_conv2d(x, channels, 3, conv, &same), norm,
                               &(lks_batch_norm_options){.is_synchronised = is_synchronised});
}

/* Batch norms with and without ReLU, of images and of features. One of them normalises the input itself. */
static int build(model *m, const run *r) {
    RANK_OK(lks_device_create(&m->device, &(lks_device_options){.name = r->device, .precision = r->precision}));
    m->graph = lks_graph_create(m->device);
    m->x = lks_input(m->graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, CHANNELS, SIDE, SIDE});
    m->label = lks_input(m->graph, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_batch_norm_options options = {.is_synchronised = r->is_synchronised};
    lks_node *h = lks_batch_norm_with(m->x, "bn0", &options);
    h = lks_relu(conv_bn(h, 12, "conv1", "bn1", r->is_synchronised));
    h = lks_relu(lks_add(h, conv_bn(h, 12, "conv2", "bn2", r->is_synchronised)));
    h = lks_linear_with(lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 12 * SIDE * SIDE}), 10, "fc1",
                        &(lks_linear_options){.no_bias = 1}); /* before a batch norm its gradient would be 0 */
    h = lks_tanh(lks_batch_norm_with(h, "bn3", &options));
    m->loss = lks_cross_entropy(lks_linear(h, N_CLASSES, "fc2"), m->label);
    return 0;
}

static void destroy(model *m) {
    lks_graph_destroy(m->graph);
    lks_device_destroy(m->device);
}

typedef union batch {
    float f32[BATCH * SAMPLE];
    double f64[BATCH * SAMPLE];
} batch;

/* The ranks' samples differ in mean and scale, so that one rank's statistics are far from those of the whole batch. */
static void fill(const run *r, batch *x, int32_t *labels) {
    for (int i = 0; i < BATCH * SAMPLE; i++) {
        int sample = i / SAMPLE;
        double value = (1 + sample % 5) * lksi_random_normal(3, 1, (uint64_t)i) + 0.2 * sample;
        if (r->is_shifted) value = 1000 + value;
        if (r->precision == LKS_F64)
            x->f64[i] = value;
        else
            x->f32[i] = (float)value;
    }
    for (int i = 0; i < BATCH; i++) labels[i] = i % N_CLASSES;
}

static int read_gradients(lks_group *group, const lks_store *store, outcome *result) {
    result->n_parameters = lks_store_n_parameters(store);
    result->n_tensors = lks_store_n_tensors(store);
    RANK_CHECK(result->n_tensors <= MAX_TENSORS);
    for (int i = 0; i < result->n_tensors; i++) {
        lks_parameter_view view = lks_store_parameter(store, i);
        double mine[MAX_COUNT];
        RANK_CHECK(view.count <= MAX_COUNT);
        RANK_OK(lks_store_read_gradient(store, i, mine));
        for (int64_t j = view.count; view.type == LKS_F32 && j-- > 0;) {
            float value;
            memcpy(&value, (char *)mine + j * 4, 4);
            mine[j] = (double)value;
        }
        snprintf(result->names[i], sizeof result->names[i], "%s", view.name);
        result->counts[i] = view.count;
        RANK_OK(lks_all_reduce(group, mine, result->values[i], (size_t)view.count, LKS_F64, LKS_SUM, NULL));
    }
    return 0;
}

static int read_statistics(const lks_store *store, outcome *result) {
    for (int i = result->n_parameters; i < result->n_tensors; i++) {
        double values[MAX_COUNT];
        RANK_OK(lks_store_read(store, i, values));
        for (int64_t j = 0; j < result->counts[i]; j++) {
            float value;
            memcpy(&value, (char *)values + j * 4, 4);
            result->values[i][j] = lks_store_parameter(store, i).type == LKS_F32 ? (double)value : values[j];
        }
    }
    return 0;
}

/* A rank without samples runs on the first sample of the batch, which belongs to another rank. */
static int pass(const run *r, const model *m, lks_store *store, lks_distributed_optimizer *optimizer,
                lks_group *statistics, int begin, int count, double *loss) {
    static _Thread_local batch x;
    int32_t labels[BATCH];
    lks_program *program;
    fill(r, &x, labels);
    RANK_OK(lks_program_create(
        &program, store, &(lks_program_options){.batch = count > 0 ? count : 1, .is_training = 1, .loss = m->loss}));
    lks_program_synchronise(program, statistics);
    lks_program_set_absent(program, count == 0);
    if (r->is_attached) RANK_OK(lks_distributed_optimizer_attach(optimizer, program));
    const void *features = r->precision == LKS_F64 ? (void *)&x.f64[begin * SAMPLE] : (void *)&x.f32[begin * SAMPLE];
    RANK_OK(lks_program_set_input(program, m->x, features));
    RANK_OK(lks_program_set_input(program, m->label, labels + begin));
    RANK_OK(lks_program_forward(program));
    *loss = count * lks_program_scalar(program, m->loss);
    RANK_OK(lks_program_backward(program, count));
    lks_program_destroy(program);
    return 0;
}

static int step(const run *r, const model *m, lks_group *group, lks_group *statistics, lks_store *store) {
    static outcome unread[MAX_RANKS];
    int rank = lks_group_rank(group), begin = 0, count = r->counts[rank];
    for (int i = 0; i < rank; i++) begin += count > 0 ? r->counts[i] : 0;
    outcome *result = rank == 0 ? r->result : &unread[rank];
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_distributed_optimizer *optimizer;
    lks_step_sums mine = {.n_samples = count}, all;
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    RANK_CHECK(pass(r, m, store, optimizer, statistics, begin, count, &mine.loss) == 0);
    if (!r->is_attached) RANK_CHECK(read_gradients(group, store, result) == 0);
    RANK_OK(lks_distributed_optimizer_step(optimizer, &mine, &all));
    RANK_CHECK(all.n_samples == BATCH);
    result->loss = all.loss / all.n_samples;
    RANK_CHECK(read_statistics(store, result) == 0);
    RANK_OK(lks_check_replicas(group, store));
    RANK_OK(lks_store_sha256(store, result->hex));
    lks_distributed_optimizer_destroy(optimizer);
    return 0;
}

static int train(void *argument) {
    const run *r = argument;
    lks_group *group, *statistics;
    lks_store *store;
    model m;
    RANK_OK(lks_init(&group, NULL));
    RANK_OK(lks_group_split(group, 0, lks_group_rank(group), &statistics));
    RANK_CHECK(build(&m, r) == 0);
    RANK_OK(lks_distributed_store_create(
        &store, group, m.loss, &(lks_distributed_options){.seed = 11, .strategy = r->strategy, .bucket_nbytes = 1}));
    RANK_CHECK(step(r, &m, group, statistics, store) == 0);
    RANK_OK(lks_barrier(group, NULL));
    lks_store_destroy(store);
    destroy(&m);
    lks_group_destroy(statistics);
    lks_group_destroy(group);
    return 0;
}

/* ||got - expected|| / ||expected|| per tensor. */
static void check_close(const outcome *got, const outcome *expected, double tolerance, const char *what) {
    assert_int_equal(got->n_tensors, expected->n_tensors);
    if (!(fabs(got->loss - expected->loss) <= tolerance * expected->loss))
        fail_msg("%s: loss %.17g, expected %.17g", what, got->loss, expected->loss);
    for (int i = 0; i < got->n_tensors; i++) {
        double difference = 0, norm = 0;
        for (int64_t j = 0; j < got->counts[i]; j++) {
            double d = got->values[i][j] - expected->values[i][j];
            difference += d * d;
            norm += expected->values[i][j] * expected->values[i][j];
        }
        if (!(sqrt(difference) <= tolerance * sqrt(norm)))
            fail_msg("%s: %s differs by %.3g of its norm %.3g", what, got->names[i], sqrt(difference / norm),
                     sqrt(norm));
    }
}

static const run splits[] = {
    {.n_ranks = 1, .counts = {24}},
    {.n_ranks = 2, .counts = {12, 12}},
    {.n_ranks = 2, .counts = {1, 23}},
    {.n_ranks = 2, .counts = {0, 24}},
    {.n_ranks = 3, .counts = {7, 0, 17}},
    {.n_ranks = 4, .counts = {6, 6, 6, 6}},
    {.n_ranks = 5, .counts = {2, 5, 9, 1, 7}},
    {.n_ranks = 7, .counts = {1, 1, 1, 1, 1, 18, 1}},
    {.n_ranks = 8, .counts = {3, 0, 5, 0, 0, 12, 4, 0}},
};

static void check_splits(run base, double tolerance) {
    static outcome expected, got;
    run whole = base;
    whole.n_ranks = 1, whole.counts[0] = BATCH, whole.is_synchronised = 0, whole.result = &expected;
    run_ranks(1, train, &whole);
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        run divided = base;
        char what[64];
        snprintf(what, sizeof what, "%s, split %zu", base.device, i);
        memcpy(divided.counts, splits[i].counts, sizeof divided.counts);
        divided.n_ranks = splits[i].n_ranks, divided.is_synchronised = 1, divided.result = &got;
        memset(&got, 0, sizeof got);
        run_ranks(divided.n_ranks, train, &divided);
        check_close(&got, &expected, tolerance, what);
    }
}

static void any_split_computes_what_one_rank_does(void **state) {
    (void)state;
    check_splits((run){.device = "reference", .precision = LKS_F64}, 1e-12);
}

/* The cpu device's kernels add in f32, in an order that depends on the number of samples. */
static void any_split_computes_what_one_rank_does_in_f32(void **state) {
    (void)state;
    check_splits((run){.device = "reference"}, 1e-6);
    check_splits((run){.device = "cpu"}, 4e-6);
}

/* Inputs of 1000 plus or minus 3: with sums of squares in f32 the variance would have one correct digit. The error of a
 * mean in f32, 3e-5, shows in the outputs. */
static void the_variance_of_large_inputs_is_not_lost(void **state) {
    (void)state;
    check_splits((run){.device = "reference", .is_shifted = 1}, 1e-4);
    check_splits((run){.device = "cpu", .is_shifted = 1}, 1e-4);
}

/* Includes splits with ranks that have no samples. */
static void attached_programs_of_any_split_give_the_same_bits(void **state) {
    (void)state;
    static outcome apart, attached;
    for (int strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (size_t i = 3; i < 5; i++) {
            run r = splits[i];
            r.device = "cpu", r.strategy = (lks_strategy)strategy, r.is_synchronised = 1, r.result = &apart;
            run_ranks(r.n_ranks, train, &r);
            r.is_attached = 1, r.result = &attached;
            run_ranks(r.n_ranks, train, &r);
            assert_string_equal(attached.hex, apart.hex);
            assert_true(attached.loss == apart.loss);
        }
}

/* --- errors --- */

typedef struct sharers {
    lks_group *group, *statistics;
    model m;
    lks_store *store;
    lks_program *program;
    batch x;
    int32_t labels[BATCH];
} sharers;

/* Everything before the first pass. */
static int set_up(sharers *s) {
    const run r = {.device = "cpu", .is_synchronised = 1};
    RANK_OK(lks_init(&s->group, NULL));
    RANK_OK(lks_group_split(s->group, 0, lks_group_rank(s->group), &s->statistics));
    RANK_CHECK(build(&s->m, &r) == 0);
    RANK_OK(lks_distributed_store_create(&s->store, s->group, s->m.loss, NULL));
    RANK_OK(lks_program_create(&s->program, s->store,
                               &(lks_program_options){.batch = 2, .is_training = 1, .loss = s->m.loss}));
    fill(&r, &s->x, s->labels);
    RANK_OK(lks_program_set_input(s->program, s->m.x, s->x.f32));
    RANK_OK(lks_program_set_input(s->program, s->m.label, s->labels));
    lks_program_synchronise(s->program, s->statistics);
    return 0;
}

static void tear_down(sharers *s) {
    lks_program_destroy(s->program);
    lks_store_destroy(s->store);
    destroy(&s->m);
    lks_group_destroy(s->statistics);
    lks_group_destroy(s->group);
}

static int run_without_ranks(void *argument) {
    (void)argument;
    static sharers s;
    RANK_CHECK(set_up(&s) == 0);
    lks_program_destroy(s.program);
    RANK_OK(lks_program_create(&s.program, s.store,
                               &(lks_program_options){.batch = 2, .is_training = 1, .loss = s.m.loss}));
    RANK_CHECK(lks_program_forward(s.program) == LKS_ERR_STATE);
    RANK_CHECK(strstr(lks_error_text(), "lks_program_synchronise") != NULL);
    tear_down(&s);
    return 0;
}

static void a_program_that_knows_no_ranks_says_so(void **state) {
    (void)state;
    run_ranks(1, run_without_ranks, NULL);
}

/* Rank 1 has no data in its second pass while the others already wait for its sums. */
static int fail_alone(void *argument) {
    (void)argument;
    static _Thread_local sharers own;
    sharers *s = &own;
    RANK_CHECK(set_up(s) == 0);
    int rank = lks_group_rank(s->group);
    RANK_OK(lks_program_forward(s->program));
    RANK_OK(lks_program_backward(s->program, 2));
    if (rank == 1) RANK_OK(lks_program_set_input(s->program, s->m.label, NULL));
    lks_status status = lks_program_forward(s->program);
    RANK_CHECK(status == (rank == 1 ? LKS_ERR_STATE : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(), "'label' has no data") != NULL);
    tear_down(s);
    return 0;
}

static void of_what_one_rank_fails_the_others_hear(void **state) {
    (void)state;
    run_ranks(3, fail_alone, NULL);
}

/* Rank 1 exits after the first pass without leaving the group. */
static int die_alone(int rank, int size, void *argument) {
    (void)size, (void)argument;
    static sharers s;
    RANK_CHECK(set_up(&s) == 0);
    RANK_OK(lks_program_forward(s.program));
    if (rank == 1) _exit(0);
    lks_status status = lks_program_backward(s.program, 2);
    if (status == LKS_OK) status = lks_program_forward(s.program);
    RANK_CHECK(status == LKS_ERR_PEER);
    RANK_CHECK(strstr(lks_error_text(), "rank 1") != NULL);
    tear_down(&s);
    return 0;
}

static void a_rank_that_dies_in_a_pass_is_named(void **state) {
    (void)state;
    pid_t pids[3];
    set_master_environment();
    for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, die_alone, NULL);
    await_processes(pids, 3, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_dies_in_a_pass_is_named), /* must be first: it forks, so no thread may exist yet */
        cmocka_unit_test(any_split_computes_what_one_rank_does),
        cmocka_unit_test(any_split_computes_what_one_rank_does_in_f32),
        cmocka_unit_test(the_variance_of_large_inputs_is_not_lost),
        cmocka_unit_test(attached_programs_of_any_split_give_the_same_bits),
        cmocka_unit_test(a_program_that_knows_no_ranks_says_so),
        cmocka_unit_test(of_what_one_rank_fails_the_others_hear),
    };
    return run_group(tests);
}
