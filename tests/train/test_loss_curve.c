/* labels: no-tsan */
/* From the same weights and batches the losses follow PyTorch's, which are stored in tests/reference.
 * tests/reference/make_curves.py defines what is computed, made the files, and checks them where PyTorch is
 * installed. */
#include "test.h"

#include "base/base.h"
#include "device/device.h"

#include <lockstep/nn.h>
#include <lockstep/parallel.h>
#include <math.h>
#include <string.h>

enum { N_STEPS = 100, BATCH = 64, WEIGHT_SEED = 1, FEATURE_SEED = 2, LABEL_SEED = 3 };

typedef struct curve {
    const char *name;
    int64_t n_features, n_classes;
    lks_node *(*logits)(lks_node *x);
    const char *parameters[4]; /* in the order of the formulas in make_curves.py */
    lks_optimizer optimizer;
} curve;

static lks_node *build_mnist(lks_node *x) { return lks_linear(lks_relu(lks_linear(x, 50, "fc1")), 10, "fc2"); }

static lks_node *build_mlp(lks_node *x) {
    static const int64_t widths[] = {256, 256, 256, 32};
    for (int i = 0; i < 4; i++) {
        lks_initializer kaiming = lks_kaiming_uniform(lks_node_dim(x, 1));
        char name[16];
        snprintf(name, sizeof name, "layers.%d", i);
        x = lks_linear_with(x, widths[i], name, &(lks_linear_options){.no_bias = 1, .weight = &kaiming});
        if (i < 3) x = lks_tanh(x);
    }
    return x;
}

static void read_curve(const char *name, double losses[N_STEPS]) {
    char path[512], line[256];
    snprintf(path, sizeof path, "%s/tests/reference/%s_curve.txt", source_directory(), name);
    FILE *file = fopen(path, "r");
    if (file == NULL) fail_msg("%s cannot be read", path);
    int n_read = 0, step;
    double f64, f32;
    while (fgets(line, sizeof line, file) != NULL)
        if (line[0] != '#' && sscanf(line, "%d %lf %lf", &step, &f64, &f32) == 3 && step == n_read && step < N_STEPS)
            losses[n_read++] = f64;
    fclose(file);
    assert_int_equal(n_read, N_STEPS);
}

static void put(void *array, lks_type type, int64_t index, double value) {
    if (type == LKS_F64)
        ((double *)array)[index] = value;
    else
        ((float *)array)[index] = (float)value;
}

static void set_weights(lks_store *store, const curve *c) {
    for (uint64_t p = 0; p < 4 && c->parameters[p] != NULL; p++) {
        int index = lks_store_find(store, c->parameters[p]);
        lks_parameter_view view = lks_store_parameter(store, index);
        bool is_mlp = strcmp(c->name, "mlp") == 0;
        /* The bound of a bias depends on its layer's fan-in, which is that of the preceding weight. */
        lks_parameter_view weight =
            view.n_dims == 2 ? view : lks_store_parameter(store, lks_store_find(store, c->parameters[p - 1]));
        double bound = sqrt((is_mlp ? 6.0 : 1.0) / (double)weight.dims[1]);
        void *values = lksi_alloc_array((size_t)view.count, sizeof(double));
        for (int64_t i = 0; i < view.count; i++)
            put(values, view.type, i,
                (double)(float)((2.0 * (double)lksi_random_uniform(WEIGHT_SEED, p, (uint64_t)i) - 1.0) * bound));
        assert_ok(lks_store_write(store, index, values));
        lksi_free(values);
    }
}

static void make_batch(const curve *c, uint64_t step, void *features, lks_type type, int32_t *labels) {
    int64_t block = c->n_features / c->n_classes;
    for (int64_t s = 0; s < BATCH; s++) {
        labels[s] = (int32_t)lksi_random_below(LABEL_SEED, step, (uint64_t)s, (uint64_t)c->n_classes);
        for (int64_t f = 0; f < c->n_features; f++) {
            int64_t i = s * c->n_features + f;
            double value = (double)lksi_random_uniform(FEATURE_SEED, step, (uint64_t)i);
            put(features, type, i, f / block == labels[s] ? value : value / 2);
        }
    }
}

static void follow(const curve *c, const char *device_name, lks_type precision, double tolerance) {
    double expected[N_STEPS];
    read_curve(c->name, expected);
    lks_group *group;
    lks_device *device;
    lks_store *store;
    lks_program *program;
    lks_distributed_optimizer *optimizer;
    assert_ok(lks_init(&group, NULL));
    assert_ok(
        lksi_device_create_unchecked(&device, &(lks_device_options){.name = device_name, .precision = precision}));
    lks_graph *g = lks_graph_create(device);
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, c->n_features});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(c->logits(x), y);
    assert_ok(lks_distributed_store_create(&store, group, loss, NULL));
    set_weights(store, c);
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = BATCH, .is_training = 1, .loss = loss}));
    assert_ok(lks_distributed_optimizer_create(&optimizer, group, store, &c->optimizer));
    void *features = lksi_alloc((size_t)(BATCH * c->n_features) * sizeof(double));
    int32_t labels[BATCH];
    assert_ok(lks_program_set_input(program, x, features));
    assert_ok(lks_program_set_input(program, y, labels));
    for (int step = 0; step < N_STEPS; step++) {
        make_batch(c, (uint64_t)step, features, precision, labels);
        assert_ok(lks_program_forward(program));
        double got = lks_program_scalar(program, loss);
        if (fabs(got - expected[step]) > tolerance * expected[step])
            fail_msg("%s on %s: loss %.9g in step %d, PyTorch's is %.9g", c->name, device_name, got, step,
                     expected[step]);
        assert_ok(lks_program_backward(program, BATCH));
        assert_ok(lks_distributed_optimizer_step(optimizer, &(lks_step_sums){.n_samples = BATCH}, NULL));
    }
    lksi_free(features);
    lks_distributed_optimizer_destroy(optimizer);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_device_destroy(device);
    lks_group_destroy(group);
}

static curve mnist(void) {
    return (curve){"mnist",
                   784,
                   10,
                   build_mnist,
                   {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"},
                   lks_adam(&(lks_adam_options){.lr = 1e-3})};
}

static curve mlp(void) {
    return (curve){"mlp",
                   1024,
                   32,
                   build_mlp,
                   {"layers.0.weight", "layers.1.weight", "layers.2.weight", "layers.3.weight"},
                   lks_sgd(&(lks_sgd_options){.lr = 0.1, .schedule = lks_schedule_linear(1.0, 0.3, 1000)})};
}

/* f32 against PyTorch's f64: the difference is f32 rounding. PyTorch's own f32 differs as much. */
static void mnist_in_f32_follows_torch_to_1e_4(void **state) {
    (void)state;
    curve c = mnist();
    follow(&c, "cpu", LKS_F32, 1e-4);
}

static void mlp_in_f32_follows_torch_to_1e_4(void **state) {
    (void)state;
    curve c = mlp();
    follow(&c, "cpu", LKS_F32, 1e-4);
}

/* The file stores 9 digits. */
static void mnist_in_f64_follows_torch_to_2e_8(void **state) {
    (void)state;
    curve c = mnist();
    follow(&c, "reference", LKS_F64, 2e-8);
}

/* bf16 operands have 8 bits, on any CPU. The measured difference is at most 1.8e-3 of the loss. */
static void mnist_in_bf16_follows_torch_to_5e_3(void **state) {
    (void)state;
    curve c = mnist();
    follow(&c, "reference", LKS_BF16, 5e-3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mnist_in_f32_follows_torch_to_1e_4),
        cmocka_unit_test(mlp_in_f32_follows_torch_to_1e_4),
        cmocka_unit_test(mnist_in_f64_follows_torch_to_2e_8),
        cmocka_unit_test(mnist_in_bf16_follows_torch_to_5e_3),
    };
    return run_group(tests);
}
