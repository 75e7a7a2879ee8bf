/* labels: no-tsan */
/* Sums after batch norm, as in residual networks: which of them run in its kernel, their results, and their
 * gradients. */
#include "check_layer.h"

#include <lockstep/operators.h>
#include <string.h>

static lks_node *convolve(lks_node *x, const char *name) {
    lks_conv2d_options same = {.window = {.padding = {1, 1}}, .no_bias = 1};
    return lks_conv2d(x, 12, 3, name, &same);
}

static lks_node *norm(lks_node *x, const char *name) {
    char part[16];
    snprintf(part, sizeof part, "%s.norm", name);
    return lks_batch_norm(convolve(x, name), part);
}

static lks_node *stem(lks_node *x) { return lks_relu(norm(x, "stem")); }

static lks_node *build_sum(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x);
    return lks_add(norm(a, "b"), a);
}

static lks_node *build_relu_before(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x);
    return convolve(lks_add(lks_relu(norm(a, "b")), a), "c");
}

static lks_node *build_other_order(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x);
    return convolve(lks_add(a, lks_relu(norm(a, "b"))), "c");
}

/* As in torchvision's ResNets. */
static lks_node *build_relu_after(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x);
    return convolve(lks_relu(lks_add(norm(a, "b"), a)), "c");
}

static lks_node *build_relu_twice(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x);
    return lks_relu(lks_add(a, lks_relu(norm(a, "b"))));
}

/* Both terms are normalised. The kernel of the second batch norm adds. */
static lks_node *build_two_norms(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = norm(x, "a"), *b = norm(x, "b");
    return convolve(lks_relu(lks_add(a, b)), "c");
}

/* The ReLU of the first norm comes after the second norm in the graph, but runs before it. */
static lks_node *build_two_norms_with_relu(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = norm(x, "a"), *b = norm(x, "b");
    return lks_add(lks_relu(a), b);
}

static lks_node *build_addend_used_again(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x);
    lks_node *sum = lks_add(lks_relu(norm(a, "b")), a);
    return lks_add(convolve(sum, "c"), a);
}

static lks_node *build_term_used_again(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x), *b = lks_relu(norm(a, "b"));
    return lks_add(convolve(lks_add(b, a), "c"), b);
}

/* The inner sum runs in the kernel of batch norm, which takes only one sum. */
static lks_node *build_chain(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x), *b = convolve(a, "b");
    return lks_add(lks_add(lks_relu(norm(b, "c")), a), b);
}

static lks_node *build_synchronised(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x);
    lks_node *b = lks_batch_norm_with(convolve(a, "b"), "b.norm", &(lks_batch_norm_options){.is_synchronised = 1});
    return convolve(lks_add(lks_relu(b), a), "c");
}

/* All tensors are row-major. */
static lks_node *build_features(lks_node *x, const void *argument) {
    (void)argument;
    return lks_add(x, lks_relu(lks_batch_norm(x, "bn")));
}

static lks_node *build_view(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *view = lks_reshape(lks_tanh(lks_reshape(x, 1, (int64_t[]){30})), 2, (int64_t[]){6, 5});
    return lks_add(lks_batch_norm(x, "bn"), view);
}

/* --- sums with a kernel of their own --- */

/* x is row-major, the norm is not. */
static lks_node *build_input(lks_node *x, const void *argument) {
    (void)argument;
    return lks_add(lks_relu(norm(x, "a")), x);
}

static lks_node *build_broadcast(lks_node *x, const void *argument) {
    (void)argument;
    return lks_add(norm(x, "a"), layer_parameter(x, "shift", 3, (int64_t[]){12, 1, 1}));
}

static lks_node *build_broadcast_result(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *small = lks_batch_norm(lks_mean(convolve(x, "a"), 2, (int[]){2, 3}, 1), "b");
    return lks_add(small, stem(x));
}

static lks_node *build_same_twice(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = lks_relu(norm(x, "a"));
    return lks_add(a, a);
}

/* The terms are the norm before and after its own ReLU. */
static lks_node *build_own_relu(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = norm(x, "a");
    return lks_add(lks_relu(a), a);
}

/* The other term is computed after the norm, so its kernel cannot add it. */
static lks_node *build_later_term(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = norm(x, "a");
    return lks_add(a, convolve(x, "b"));
}

/* A kernel lies between the norm and the sum. The sum would have to live longer. */
static lks_node *build_between(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *a = stem(x), *b = lks_relu(norm(a, "b")), *c = convolve(b, "c");
    return lks_add(lks_add(a, b), c);
}

typedef struct residual {
    layer layer;
    int n_taken[2], n_kernels[2]; /* sums in kernels of batch norm, and in own ones: in evaluation, in training */
} residual;

#define IMAGES                                                                                                         \
    { 3, 12, 4, 4 }
static const residual residuals[] = {
    {{"sum", 4, IMAGES, build_sum, NULL}, {1, 1}, {0, 0}},
    {{"sum, odd channels", 4, {3, 5, 3, 4}, build_sum, NULL}, {1, 1}, {0, 0}},
    {{"relu before", 4, IMAGES, build_relu_before, NULL}, {1, 1}, {0, 0}},
    {{"the other order", 4, IMAGES, build_other_order, NULL}, {1, 1}, {0, 0}},
    {{"relu after", 4, IMAGES, build_relu_after, NULL}, {1, 1}, {0, 0}},
    {{"relu twice", 4, IMAGES, build_relu_twice, NULL}, {1, 1}, {0, 0}},
    {{"two norms", 4, IMAGES, build_two_norms, NULL}, {1, 1}, {0, 0}},
    {{"two norms, relu", 4, IMAGES, build_two_norms_with_relu, NULL}, {1, 1}, {0, 0}},
    {{"addend used again", 4, IMAGES, build_addend_used_again, NULL}, {1, 1}, {1, 1}},
    {{"term used again", 4, IMAGES, build_term_used_again, NULL}, {0, 1}, {2, 1}},
    {{"chain", 4, IMAGES, build_chain, NULL}, {1, 1}, {1, 1}},
    {{"synchronised", 4, IMAGES, build_synchronised, NULL}, {1, 1}, {0, 0}},
    {{"features", 2, {6, 5}, build_features, NULL}, {1, 1}, {0, 0}},
    {{"view", 2, {6, 5}, build_view, NULL}, {1, 1}, {0, 0}},
    {{"input", 4, IMAGES, build_input, NULL}, {0, 0}, {1, 1}},
    {{"broadcast", 4, IMAGES, build_broadcast, NULL}, {0, 0}, {1, 1}},
    {{"broadcast result", 4, IMAGES, build_broadcast_result, NULL}, {0, 0}, {1, 1}},
    {{"same twice", 4, IMAGES, build_same_twice, NULL}, {0, 0}, {1, 1}},
    {{"own relu", 4, IMAGES, build_own_relu, NULL}, {0, 0}, {1, 1}},
    {{"later term", 4, IMAGES, build_later_term, NULL}, {0, 0}, {1, 1}},
    {{"between", 4, IMAGES, build_between, NULL}, {0, 0}, {2, 2}},
};
enum { N_RESIDUALS = sizeof residuals / sizeof residuals[0], MAX_COUNT = 1024 };

static void residual_sums_have_the_gradients_of_finite_differences(void **state) {
    (void)state;
    for (int i = 0; i < N_RESIDUALS; i += IS_SLOW_BUILD ? 4 : 1) layer_check_differences(&residuals[i].layer);
}

/* The gradient of batch norm is a difference of sums that nearly cancel. The tolerance is 1e-4 of its largest
 * element. */
static void residual_sums_agree_across_devices(void **state) {
    (void)state;
    for (int i = 0; i < N_RESIDUALS; i++) layer_check_devices(&residuals[i].layer, 1e-4f);
}

/* --- forward passes of a layer whose x is an input of the graph --- */

typedef struct forward {
    lks_device *device;
    lks_graph *graph;
    lks_node *x, *y, *loss;
    lks_store *store;
} forward;

static float samples[MAX_COUNT];

static int fill(void **state) {
    (void)state;
    for (uint64_t i = 0; i < MAX_COUNT; i++) samples[i] = (float)lksi_random_normal(1, 0, i);
    return 0;
}

static void begin(forward *f, const layer *l, const char *device) {
    assert_ok(lks_device_create(&f->device, &(lks_device_options){.name = device}));
    f->graph = lks_graph_create(f->device);
    f->x = lks_input(f->graph, "x", LKS_F32, l->n_dims, l->dims);
    f->y = l->build(f->x, l->argument);
    f->loss = lks_mean(f->y, 0, NULL, 0);
    assert_ok(lks_store_create(&f->store, f->loss, &(lks_store_options){.seed = 7}));
}

static void end(forward *f) {
    lks_store_destroy(f->store);
    lks_graph_destroy(f->graph);
    lks_device_destroy(f->device);
}

static lks_program *compile(const forward *f, int is_training, lks_node *const *outputs, int n_outputs) {
    lks_program *program;
    lks_program_options options = {
        .batch = 1, .is_training = is_training, .loss = f->loss, .outputs = outputs, .n_outputs = n_outputs};
    assert_ok(lks_program_create(&program, f->store, &options));
    lksi_program_set_ranks(program, &(lksi_program_ranks){.sum = layer_sum_alone});
    assert_ok(lks_program_set_input(program, f->x, samples));
    assert_ok(lks_program_forward(program));
    return program;
}

static int count_in_forward(const lks_program *program, const char *part) {
    static char text[1 << 14];
    int n = 0;
    lks_program_describe(program, text, sizeof text);
    assert_true(strlen(text) < sizeof text - 1);
    char *loss = strstr(text, ":mean f32 ()");
    assert_non_null(loss);
    *loss = '\0';
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) n++;
    return n;
}

static void a_sum_behind_batch_norm_runs_in_its_kernel(void **state) {
    (void)state;
    if (strcmp(lks_device_name(lks_device_default(NULL)), "cpu") != 0) skip(); /* built without oneDNN */
    for (int i = 0; i < 2 * N_RESIDUALS; i++) {
        const residual *r = &residuals[i / 2];
        forward f;
        begin(&f, &r->layer, "cpu");
        lks_program *program = compile(&f, i % 2, NULL, 0);
        int n_taken = count_in_forward(program, " + add"), n_kernels = count_in_forward(program, ":add ");
        if (n_taken != r->n_taken[i % 2] || n_kernels != r->n_kernels[i % 2])
            fail_msg("%s, %s: %d sums in kernels of batch norm, %d in their own", r->layer.name,
                     i % 2 ? "training" : "evaluation", n_taken, n_kernels);
        lks_program_destroy(program);
        end(&f);
    }
}

static void residual_sums_agree_across_devices_in_evaluation(void **state) {
    (void)state;
    for (int i = 0; i < N_RESIDUALS; i++) {
        const layer *l = &residuals[i].layer;
        forward cpu, reference;
        begin(&cpu, l, "cpu");
        begin(&reference, l, "reference");
        lks_program *program = compile(&cpu, 0, &cpu.y, 1), *expected = compile(&reference, 0, &reference.y, 1);
        int64_t count = 1;
        for (int k = 0; k < lks_node_n_dims(cpu.y); k++) count *= lks_node_dim(cpu.y, k);
        layer_check_close(l->name, "y", lks_program_output(program, cpu.y), lks_program_output(expected, reference.y),
                          count, 1e-5f); /* sums of 108 products each */
        lks_program_destroy(expected);
        lks_program_destroy(program);
        end(&reference);
        end(&cpu);
    }
}

/* --- bits --- */

typedef struct terms {
    int has_relu, has_relu_after, is_second;
    lks_node *nodes[3]; /* the two terms, and the sum */
} terms;

static lks_node *build_terms(lks_node *x, const void *argument) {
    terms *t = *(terms *const *)argument;
    t->nodes[1] = stem(x);
    t->nodes[0] = norm(t->nodes[1], "b");
    if (t->has_relu) t->nodes[0] = lks_relu(t->nodes[0]);
    t->nodes[2] = lks_add(t->nodes[t->is_second], t->nodes[1 - t->is_second]);
    if (t->has_relu_after) t->nodes[2] = lks_relu(t->nodes[2]);
    return t->nodes[2];
}

/* y must be the sum of the terms that the program returns. In evaluation, the sum of such a program has its own
 * kernel. */
static void check_bits(const forward *f, const terms *t, int is_training, const float *y) {
    lks_program *program = compile(f, is_training, t->nodes, 3);
    const float *a = lks_program_output(program, t->nodes[0]), *b = lks_program_output(program, t->nodes[1]);
    for (int i = 0; i < 3 * 12 * 12; i++) {
        float sum = a[i] + b[i];
        assert_true(y[i] == (t->has_relu_after && sum < 0 ? 0 : sum));
    }
    assert_memory_equal(lks_program_output(program, t->nodes[2]), y, 3 * 12 * 12 * sizeof *y);
    lks_program_destroy(program);
}

static void a_sum_in_the_kernel_has_the_bits_of_one_behind_it(void **state) {
    (void)state;
    for (int i = 0; i < 16; i++) {
        terms t = {.has_relu = i & 1, .has_relu_after = i >> 1 & 1, .is_second = i >> 2 & 1};
        terms *argument = &t;
        forward f;
        begin(&f, &(layer){"terms", 4, {3, 5, 3, 4}, build_terms, &argument}, "cpu");
        lks_program *program = compile(&f, i >> 3, &t.nodes[2], 1);
        check_bits(&f, &t, i >> 3, lks_program_output(program, t.nodes[2]));
        lks_program_destroy(program);
        end(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residual_sums_have_the_gradients_of_finite_differences),
        cmocka_unit_test(residual_sums_agree_across_devices),
        cmocka_unit_test(a_sum_behind_batch_norm_runs_in_its_kernel),
        cmocka_unit_test(residual_sums_agree_across_devices_in_evaluation),
        cmocka_unit_test(a_sum_in_the_kernel_has_the_bits_of_one_behind_it),
    };
    return cmocka_run_group_tests(tests, fill, nothing_is_left);
}
