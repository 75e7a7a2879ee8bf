/* labels: slow */
/* States carried from step to step on the emulated GPU: they are read in place, from any of their rows, and recorded
 * steps remember their addresses. */
#include "cuda/gpu_ranks.h"
#include "ranks.h"
#include "train/trainer_internal.h"

#include <lockstep/train.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_STEPS = 6, MOST = 8, T = 3, K = 4, M = 6, N_CLASSES = 5 };

typedef struct model {
    lks_node *features, *labels, *logits, *loss;
    lks_state states[2];
    int n_states;
} model;

typedef model (*build_model)(lks_graph *graph);

static lks_node *state_input(lks_graph *graph, const char *name) {
    return lks_input(graph, name, LKS_F32, 2, (int64_t[]){LKS_BATCH, M});
}

static model begin_model(lks_graph *graph) {
    return (model){.features = lks_input(graph, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, T, K}),
                   .labels = lks_input(graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH})};
}

static model build_lstm(lks_graph *graph) {
    model m = begin_model(graph);
    lks_node *h0 = state_input(graph, "h0"), *c0 = state_input(graph, "c0");
    lks_recurrent_result r =
        lks_recurrent_layers(m.features, "lstm", &(lks_recurrent_options){.hidden = M, .h0 = {h0}, .c0 = {c0}});
    m.states[0] = (lks_state){h0, r.h[0]}, m.states[1] = (lks_state){c0, r.c[0]}, m.n_states = 2;
    m.logits = lks_linear(lks_reshape(r.y, 2, (int64_t[]){LKS_BATCH, T * M}), N_CLASSES, "decoder");
    m.loss = lks_cross_entropy(m.logits, m.labels);
    return m;
}

/* The state is an operand of a product itself. */
static model build_cell(lks_graph *graph) {
    model m = begin_model(graph);
    lks_node *before = state_input(graph, "h0"), *x = lks_reshape(m.features, 2, (int64_t[]){LKS_BATCH, T * K});
    lks_node *after = lks_tanh(lks_add(lks_linear(x, M, "in"), lks_linear(before, M, "on")));
    m.states[0] = (lks_state){before, after}, m.n_states = 1;
    m.logits = lks_linear(after, N_CLASSES, "decoder");
    m.loss = lks_cross_entropy(m.logits, m.labels);
    return m;
}

/* The state is the sequence that a layer reads. */
static model build_fed_back(lks_graph *graph) {
    model m = begin_model(graph);
    lks_node *before = state_input(graph, "before"), *x = lks_reshape(m.features, 2, (int64_t[]){LKS_BATCH, T * K});
    lks_recurrent_result r = lks_recurrent_layers(lks_reshape(before, 3, (int64_t[]){LKS_BATCH, 1, M}), "lstm",
                                                  &(lks_recurrent_options){.hidden = M});
    lks_node *after = lks_tanh(lks_add(lks_linear(x, M, "in"), lks_reshape(r.y, 2, (int64_t[]){LKS_BATCH, M})));
    m.states[0] = (lks_state){before, after}, m.n_states = 1;
    m.logits = lks_linear(after, N_CLASSES, "decoder");
    m.loss = lks_cross_entropy(m.logits, m.labels);
    return m;
}

/* The state is an image of one pixel, which is not reordered for cuDNN. */
static model build_convolved(lks_graph *graph) {
    model m = begin_model(graph);
    lks_node *before = state_input(graph, "before"), *x = lks_reshape(m.features, 2, (int64_t[]){LKS_BATCH, T * K});
    lks_node *y = lks_conv2d(lks_reshape(before, 4, (int64_t[]){LKS_BATCH, M, 1, 1}), 3, 2, "conv",
                             &(lks_conv2d_options){.window = {.padding = {1, 1}}});
    lks_node *seen = lks_linear(lks_reshape(y, 2, (int64_t[]){LKS_BATCH, 3 * 2 * 2}), M, "on");
    lks_node *after = lks_tanh(lks_add(lks_linear(x, M, "in"), seen));
    m.states[0] = (lks_state){before, after}, m.n_states = 1;
    m.logits = lks_linear(after, N_CLASSES, "decoder");
    m.loss = lks_cross_entropy(m.logits, m.labels);
    return m;
}

typedef struct plan {
    build_model build;
    int64_t accumulate;
    int runs_ahead;
    int64_t counts[N_STEPS];
} plan;

static lks_batch make_batch(int step, int64_t count, float *features, int32_t *labels) {
    for (int64_t i = 0; i < count; i++) {
        labels[i] = (int32_t)lksi_random_below(7, (uint64_t)step, (uint64_t)i, N_CLASSES);
        for (int64_t j = 0; j < T * K; j++)
            features[i * T * K + j] = (float)lksi_random_normal(8, (uint64_t)step, (uint64_t)(i * T * K + j));
    }
    return (lks_batch){.features = features,
                       .labels = labels,
                       .count = count,
                       .n_labels = count,
                       .global_count = count,
                       .global_n_labels = count};
}

typedef struct set_up {
    lks_group *world;
    lks_device *device;
    lks_graph *graph;
    lks_trainer *trainer;
} set_up;

static set_up create(const plan *p, const char *device_name, int is_ahead) {
    set_up s;
    assert_ok(lks_init(&s.world, NULL));
    assert_ok(lks_device_create(&s.device, &(lks_device_options){.name = device_name}));
    s.graph = lks_graph_create(s.device);
    model m = p->build(s.graph);
    assert_ok(lks_trainer_create(&s.trainer, m.loss,
                                 &(lks_trainer_options){.group = s.world,
                                                        .features = m.features,
                                                        .labels = m.labels,
                                                        .logits = m.logits,
                                                        .states = m.states,
                                                        .n_states = m.n_states,
                                                        .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                                                        .accumulate = p->accumulate,
                                                        .runs_ahead = is_ahead,
                                                        .seed = 3}));
    return s;
}

static void destroy(const set_up *s) {
    lks_trainer_destroy(s->trainer);
    lks_graph_destroy(s->graph);
    lks_device_destroy(s->device);
    lks_group_destroy(s->world);
}

static void step(const set_up *s, int number, int64_t count, lks_metrics *metrics) {
    float features[MOST * T * K];
    int32_t labels[MOST];
    lks_batch batch = make_batch(number, count, features, labels);
    assert_ok(lks_trainer_step(s->trainer, &batch, metrics));
}

static void train(const plan *p, const char *device_name, double losses[N_STEPS]) {
    int is_ahead = p->runs_ahead && strcmp(device_name, "reference") != 0; /* metrics come a step later */
    set_up s = create(p, device_name, is_ahead);
    lks_metrics metrics;
    for (int number = 0; number < N_STEPS; number++) {
        if (number > 0 && p->counts[number] != p->counts[number - 1]) lks_trainer_reset_states(s.trainer);
        step(&s, number, p->counts[number], &metrics);
        if (number >= is_ahead) losses[number - is_ahead] = metrics.loss;
    }
    assert_ok(lks_trainer_catch_up(s.trainer, &metrics));
    if (is_ahead) losses[N_STEPS - 1] = metrics.loss;
    destroy(&s);
}

static void check_plan(const plan *p) {
    double expected[N_STEPS], got[N_STEPS];
    train(p, "reference", expected);
    train(p, "cuda:0", got);
    for (int step = 0; step < N_STEPS; step++)
        if (!(fabs(got[step] - expected[step]) <= gpu_tolerance(1e-4) * expected[step]))
            fail_msg("step %d: loss %.9g, on the reference device %.9g", step, got[step], expected[step]);
}

/* Pieces have 3 rows of 24 bytes: the first row of the second piece is not aligned for reads of four floats. */
static void a_state_is_read_from_any_of_its_rows(void **state) {
    (void)state;
    check_plan(&(plan){.build = build_lstm, .accumulate = 2, .counts = {6, 6, 6, 6, 6, 6}});
    check_plan(&(plan){.build = build_cell, .accumulate = 2, .counts = {6, 6, 6, 6, 6, 6}});
    check_plan(&(plan){.build = build_fed_back, .accumulate = 2, .counts = {6, 6, 6, 6, 6, 6}});
    check_plan(&(plan){.build = build_convolved, .accumulate = 2, .counts = {6, 6, 6, 6, 6, 6}});
}

/* States that grow have other addresses. */
static void recorded_steps_follow_states_that_grow(void **state) {
    (void)state;
    check_plan(&(plan){.build = build_lstm, .counts = {4, 4, 8, 4, 4, 8}});
    check_plan(&(plan){.build = build_lstm, .runs_ahead = 1, .counts = {4, 4, 8, 8, 4, 4}});
    check_plan(&(plan){.build = build_cell, .counts = {2, 2, 4, 4, 6, 6}});
}

/* After a load, states have other addresses than in the recorded steps. */
static void recorded_steps_follow_states_that_are_loaded(void **state) {
    (void)state;
    const plan p = {.build = build_lstm, .counts = {4, 4, 4, 4, 4, 4}};
    char path[] = "/tmp/lockstep_cuda_states_XXXXXX";
    lks_position position = {.epoch = 3, .steps_per_epoch = 1, .global_batch = 4};
    lks_metrics expected, got;
    int file = mkstemp(path);
    assert_true(file >= 0 && close(file) == 0);
    set_up s = create(&p, "cuda:0", 0);
    for (int number = 0; number < 3; number++) step(&s, number, 4, NULL);
    assert_ok(lks_trainer_save(s.trainer, path, &position));
    for (int number = 3; number < N_STEPS; number++) step(&s, number, 4, &expected);
    assert_ok(lks_trainer_load(s.trainer, path, &position));
    for (int number = 3; number < N_STEPS; number++) step(&s, number, 4, &got);
    assert_true(got.loss == expected.loss);
    destroy(&s);
    assert_int_equal(unlink(path), 0);
}

/* NCCL requires that an operation is recorded on all ranks or on none. This must also hold if one rank has more samples
 * than before. */
static int count_recordings(void *argument) {
    (void)argument;
    static const int64_t counts[2][N_STEPS] = {{3, 3, 4, 3, 3, 6}, {3, 3, 2, 3, 3, 6}};
    float features[MOST * T * K];
    int32_t labels[MOST];
    lks_group *world;
    lks_device *device;
    lks_trainer *trainer;
    RANK_OK(lks_init(&world, NULL));
    int rank = lks_group_rank(world);
    RANK_OK(
        lks_device_create(&device, &(lks_device_options){.name = is_real_gpu() ? "cuda:0" : "cuda", .group = world}));
    lks_graph *graph = lks_graph_create(device);
    model m = build_cell(graph);
    RANK_OK(lks_trainer_create(&trainer, m.loss,
                               &(lks_trainer_options){.group = world,
                                                      .features = m.features,
                                                      .labels = m.labels,
                                                      .states = m.states,
                                                      .n_states = m.n_states,
                                                      .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                                                      .seed = 3}));
    int64_t most = 0;
    for (int step = 0; step < N_STEPS; step++) {
        lks_batch batch = make_batch(step, counts[rank][step], features, labels);
        batch.global_offset = rank == 0 ? 0 : counts[0][step];
        batch.global_count = batch.global_n_labels = counts[0][step] + counts[1][step];
        if (step > 0 && counts[rank][step] != counts[rank][step - 1]) lks_trainer_reset_states(trainer);
        RANK_OK(lks_trainer_step(trainer, &batch, NULL));
        int64_t n = 0, all[2];
        for (size_t i = 0; i < trainer->n_compiled; i++) n += trainer->compiled[i].recording != NULL;
        RANK_OK(lks_all_gather(world, &n, all, 1, LKS_I64, NULL));
        RANK_CHECK(all[0] == all[1]);
        if (n > most) most = n;
    }
    RANK_CHECK(is_real_gpu() || most > 0);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(graph);
    lks_device_destroy(device);
    lks_group_destroy(world);
    return 0;
}

static void ranks_record_steps_together(void **state) {
    (void)state;
    if (!choose_nccl()) puts("skipped: this build has no NCCL, whose header the emulation needs"), skip();
    run_ranks(2, count_recordings, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_state_is_read_from_any_of_its_rows),
                                       cmocka_unit_test(recorded_steps_follow_states_that_grow),
                                       cmocka_unit_test(recorded_steps_follow_states_that_are_loaded),
                                       cmocka_unit_test(ranks_record_steps_together)};
    return run_cuda_tests("cuda states", tests);
}
