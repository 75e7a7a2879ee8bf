/* An operator of one's own: the Huber loss, which the library does not have, by two functions, as a
 * torch.autograd.Function. It fits a line to samples of which every tenth is far off. The mean squared error follows
 * these outliers; the Huber loss does not.
 *
 *     lockstep run -n 2 build/examples/own_operator
 *
 * Source: Huber, "Robust estimation of a location parameter", 1964. */
#include <lockstep/lockstep.h>
#include <math.h>
#include <stdio.h>

enum { COUNT = 1000, BATCH = 50, N_EPOCHS = 20 };

static const float slope = 3, intercept = 1, delta = 1; /* beyond delta the loss is linear */

/* The mean over the samples of d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), for d = prediction - target.
 */
static lks_status huber_forward(const lks_custom_call *call) {
    const float *prediction = call->inputs[0].data, *target = call->inputs[1].data;
    int64_t count = call->inputs[0].count;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs((double)prediction[i] - (double)target[i]);
        sum += d <= delta ? d * d / 2 : delta * (d - delta / 2);
    }
    *(float *)call->output.data = (float)(sum / (double)count);
    return LKS_OK;
}

/* The chain rule: dprediction = dloss * min(max(d, -delta), delta) / count. The targets need no gradient. */
static lks_status huber_backward(const lks_custom_call *call) {
    const float *prediction = call->inputs[0].data, *target = call->inputs[1].data;
    int64_t count = call->inputs[0].count;
    float factor = *(const float *)call->output_gradient / (float)count, *dprediction = call->gradients[0];
    for (int64_t i = 0; dprediction != NULL && i < count; i++)
        dprediction[i] = factor * fminf(fmaxf(prediction[i] - target[i], -delta), delta);
    return LKS_OK;
}

static lks_node *huber(lks_node *prediction, lks_node *target) {
    return lks_custom(
        (lks_node *[]){prediction, target}, 2,
        &(lks_custom_options){.name = "huber", .n_dims = 0, .forward = huber_forward, .backward = huber_backward});
}

static int fit(lks_group *world, lks_dataset *data, const char *name,
               lks_node *(*loss)(lks_node *prediction, lks_node *target)) {
    lks_loader *loader;
    lks_trainer *trainer;
    int64_t local_batch;
    LKS_CHECK(lks_partition_dataset(world, data, BATCH, 1, &loader, &local_batch));
    lks_graph *g = lks_graph_create(lks_device_default(world));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 1});
    lks_node *y = lks_input(g, "y", LKS_F32, 2, (int64_t[]){LKS_BATCH, 1});
    LKS_CHECK(lks_trainer_create(
        &trainer, loss(lks_linear(x, 1, "line"), y),
        &(lks_trainer_options){
            .group = world, .features = x, .labels = y, .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1})}));
    lks_batch batch;
    for (int epoch = 0; epoch < N_EPOCHS; epoch++)
        while (lks_loader_next(loader, &batch)) LKS_CHECK(lks_trainer_step(trainer, &batch, NULL));
    const lks_store *store = lks_trainer_store(trainer);
    float a, b;
    LKS_CHECK(lks_store_read(store, lks_store_find(store, "line.weight"), &a));
    LKS_CHECK(lks_store_read(store, lks_store_find(store, "line.bias"), &b));
    if (lks_group_rank(world) == 0)
        printf("%s: y = %.2f x + %.2f (without outliers %g x + %g)\n", name, (double)a, (double)b, (double)slope,
               (double)intercept);
    lks_trainer_destroy(trainer);
    lks_graph_destroy(g);
    lks_loader_destroy(loader);
    return 0;
}

static int own_operator(int argc, char **argv) {
    if (argc > 1) return fprintf(stderr, "own_operator: unknown argument '%s'; it takes none\n", argv[1]), 2;
    lks_group *world;
    lks_dataset *data;
    float x[COUNT], y[COUNT];
    for (int i = 0; i < COUNT; i++) {
        x[i] = 2 * (float)i / COUNT - 1;
        y[i] = slope * x[i] + intercept + (i % 10 == 9 ? 20 * x[i] + 20 : 0);
    }
    LKS_CHECK(lks_init(&world, NULL));
    LKS_CHECK(lks_dataset_create(
        &data, &(lks_dataset_options){.features = x, .targets = y, .count = COUNT, .n_features = 1, .n_targets = 1}));
    int code = fit(world, data, "mean squared error", lks_mse);
    if (code == 0) code = fit(world, data, "huber loss", huber);
    lks_dataset_destroy(data);
    lks_group_destroy(world);
    return code;
}

int main(int argc, char **argv) { return lks_main(argc, argv, own_operator); }
