/* Regression: a network learns a real function from samples of it, here the motion of a damped oscillator,
 * x(t) = e^(-d t) cos(w t), from (t, d, w). The same method replaces a simulation by a model learned from its results.
 *
 *     lockstep run -n 2 build/examples/regression
 *
 * The data set has targets instead of labels, and the trainer's `labels` are an f32 input. */
#include <lockstep/lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 20000, N_TEST = 2000, BATCH = 64, N_EPOCHS = 10 };

/* Stands for a simulation: inputs (COUNT, 3), each from -1 to 1, and results (COUNT, 1). */
static void simulate(float *inputs, float *results) {
    for (int i = 0; i < COUNT; i++) {
        float *input = inputs + 3 * i;
        for (int k = 0; k < 3; k++) { /* evenly spread: the R3 sequence of Roberts, 2018 */
            double u = (i + 1) * pow(1.2207440846, -(k + 1));
            input[k] = (float)(2 * (u - floor(u)) - 1);
        }
        double t = 2.5 * (input[0] + 1), d = 0.5 + 0.4 * input[1], w = 2 + input[2];
        results[i] = (float)(exp(-d * t) * cos(w * t));
    }
}

static int regression(int argc, char **argv) {
    if (argc > 1) return fprintf(stderr, "regression: unknown argument '%s'; it takes none\n", argv[1]), 2;
    lks_group *world;
    lks_dataset *data, *train, *test;
    lks_loader *loader;
    lks_trainer *trainer;
    int64_t local_batch;
    LKS_CHECK(lks_init(&world, NULL));
    float *inputs = malloc((3 + 1) * COUNT * sizeof *inputs);
    if (inputs == NULL) return fprintf(stderr, "regression: out of memory\n"), 1;
    float *results = inputs + 3 * COUNT;
    simulate(inputs, results);
    LKS_CHECK(lks_dataset_create(
        &data, &(lks_dataset_options){
                   .features = inputs, .targets = results, .count = COUNT, .n_features = 3, .n_targets = 1}));
    free(inputs);
    LKS_CHECK(lks_dataset_slice(&train, data, 0, COUNT - N_TEST));
    LKS_CHECK(lks_dataset_slice(&test, data, COUNT - N_TEST, COUNT));
    LKS_CHECK(lks_partition_dataset(world, train, BATCH, 1, &loader, &local_batch));

    lks_graph *g = lks_graph_create(lks_device_default(world));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 3});
    lks_node *y = lks_input(g, "y", LKS_F32, 2, (int64_t[]){LKS_BATCH, 1});
    lks_node *h = lks_tanh(lks_linear(lks_tanh(lks_linear(x, 64, "fc1")), 64, "fc2"));
    int64_t n_steps = N_EPOCHS * lks_loader_steps(loader);
    LKS_CHECK(lks_trainer_create(
        &trainer, lks_mse(lks_linear(h, 1, "fc3"), y),
        &(lks_trainer_options){
            .group = world,
            .features = x,
            .labels = y,
            .optimizer = lks_adam(&(lks_adam_options){.lr = 1e-2, .schedule = lks_schedule_cosine(0, n_steps)})}));
    lks_batch batch;
    lks_metrics metrics;
    for (int epoch = 1; epoch <= N_EPOCHS; epoch++) {
        while (lks_loader_next(loader, &batch)) LKS_CHECK(lks_trainer_step(trainer, &batch, NULL));
        LKS_CHECK(lks_trainer_evaluate(trainer, test, &metrics));
        if (lks_group_rank(world) == 0) printf("epoch %d: off by %.4f (rms)\n", epoch, sqrt(metrics.loss));
    }

    lks_trainer_destroy(trainer);
    lks_graph_destroy(g);
    lks_loader_destroy(loader);
    lks_dataset_destroy(test);
    lks_dataset_destroy(train);
    lks_dataset_destroy(data);
    lks_group_destroy(world);
    return 0;
}

int main(int argc, char **argv) { return lks_main(argc, argv, regression); }
