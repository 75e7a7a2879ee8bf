/* labels: slow */
/* Training on the emulated GPU: the losses of the reference device, recorded steps included. */
#include "cuda/cuda_test.h"

#include <lockstep/data.h>
#include <lockstep/train.h>

#include <math.h>
#include <string.h>

enum { N_STEPS = 6, BATCH = 12, N_CLASSES = 5, N_FC1 = 33 };

typedef struct model {
    lks_node *features, *labels, *logits, *loss;
} model;

typedef model (*build_model)(lks_graph *graph);

static model build_perceptron(lks_graph *graph) {
    model m = {.features = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 20}),
               .labels = lks_input(graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH})};
    lks_node *h = lks_relu(lks_linear(m.features, N_FC1, "fc1"));
    m.logits = lks_linear(lks_dropout(lks_tanh(lks_linear(h, 17, "fc2")), 0.2), N_CLASSES, "fc3");
    m.loss = lks_cross_entropy(m.logits, m.labels);
    return m;
}

static model build_regression(lks_graph *graph) {
    model m = {.features = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 20}),
               .labels = lks_input(graph, "y", LKS_F32, 2, (int64_t[]){LKS_BATCH, 1})};
    m.loss = lks_mse(lks_linear(lks_exp(lks_tanh(lks_linear(m.features, N_FC1, "fc1"))), 1, "fc2"), m.labels);
    return m;
}

typedef struct run_result {
    double losses[N_STEPS], norms[N_STEPS], n_correct[N_STEPS];
    float bias[N_FC1], weight[N_FC1 * 20]; /* of the first layer, at the end */
    char sha256[65];
} run_result;

typedef struct run_plan {
    build_model build;
    lks_optimizer optimizer;
    int64_t n_features, accumulate;
    int short_step; /* a step with a smaller batch; -1: none */
} run_plan;

static void fill_batch(const run_plan *plan, int step, float *features, int32_t *labels) {
    for (int i = 0; i < BATCH; i++) {
        labels[i] = (int32_t)lksi_random_below(7, (uint64_t)step, (uint64_t)i, N_CLASSES);
        for (int64_t j = 0; j < plan->n_features; j++)
            features[i * plan->n_features + j] =
                (float)lksi_random_normal(8, (uint64_t)step, (uint64_t)(i * plan->n_features + j)) +
                (j % N_CLASSES == labels[i] ? 1.0f : 0.0f);
    }
}

static void train(const run_plan *plan, const char *device_name, run_result *result) {
    lks_group *world;
    lks_device *device;
    lks_trainer *trainer;
    float *features = lksi_alloc_array((size_t)(BATCH * plan->n_features), sizeof *features);
    int32_t labels[BATCH];
    float targets[BATCH];
    assert_ok(lks_init(&world, NULL));
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = device_name}));
    lks_graph *graph = lks_graph_create(device);
    model m = plan->build(graph);
    assert_ok(lks_trainer_create(&trainer, m.loss,
                                 &(lks_trainer_options){.group = world,
                                                        .features = m.features,
                                                        .labels = m.labels,
                                                        .logits = m.logits,
                                                        .optimizer = plan->optimizer,
                                                        .accumulate = plan->accumulate,
                                                        .seed = 3}));
    for (int step = 0; step < N_STEPS; step++) {
        int64_t count = step == plan->short_step ? BATCH / 2 : BATCH;
        lks_metrics metrics;
        fill_batch(plan, step, features, labels);
        for (int i = 0; i < BATCH; i++) targets[i] = (float)labels[i] - 1.5f;
        bool has_targets = lks_node_type(m.labels) == LKS_F32;
        assert_ok(lks_trainer_step(trainer,
                                   &(lks_batch){.features = features,
                                                .labels = has_targets ? NULL : labels,
                                                .targets = has_targets ? targets : NULL,
                                                .n_targets = has_targets,
                                                .count = count,
                                                .n_labels = count,
                                                .global_count = count,
                                                .global_n_labels = count},
                                   &metrics));
        result->losses[step] = metrics.loss;
        result->norms[step] = metrics.grad_norm;
        result->n_correct[step] = metrics.accuracy;
    }
    const lks_store *store = lks_trainer_store(trainer);
    assert_ok(lks_store_sha256(store, result->sha256));
    assert_ok(lks_store_read(store, lks_store_find(store, "fc1.bias"), result->bias));
    assert_ok(lks_store_read(store, lks_store_find(store, "fc1.weight"), result->weight));
    lks_trainer_destroy(trainer);
    lks_graph_destroy(graph);
    lks_device_destroy(device);
    lks_group_destroy(world);
    lksi_free(features);
}

static void check_plan(const run_plan *plan) {
    run_result reference, cuda, again;
    train(plan, "reference", &reference);
    train(plan, "cuda:0", &cuda);
    for (int step = 0; step < N_STEPS; step++) {
        if (!(fabs(reference.losses[step] - cuda.losses[step]) <= gpu_tolerance(1e-4) * fabs(reference.losses[step])))
            fail_msg("step %d: loss %.9g, on the reference device %.9g", step, cuda.losses[step],
                     reference.losses[step]);
        assert_true(fabs(reference.norms[step] - cuda.norms[step]) <= 1e-3 * fabs(reference.norms[step]));
        assert_true(fabs(reference.n_correct[step] - cuda.n_correct[step]) < 1e-9);
    }
    train(plan, "cuda:0", &again);
    assert_string_equal(cuda.sha256, again.sha256);
}

static void a_perceptron_has_the_losses_of_the_reference(void **state) {
    (void)state;
    check_plan(&(run_plan){.build = build_perceptron,
                           .optimizer = lks_adam(&(lks_adam_options){.lr = 1e-2}),
                           .n_features = 20,
                           .short_step = -1});
    check_plan(&(run_plan){
        .build = build_perceptron,
        .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3, .clip_norm = 0.5}),
        .n_features = 20,
        .short_step = 3});
}

/* Adam's epsilon is large, so that rounding of a gradient near 0 does not become a step of size lr. */
static void matrices_alone_decay_as_on_the_reference(void **state) {
    (void)state;
    const lks_optimizer rules[] = {
        lks_sgd(&(lks_sgd_options){.lr = 0.1, .weight_decay = 0.5, .decay_matrices_only = 1}),
        lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5, .decay_matrices_only = 1}),
        lks_adam(&(lks_adam_options){.lr = 1e-2, .epsilon = 1e-2, .weight_decay = 0.5, .decay_matrices_only = 1}),
        lks_adamw(&(lks_adamw_options){.lr = 1e-2, .epsilon = 1e-2, .weight_decay = 5, .decay_matrices_only = 1})};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        run_plan plan = {.build = build_perceptron, .optimizer = rules[i], .n_features = 20, .short_step = -1};
        run_result reference, cuda, all;
        train(&plan, "reference", &reference);
        train(&plan, "cuda:0", &cuda);
        plan.optimizer.decays_matrices_only = 0;
        train(&plan, "cuda:0", &all);
        double most = 0;
        for (int j = 0; j < N_FC1; j++) {
            assert_true(fabs((double)(cuda.bias[j] - reference.bias[j])) <= gpu_tolerance(1e-5));
            most = fmax(most, fabs((double)(all.bias[j] - reference.bias[j])));
        }
        assert_true(most > 1e-2);
        for (int j = 0; j < N_FC1 * 20; j++)
            assert_true(fabs((double)(cuda.weight[j] - reference.weight[j])) <= gpu_tolerance(1e-5));
    }
}

static void pieces_of_a_step_are_added_up(void **state) {
    (void)state;
    check_plan(&(run_plan){.build = build_perceptron,
                           .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                           .n_features = 20,
                           .accumulate = 3,
                           .short_step = -1});
}

static void targets_are_followed_as_on_the_reference(void **state) {
    (void)state;
    for (int64_t accumulate = 1; accumulate <= 3; accumulate += 2)
        check_plan(&(run_plan){.build = build_regression,
                               .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.02}),
                               .n_features = 20,
                               .accumulate = accumulate,
                               .short_step = 3});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_perceptron_has_the_losses_of_the_reference),
                                       cmocka_unit_test(matrices_alone_decay_as_on_the_reference),
                                       cmocka_unit_test(pieces_of_a_step_are_added_up),
                                       cmocka_unit_test(targets_are_followed_as_on_the_reference)};
    return run_cuda_tests("cuda trainer", tests);
}
