/* labels: no-tsan */
/* Every operator and both models: backward passes against central finite differences in f64 on the reference device,
 * and the cpu device against the reference device. */
#include "test.h"

#include "base/base.h"

#include <lockstep/nn.h>
#include <math.h>
#include <string.h>

/* Two batch sizes: the layout of the product on the cpu device depends on whether the batch fills its vectors. */
enum { MAX_N = 16 };
static const int batches[] = {6, 16};

/* A model under test: builds a scalar loss from x (N,K) and labels (N). */
typedef struct model {
    const char *name;
    int64_t n_features, n_classes;
    lks_node *(*logits)(lks_node *x);
} model;

static lks_initializer uniform(double scale) { return (lks_initializer){LKS_INITIAL_UNIFORM, scale}; }

static lks_node *build_linear(lks_node *x) { return lks_linear(x, 3, "fc"); }

static lks_node *build_linear_without_bias(lks_node *x) {
    return lks_linear_with(x, 3, "fc", &(lks_linear_options){.no_bias = 1});
}

static lks_node *build_relu(lks_node *x) { return lks_linear(lks_relu(lks_linear(x, 7, "fc1")), 3, "fc2"); }
static lks_node *build_tanh(lks_node *x) { return lks_linear(lks_tanh(lks_linear(x, 7, "fc1")), 3, "fc2"); }
static lks_node *build_sigmoid(lks_node *x) { return lks_linear(lks_sigmoid(lks_linear(x, 7, "fc1")), 3, "fc2"); }

/* These activations are no epilogues, because their input has another reader. */
static lks_node *build_add(lks_node *x) {
    lks_node *h = lks_linear(x, 5, "fc1");
    return lks_linear(lks_add(lks_add(lks_tanh(h), lks_sigmoid(h)), lks_relu(h)), 3, "fc2");
}

/* One gradient belongs to two parameters, and one is a reshaped view. Both must be copied. */
static lks_node *build_shared_gradients(lks_node *x) {
    lks_graph *g = lks_node_graph(x);
    lks_node *a = lks_parameter(g, "a", 2, (int64_t[]){3, 4}, uniform(0.5));
    lks_node *b = lks_parameter(g, "b", 2, (int64_t[]){3, 4}, uniform(0.5));
    lks_node *flat = lks_parameter(g, "flat", 1, (int64_t[]){12}, uniform(0.5));
    lks_node *w = lks_add(lks_add(a, b), lks_reshape(flat, 2, (int64_t[]){3, 4}));
    return lks_linear_function(x, w, NULL);
}

static lks_node *build_weight_used_twice(lks_node *x) {
    lks_node *w = lks_parameter(lks_node_graph(x), "w", 2, (int64_t[]){4, 4}, uniform(0.5));
    return lks_linear_function(lks_tanh(lks_linear_function(x, w, NULL)), w, NULL);
}

static lks_node *build_reshape(lks_node *x) {
    lks_node *wide = lks_reshape(lks_linear(x, 6, "fc1"), 3, (int64_t[]){LKS_BATCH, 2, 3});
    return lks_linear(lks_reshape(lks_tanh(wide), 2, (int64_t[]){LKS_BATCH, 6}), 3, "fc2");
}

/* The cpu device has a separate path for rows of whole pages. */
static lks_node *build_page_long_rows(lks_node *x) { return lks_linear(x, 3, "fc"); }

static lks_node *build_mnist(lks_node *x) { return lks_linear(lks_relu(lks_linear(x, 50, "fc1")), 10, "fc2"); }

static lks_node *build_mlp(lks_node *x) {
    static const int64_t widths[] = {16, 16, 16, 8};
    for (int i = 0; i < 4; i++) {
        lks_initializer kaiming = lks_kaiming_uniform(lks_node_dim(x, 1));
        char name[16];
        snprintf(name, sizeof name, "layers.%d", i);
        x = lks_linear_with(x, widths[i], name, &(lks_linear_options){.no_bias = 1, .weight = &kaiming});
        if (i < 3) x = lks_tanh(x);
    }
    return x;
}

static const model models[] = {
    {"linear", 4, 3, build_linear},
    {"linear without bias", 4, 3, build_linear_without_bias},
    {"relu", 4, 3, build_relu},
    {"tanh", 4, 3, build_tanh},
    {"sigmoid", 4, 3, build_sigmoid},
    {"add", 4, 3, build_add},
    {"shared gradients", 4, 3, build_shared_gradients},
    {"weight used twice", 4, 4, build_weight_used_twice},
    {"reshape", 4, 3, build_reshape},
    {"page long rows", 1024, 3, build_page_long_rows},
    {"mnist", 784, 10, build_mnist},
    {"mlp", 24, 8, build_mlp},
};
enum { N_MODELS = sizeof models / sizeof models[0] };

/* A compiled model with its data. */
typedef struct bench {
    lks_device *device;
    lks_graph *graph;
    lks_node *x, *y, *logits, *loss;
    lks_store *store;
    lks_program *program;
    void *features;
    int n;
    int32_t labels[MAX_N];
} bench;

static void set_up(bench *b, const model *m, int n, const char *device, lks_type precision) {
    b->n = n;
    assert_ok(lks_device_create(&b->device, &(lks_device_options){.name = device, .precision = precision}));
    b->graph = lks_graph_create(b->device);
    b->x = lks_input(b->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, m->n_features});
    b->y = lks_input(b->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    b->logits = m->logits(b->x);
    b->loss = lks_cross_entropy(b->logits, b->y);
    assert_ok(lks_store_create(&b->store, b->loss, &(lks_store_options){.seed = 5}));
    assert_ok(lks_program_create(
        &b->program, b->store,
        &(lks_program_options){.batch = n, .is_training = 1, .loss = b->loss, .outputs = &b->logits, .n_outputs = 1}));
    b->features = lksi_alloc((size_t)(n * m->n_features) * lks_type_nbytes(precision));
    for (int64_t i = 0; i < n * m->n_features; i++) {
        double value = lksi_random_normal(3, 0, (uint64_t)i);
        if (precision == LKS_F64)
            ((double *)b->features)[i] = (double)(float)value; /* the same data on every device */
        else
            ((float *)b->features)[i] = (float)value;
    }
    for (int i = 0; i < n; i++) b->labels[i] = (int32_t)((i * 7) % m->n_classes);
    assert_ok(lks_program_set_input(b->program, b->x, b->features));
    assert_ok(lks_program_set_input(b->program, b->y, b->labels));
}

static void tear_down(bench *b) {
    lksi_free(b->features);
    lks_program_destroy(b->program);
    lks_store_destroy(b->store);
    lks_graph_destroy(b->graph);
    lks_device_destroy(b->device);
}

static double loss_of(bench *b) {
    assert_ok(lks_program_forward(b->program));
    return lks_program_scalar(b->program, b->loss);
}

static double loss_at(bench *b, int index, double *values, int64_t i, double value) {
    values[i] = value;
    assert_ok(lks_store_write(b->store, index, values));
    return loss_of(b);
}

/* Central differences have an error of O(h^2): with h = 1e-5 in f64 both truncation and rounding stay below 1e-8 of the
 * scale of these gradients. The drawn values avoid ReLU's kink: no pre-activation is within h of 0. */
static void check_parameter(bench *b, const char *model_name, int index, double factor) {
    lks_parameter_view p = lks_store_parameter(b->store, index);
    double *values = lksi_alloc((size_t)p.count * sizeof *values),
           *gradient = lksi_alloc((size_t)p.count * sizeof *gradient);
    assert_ok(lks_store_read(b->store, index, values));
    assert_ok(lks_store_read_gradient(b->store, index, gradient));
    int64_t stride = p.count > 400 ? p.count / 400 : 1; /* large weights are sampled */
    for (int64_t i = 0; i < p.count; i += stride) {
        const double h = 1e-5, kept = values[i];
        double above = loss_at(b, index, values, i, kept + h), below = loss_at(b, index, values, i, kept - h);
        (void)loss_at(b, index, values, i, kept);
        double expected = factor * (above - below) / (2 * h);
        if (fabs(gradient[i] - expected) > 1e-7 * (1 + fabs(expected)))
            fail_msg("%s: %s[%lld]: gradient %.12g, finite difference %.12g", model_name, p.name, (long long)i,
                     gradient[i], expected);
    }
    lksi_free(values);
    lksi_free(gradient);
}

static void gradients_match_finite_differences(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        bench b = {0};
        set_up(&b, &models[m], batches[0], "reference", LKS_F64);
        (void)loss_of(&b);
        assert_ok(lks_program_backward(b.program, 2.5));
        for (int i = 0; i < lks_store_n_parameters(b.store); i++) check_parameter(&b, models[m].name, i, 2.5);
        tear_down(&b);
    }
}

/* f32 rounds at 6e-8, and the longest sum has 784 terms of size 1. A tolerance of 2e-5 of the largest element covers
 * another order of additions. */
static void check_close(const char *what, const char *name, const float *got, const float *expected, int64_t count) {
    float scale = 1e-3f;
    for (int64_t i = 0; i < count; i++) scale = fabsf(expected[i]) > scale ? fabsf(expected[i]) : scale;
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - expected[i]) <= 2e-5f * scale))
            fail_msg("%s: %s[%lld]: %.9g on cpu, %.9g on reference", what, name, (long long)i, (double)got[i],
                     (double)expected[i]);
}

static void compare_parameter(const char *model_name, const bench *cpu, const bench *reference, int index) {
    lks_parameter_view a = lks_store_parameter(cpu->store, index), b = lks_store_parameter(reference->store, index);
    assert_string_equal(a.name, b.name);
    size_t nbytes = (size_t)a.count * sizeof(float);
    float *x = lksi_alloc(nbytes), *y = lksi_alloc(nbytes);
    assert_ok(lks_store_read(cpu->store, index, x));
    assert_ok(lks_store_read(reference->store, index, y));
    assert_memory_equal(x, y, nbytes);
    assert_ok(lks_store_read_gradient(cpu->store, index, x));
    assert_ok(lks_store_read_gradient(reference->store, index, y));
    check_close(model_name, a.name, x, y, a.count);
    lksi_free(x);
    lksi_free(y);
}

static void the_cpu_device_agrees_with_the_reference_device(void **state) {
    (void)state;
    for (int i_batch = 0; i_batch < 2 * N_MODELS; i_batch++) {
        int m = i_batch / 2, n = batches[i_batch % 2];
        bench cpu = {0}, reference = {0};
        set_up(&cpu, &models[m], n, "cpu", LKS_F32);
        set_up(&reference, &models[m], n, "reference", LKS_F32);
        assert_float_equal(loss_of(&cpu), loss_of(&reference), 1e-5);
        assert_ok(lks_program_backward(cpu.program, 1));
        assert_ok(lks_program_backward(reference.program, 1));
        check_close(models[m].name, "logits", lks_program_output(cpu.program, cpu.logits),
                    lks_program_output(reference.program, reference.logits), n * models[m].n_classes);
        for (int i = 0; i < lks_store_n_parameters(cpu.store); i++)
            compare_parameter(models[m].name, &cpu, &reference, i);
        tear_down(&reference);
        tear_down(&cpu);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(the_cpu_device_agrees_with_the_reference_device),
    };
    return run_group(tests);
}
