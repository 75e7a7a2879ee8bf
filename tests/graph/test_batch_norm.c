/* labels: no-tsan */
/* Batch norm: gradients, both devices, running statistics, and their synchronisation among ranks. */
#include "check_layer.h"

#include "ranks.h"

#include <lockstep/parallel.h>
#include <string.h>

static lks_node *build_norm(lks_node *x, const void *argument) {
    lks_node *y = lks_batch_norm(x, "bn");
    return argument != NULL ? lks_relu(y) : y;
}

static lks_node *build_synchronised(lks_node *x, const void *argument) {
    lks_node *y = lks_batch_norm_with(x, "bn", &(lks_batch_norm_options){.is_synchronised = 1});
    return argument != NULL ? lks_relu(y) : y;
}

/* As in a residual network: blocked layouts, batch norm with ReLU, a sum. There is no bias before batch norm: its
 * gradient is 0, and rounding errors cannot be compared. */
static lks_node *build_block(lks_node *x, const void *argument) {
    (void)argument;
    lks_conv2d_options same = {.window = {.padding = {1, 1}}, .no_bias = 1};
    lks_node *a = lks_relu(lks_batch_norm(lks_conv2d(x, 12, 3, "a", &same), "bn_a"));
    lks_node *b = lks_relu(lks_batch_norm(lks_conv2d(a, 12, 3, "b", &same), "bn_b"));
    return lks_conv2d(lks_add(b, a), 3, 1, "c", NULL);
}

static const int relu = 1;
static const layer norms[] = {
    {"features", 2, {6, 5}, build_norm, NULL},
    {"many features", 2, {4, 43}, build_norm, &relu},
    {"signals", 3, {3, 9, 5}, build_norm, NULL},
    {"images, odd channels", 4, {3, 5, 3, 4}, build_norm, NULL},
    {"images, relu", 4, {3, 16, 4, 4}, build_norm, &relu},
    {"images, 20 channels", 4, {2, 20, 3, 3}, build_norm, &relu},
    {"volumes", 5, {2, 3, 2, 2, 3}, build_norm, NULL},
    {"large images", 4, {2, 8, 11, 13}, build_norm, &relu},
    {"block", 4, {3, 5, 4, 4}, build_block, NULL},
    {"features, synchronised", 2, {6, 5}, build_synchronised, NULL},
    {"many features, synchronised", 2, {4, 43}, build_synchronised, &relu},
    {"images, synchronised", 4, {3, 16, 4, 4}, build_synchronised, &relu},
    {"images, 20 channels, synchronised", 4, {2, 20, 3, 3}, build_synchronised, NULL},
    {"volumes, synchronised", 5, {2, 3, 2, 2, 3}, build_synchronised, &relu},
};
enum { N_NORMS = sizeof norms / sizeof norms[0] };

static void batch_norm_has_the_gradients_of_finite_differences(void **state) {
    (void)state;
    for (int i = 0; i < N_NORMS; i++) layer_check_differences(&norms[i]);
}

/* The gradient is a difference of sums that nearly cancel. The tolerance is 1e-4 of its largest element. */
static void batch_norm_agrees_across_devices(void **state) {
    (void)state;
    for (int i = 0; i < N_NORMS; i++) layer_check_devices(&norms[i], 1e-4f);
}

/* Holds for constants far from 0. 61 samples are no multiple of the loops' chunks. */
static void a_constant_channel_becomes_the_bias(void **state) {
    (void)state;
    enum { N = 61 };
    static const float values[3] = {2024.3f, -10000.1f, 1e-6f};
    for (int i = 0; i < 2; i++) {
        lks_device *device;
        lks_store *store;
        lks_program *program;
        float x[N][3];
        for (int k = 0; k < N; k++) memcpy(x[k], values, sizeof values);
        assert_ok(lks_device_create(&device, &(lks_device_options){.name = i == 0 ? "cpu" : "reference"}));
        lks_graph *g = lks_graph_create(device);
        lks_node *input = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 3});
        lks_node *y = lks_batch_norm(input, "bn"), *loss = lks_mean(y, 0, NULL, 0);
        assert_ok(lks_store_create(&store, loss, NULL));
        assert_ok(lks_program_create(
            &program, store,
            &(lks_program_options){.batch = N, .is_training = 1, .loss = loss, .outputs = &y, .n_outputs = 1}));
        assert_ok(lks_program_set_input(program, input, x));
        assert_ok(lks_program_forward(program));
        for (int k = 0; k < 3 * N; k++) assert_true(((const float *)lks_program_output(program, y))[k] == 0);
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(g);
        lks_device_destroy(device);
    }
}

/* --- running statistics --- */

/* A model whose running statistics can be followed: x (N,2,2) -> batch norm -> linear -> loss. */
typedef struct model {
    lks_graph *graph;
    lks_node *x, *label, *y, *loss;
} model;

static model make_model(lks_device *device, int is_synchronised) {
    model m = {.graph = lks_graph_create(device)};
    m.x = lks_input(m.graph, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, 2, 2});
    m.label = lks_input(m.graph, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    m.y = lks_batch_norm_with(m.x, "bn", &(lks_batch_norm_options){.is_synchronised = is_synchronised});
    m.loss = lks_cross_entropy(lks_linear(lks_reshape(m.y, 2, (int64_t[]){LKS_BATCH, 4}), 3, "fc"), m.label);
    return m;
}

static const float samples[4][4] = {{1, 2, -3, 4}, {2, 4, 0, 8}, {0, -1, 5, 6}, {3, 1, 2, 2}};
static const int32_t labels[4] = {0, 2, 1, 1};

/* The result of torch.nn.BatchNorm1d(2) after one step with momentum 0.1. One rank: means 1.5 and 3, unbiased variances
 * 18 / 7 and 86 / 7. Two ranks: the same means, and as variance the mean of the ranks' own unbiased variances, 2.25 and
 * 81.5 / 6. Synchronised, any number of ranks has the values of one rank. */
static const double expected_mean[2] = {0.15, 0.3};
static const double expected_variance[2][2] = {{0.9 + 1.8 / 7, 0.9 + 8.6 / 7}, {0.9 + 0.225, 0.9 + 8.15 / 6}};

typedef struct training {
    const char *device;
    int is_synchronised;
    int is_weighed;             /* a loss is the mean over a number other than that of the samples */
    float mean[2], variance[2]; /* rank 0's, at the end */
    char hex[4][65];
} training;

static int read_running(const lks_store *store, training *t) {
    int mean = lks_store_find(store, "bn.running_mean"), variance = lks_store_find(store, "bn.running_var");
    RANK_CHECK(mean >= lks_store_n_parameters(store) && variance >= lks_store_n_parameters(store));
    RANK_OK(lks_store_read(store, mean, t->mean));
    RANK_OK(lks_store_read(store, variance, t->variance));
    return 0;
}

/* Each rank has another number of loss terms. */
static lks_step_sums weigh(lks_program *program, const training *t, int rank, int count) {
    if (!t->is_weighed) return (lks_step_sums){.n_samples = count};
    lks_program_set_buffer_weight(program, count);
    return (lks_step_sums){.n_samples = 1 + 4 * rank, .buffer_weight = count};
}

static int step_once(lks_group *group, const model *m, lks_store *store, const training *t) {
    int count = 4 / lks_group_size(group), begin = count * lks_group_rank(group);
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_distributed_optimizer *optimizer;
    lks_program *program;
    lks_group *statistics;
    RANK_OK(lks_group_split(group, 0, lks_group_rank(group), &statistics));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    RANK_OK(
        lks_program_create(&program, store, &(lks_program_options){.batch = count, .is_training = 1, .loss = m->loss}));
    lks_program_synchronise(program, statistics);
    RANK_OK(lks_program_set_input(program, m->x, samples[begin]));
    RANK_OK(lks_program_set_input(program, m->label, labels + begin));
    RANK_OK(lks_program_forward(program));
    lks_step_sums mine = weigh(program, t, lks_group_rank(group), count), all;
    RANK_OK(lks_program_backward(program, mine.n_samples));
    RANK_OK(lks_distributed_optimizer_step(optimizer, &mine, &all));
    RANK_CHECK(all.buffer_weight == 4);
    lks_program_destroy(program);
    lks_distributed_optimizer_destroy(optimizer);
    lks_group_destroy(statistics);
    return 0;
}

static int train(void *argument) {
    training *t = argument;
    lks_group *group;
    lks_device *device;
    lks_store *store;
    RANK_OK(lks_init(&group, NULL));
    RANK_OK(lks_device_create(&device, &(lks_device_options){.name = t->device}));
    model m = make_model(device, t->is_synchronised);
    RANK_OK(lks_distributed_store_create(&store, group, m.loss, &(lks_distributed_options){.seed = 3}));
    RANK_CHECK(step_once(group, &m, store, t) == 0);
    RANK_OK(lks_check_replicas(group, store));
    RANK_OK(lks_store_sha256(store, t->hex[lks_group_rank(group)]));
    if (lks_group_rank(group) == 0) RANK_CHECK(read_running(store, t) == 0);
    RANK_OK(lks_barrier(group, NULL));
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_device_destroy(device);
    lks_group_destroy(group);
    return 0;
}

static void running_statistics_are_those_of_torch_on_one_rank_and_on_two(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++)
        for (int i = 0; i < 4; i++) {
            training t = {.device = i % 2 == 0 ? "reference" : "cpu", .is_weighed = i / 2};
            run_ranks(n_ranks, train, &t);
            for (int c = 0; c < 2; c++) {
                assert_float_equal(t.mean[c], expected_mean[c], 1e-6);
                assert_float_equal(t.variance[c], expected_variance[n_ranks - 1][c], 1e-6);
            }
            if (n_ranks == 2) assert_string_equal(t.hex[0], t.hex[1]);
        }
}

static void synchronised_running_statistics_are_those_of_torch_on_any_number_of_ranks(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
        for (int is_reference = 0; is_reference < 2; is_reference++) {
            training t = {.device = is_reference ? "reference" : "cpu", .is_synchronised = 1};
            run_ranks(n_ranks, train, &t);
            for (int c = 0; c < 2; c++) {
                assert_float_equal(t.mean[c], expected_mean[c], 1e-6);
                assert_float_equal(t.variance[c], expected_variance[0][c], 1e-6);
            }
            for (int rank = 1; rank < n_ranks; rank++) assert_string_equal(t.hex[rank], t.hex[0]);
        }
}

/* --- evaluation --- */

static void evaluate(const char *device_name, int is_synchronised) {
    lks_device *device;
    lks_store *store;
    lks_program *program;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = device_name}));
    model m = make_model(device, is_synchronised);
    assert_ok(lks_store_create(&store, m.loss, NULL));
    const float mean[2] = {0.5f, -1}, variance[2] = {4, 0.25f}, weight[2] = {2, 3}, bias[2] = {1, -2};
    assert_ok(lks_store_write(store, lks_store_find(store, "bn.running_mean"), mean));
    assert_ok(lks_store_write(store, lks_store_find(store, "bn.running_var"), variance));
    assert_ok(lks_store_write(store, lks_store_find(store, "bn.weight"), weight));
    assert_ok(lks_store_write(store, lks_store_find(store, "bn.bias"), bias));
    assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 4, .outputs = &m.y, .n_outputs = 1}));
    assert_ok(lks_program_set_input(program, m.x, samples));
    assert_ok(lks_program_forward(program));
    const float *y = lks_program_output(program, m.y);
    for (int i = 0; i < 16; i++) {
        int c = i / 2 % 2;
        double expected = ((double)samples[i / 4][i % 4] - mean[c]) / sqrt(variance[c] + 1e-5) * weight[c] + bias[c];
        assert_float_equal(y[i], expected, 1e-5);
    }
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_device_destroy(device);
}

static void evaluation_goes_by_the_running_statistics(void **state) {
    (void)state;
    evaluate("cpu", 0);
    evaluate("cpu", 1);
    evaluate("reference", 0);
    evaluate("reference", 1);
}

/* Computes the statistics of one pass over x (N,2,2), times N: the contribution to the running statistics. `factor` is
 * N or -N. */
static void take_statistics(const char *name, int is_synchronised, int is_detached, double factor,
                            float statistics[4]) {
    lks_device *device;
    lks_group *group;
    lks_store *store;
    lks_program *program;
    assert_ok(lks_init(&group, NULL));
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = name}));
    model m = {.graph = lks_graph_create(device)};
    m.x = lks_input(m.graph, "x", LKS_F32, 3, (int64_t[]){LKS_BATCH, 2, 2});
    m.label = lks_input(m.graph, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    m.y = lks_batch_norm_with(m.x, "bn", &(lks_batch_norm_options){.is_synchronised = is_synchronised});
    if (is_detached) m.y = lks_detach(m.y);
    m.loss = lks_cross_entropy(lks_linear(lks_reshape(m.y, 2, (int64_t[]){LKS_BATCH, 4}), 3, "fc"), m.label);
    assert_ok(lks_store_create(&store, m.loss, NULL));
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = 4, .is_training = 1, .loss = m.loss}));
    lks_program_synchronise(program, group);
    assert_ok(lks_program_set_input(program, m.x, samples));
    assert_ok(lks_program_set_input(program, m.label, labels));
    assert_ok(lks_program_forward(program));
    assert_ok(lks_program_backward(program, factor));
    assert_ok(lks_store_read_gradient(store, lks_store_find(store, "bn.running_mean"), statistics));
    assert_ok(lks_store_read_gradient(store, lks_store_find(store, "bn.running_var"), statistics + 2));
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_device_destroy(device);
    lks_group_destroy(group);
}

static void check_statistics(double factor) {
    static const float expected[4] = {6, 12, 4 * 18.0f / 7, 4 * 86.0f / 7};
    for (int i = 0; i < 8; i++) {
        float statistics[4];
        take_statistics(i & 1 ? "cpu" : "reference", i >> 1 & 1, i >> 2, factor, statistics);
        for (int k = 0; k < 4; k++) assert_float_equal(statistics[k], expected[k], 1e-4);
    }
}

static void statistics_move_though_no_gradient_comes_back(void **state) {
    (void)state;
    check_statistics(4);
}

static void statistics_do_not_turn_with_the_loss(void **state) {
    (void)state;
    check_statistics(-4);
}

/* As in torch with affine=False, built by hand. */
static void buffers_that_scale_a_batch_norm_are_constants(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        lks_device *device;
        lks_store *store;
        lks_program *program;
        float statistics[2];
        const int64_t c = 2;
        assert_ok(lks_device_create(&device, &(lks_device_options){.name = i == 0 ? "cpu" : "reference"}));
        lks_graph *g = lks_graph_create(device);
        lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4});
        lks_node *h = lks_linear(x, 2, "fc");
        h = lks_batch_norm_function(h, lks_buffer(g, "w", 1, &c, 1, 0.1), lks_buffer(g, "b", 1, &c, 0.5, 0.1),
                                    lks_buffer(g, "mean", 1, &c, 0, 0.1), lks_buffer(g, "var", 1, &c, 1, 0.1), 1e-5);
        lks_node *loss = lks_mean(lks_mul(h, h), 0, NULL, 0);
        assert_ok(lks_store_create(&store, loss, NULL));
        assert_ok(
            lks_program_create(&program, store, &(lks_program_options){.batch = 4, .is_training = 1, .loss = loss}));
        assert_ok(lks_program_set_input(program, x, samples));
        assert_ok(lks_program_forward(program));
        assert_ok(lks_program_backward(program, 4));
        assert_ok(lks_store_read_gradient(store, lks_store_find(store, "w"), statistics));
        assert_true(statistics[0] == 4 && statistics[1] == 4);
        assert_ok(lks_store_read_gradient(store, lks_store_find(store, "b"), statistics));
        assert_true(statistics[0] == 2 && statistics[1] == 2);
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(g);
        lks_device_destroy(device);
    }
}

/* --- errors --- */

static void a_running_statistic_belongs_to_one_batch_norm(void **state) {
    (void)state;
    lks_graph *g = lks_graph_create(lks_device_default(NULL));
    lks_store *store;
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 3});
    lks_node *v[4];
    for (int i = 0; i < 4; i++) {
        char name[2] = {(char)('a' + i), 0};
        int64_t c = 3;
        v[i] = i < 2 ? lks_parameter(g, name, 1, &c, (lks_initializer){LKS_INITIAL_CONSTANT, 1})
                     : lks_buffer(g, name, 1, &c, 0, 0.1);
    }
    lks_node *y = lks_batch_norm_function(x, v[0], v[1], v[2], v[3], 1e-5);
    y = lks_batch_norm_function(y, v[0], v[1], v[2], v[3], 1e-5);
    lks_node *loss = lks_cross_entropy(y, lks_input(g, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH}));
    assert_int_equal(lks_store_create(&store, loss, NULL), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "another node uses its buffer 'c'"));
    lks_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norm_has_the_gradients_of_finite_differences),
        cmocka_unit_test(batch_norm_agrees_across_devices),
        cmocka_unit_test(a_constant_channel_becomes_the_bias),
        cmocka_unit_test(running_statistics_are_those_of_torch_on_one_rank_and_on_two),
        cmocka_unit_test(synchronised_running_statistics_are_those_of_torch_on_any_number_of_ranks),
        cmocka_unit_test(evaluation_goes_by_the_running_statistics),
        cmocka_unit_test(statistics_move_though_no_gradient_comes_back),
        cmocka_unit_test(statistics_do_not_turn_with_the_loss),
        cmocka_unit_test(buffers_that_scale_a_batch_norm_are_constants),
        cmocka_unit_test(a_running_statistic_belongs_to_one_batch_norm),
    };
    return run_group(tests);
}
