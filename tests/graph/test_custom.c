/* Custom operators: they give the results and gradients of equivalent operators of the library. Errors are refused. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "cuda/cuda_test.h"

#include "graph/graph.h"

#include <dlfcn.h>
#include <lockstep/nn.h>
#include <lockstep/operators.h>
#include <math.h>

enum { N = 3, N_PIXELS = 2 * 6 * 6, N_CLASSES = 3, MOST_STORED = 1 << 14 };

static lks_device *device; /* NULL: the default one */
static const int32_t labels[N] = {0, 2, 1};

static double get(const lks_tensor_view *view, const void *data, int64_t i) {
    return view->type == LKS_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static void set(const lks_tensor_view *view, void *data, int64_t i, double value) {
    if (view->type == LKS_F64)
        ((double *)data)[i] = value;
    else
        ((float *)data)[i] = (float)value;
}

/* --- y = x sigmoid(x) --- */

static lks_status swish_forward(const lks_custom_call *call) {
    const lks_tensor_view *x = &call->inputs[0];
    int *n_calls = call->context;
    *n_calls += 1;
    assert_int_equal(call->n_inputs, 1);
    assert_int_equal(x->dims[0], N);
    for (int64_t i = 0; i < x->count; i++) {
        double v = get(x, x->data, i);
        set(x, call->output.data, i, v / (1 + exp(-v)));
    }
    return LKS_OK;
}

static lks_status swish_backward(const lks_custom_call *call) {
    const lks_tensor_view *x = &call->inputs[0];
    for (int64_t i = 0; i < x->count; i++) {
        double sigmoid = 1 / (1 + exp(-get(x, x->data, i))), y = get(x, call->output.data, i);
        set(x, call->gradients[0], i, get(x, call->output_gradient, i) * (sigmoid + y * (1 - sigmoid)));
    }
    return LKS_OK;
}

static int n_swish_calls;

static lks_node *swish(lks_node *x, bool is_custom) {
    if (!is_custom) return lks_mul(x, lks_sigmoid(x));
    int64_t dims[4];
    for (int i = 0; i < lks_node_n_dims(x); i++) dims[i] = lks_node_dim(x, i);
    return lks_custom(&x, 1,
                      &(lks_custom_options){.name = "swish",
                                            .n_dims = lks_node_n_dims(x),
                                            .dims = dims,
                                            .forward = swish_forward,
                                            .backward = swish_backward,
                                            .context = &n_swish_calls});
}

/* --- loss: the mean over samples of w[label] (x[label] - 1)^2, for x (N,C), label (N), w (C) --- */

static lks_status weighted_forward(const lks_custom_call *call) {
    const lks_tensor_view *x = &call->inputs[0], *w = &call->inputs[2];
    const int32_t *label = call->inputs[1].data;
    double sum = 0;
    assert_int_equal(call->output.n_dims, 0);
    assert_int_equal(call->output.count, 1);
    for (int64_t i = 0; i < x->dims[0]; i++) {
        double miss = get(x, x->data, i * x->dims[1] + label[i]) - 1;
        sum += get(w, w->data, label[i]) * miss * miss;
    }
    set(&call->output, call->output.data, 0, sum / (double)x->dims[0]);
    return LKS_OK;
}

static lks_status weighted_backward(const lks_custom_call *call) {
    const lks_tensor_view *x = &call->inputs[0], *w = &call->inputs[2];
    const int32_t *label = call->inputs[1].data;
    double factor = get(&call->output, call->output_gradient, 0) / (double)x->dims[0];
    assert_null(call->gradients[1]); /* integers have no gradient */
    for (int64_t i = 0; i < x->count; i++) set(x, call->gradients[0], i, 0);
    double dw[N_CLASSES] = {0};
    for (int64_t i = 0; i < x->dims[0]; i++) {
        int64_t at = i * x->dims[1] + label[i];
        double miss = get(x, x->data, at) - 1;
        set(x, call->gradients[0], at, 2 * factor * get(w, w->data, label[i]) * miss);
        dw[label[i]] += factor * miss * miss;
    }
    for (int64_t k = 0; k < w->count; k++) set(w, call->gradients[2], k, dw[k]);
    return LKS_OK;
}

/* The version built from the library's operators takes the labels as an input of zeros and ones (N,C). */
static lks_node *weighted(lks_node *x, lks_node *label, lks_node *hot, lks_node *w, bool is_custom) {
    if (is_custom)
        return lks_custom(
            (lks_node *[]){x, label, w}, 3,
            &(lks_custom_options){.name = "weighted", .forward = weighted_forward, .backward = weighted_backward});
    lks_node *miss = lks_add_scalar(x, -1);
    lks_node *each = lks_mul(lks_mul(lks_mul(miss, miss), hot), w);
    return lks_scale(lks_sum(each, 0, NULL, 0), 1.0 / N);
}

typedef struct result {
    double loss;
    double gradients[MOST_STORED];
    size_t n_gradients;
} result;

/* The second convolution reads the output of the first custom operator, which the device would otherwise keep in
 * another layout. */
static void run_model(bool is_custom, bool is_training, result *r) {
    lks_graph *graph = lks_graph_create(device);
    lks_node *x = lks_input(graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 2, 6, 6});
    lks_node *label = lks_input(graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *hot = lks_input(graph, "hot", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_CLASSES});
    lks_conv2d_options padded = {.window = {.padding = {1, 1}}};
    lks_node *h = swish(lks_conv2d(x, 16, 3, "conv1", &padded), is_custom);
    h = lks_relu(lks_conv2d(h, 16, 3, "conv2", &padded));
    h = lks_linear(lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 16 * 36}), N_CLASSES, "fc");
    lks_node *w = lks_parameter(graph, "w", 1, (int64_t[]){N_CLASSES}, (lks_initializer){LKS_INITIAL_CONSTANT, 1.5});
    lks_node *loss = weighted(swish(h, is_custom), label, hot, w, is_custom);
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, loss, &(lks_store_options){.seed = 3}));
    assert_ok(lks_program_create(
        &program, store,
        &(lks_program_options){
            .batch = N, .is_training = is_training, .loss = loss, .outputs = &loss, .n_outputs = 1}));
    bool is_f64 = lks_node_type(x) == LKS_F64;
    double wide[N * N_PIXELS], wide_hot[N * N_CLASSES] = {0};
    float narrow[N * N_PIXELS], narrow_hot[N * N_CLASSES];
    for (int i = 0; i < N * N_PIXELS; i++) wide[i] = sin(i), narrow[i] = (float)wide[i];
    for (int i = 0; i < N; i++) wide_hot[i * N_CLASSES + labels[i]] = 1;
    for (int i = 0; i < N * N_CLASSES; i++) narrow_hot[i] = (float)wide_hot[i];
    assert_ok(lks_program_set_input(program, x, is_f64 ? (void *)wide : narrow));
    assert_ok(lks_program_set_input(program, hot, is_f64 ? (void *)wide_hot : narrow_hot));
    assert_ok(lks_program_set_input(program, label, labels));
    assert_ok(lks_program_forward(program));
    r->loss = lks_program_scalar(program, loss);
    r->n_gradients = 0;
    if (is_training) assert_ok(lks_program_backward(program, 2));
    for (int i = 0; is_training && i < lks_store_n_parameters(store); i++) {
        lks_parameter_view p = lks_store_parameter(store, i);
        int index = lks_store_find(store, p.name);
        double memory[MOST_STORED];
        assert_ok(lks_store_read_gradient(store, index, memory));
        lks_tensor_view as_view = {.type = p.type};
        for (int64_t k = 0; k < p.count; k++) r->gradients[r->n_gradients++] = get(&as_view, memory, k);
    }
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
}

static void check_equal(double tolerance) {
    static result custom, library;
    run_model(true, true, &custom);
    run_model(false, true, &library);
    assert_float_equal(custom.loss, library.loss, tolerance);
    assert_int_equal(custom.n_gradients, library.n_gradients);
    double size = 0;
    for (size_t i = 0; i < library.n_gradients; i++) size = fmax(size, fabs(library.gradients[i]));
    for (size_t i = 0; i < library.n_gradients; i++)
        if (!(fabs(custom.gradients[i] - library.gradients[i]) <= tolerance * size))
            fail_msg("gradient %zu is %g, not %g", i, custom.gradients[i], library.gradients[i]);
}

static void they_compute_and_differentiate_as_the_librarys_own(void **state) {
    (void)state;
    check_equal(1e-5);
}

static void likewise_in_f64_on_the_reference_device(void **state) {
    (void)state;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
    check_equal(1e-12);
    lks_device_destroy(device);
    device = NULL;
}

static void likewise_on_a_gpu_by_way_of_the_host(void **state) {
    (void)state;
    use_gpu();
    device = create_cuda();
    check_equal(gpu_tolerance(1e-4));
    lks_device_destroy(device);
    device = NULL;
}

static void evaluation_calls_forward_alone(void **state) {
    (void)state;
    static result custom, library;
    n_swish_calls = 0;
    run_model(true, false, &custom);
    assert_int_equal(n_swish_calls, 2);
    run_model(false, false, &library);
    assert_float_equal(custom.loss, library.loss, 1e-5);
}

/* --- errors --- */

static lks_status fails(const lks_custom_call *call) { return *(const lks_status *)call->context; }

static lks_status explains(const lks_custom_call *call) {
    (void)call;
    char hex[65];
    return lks_store_sha256(NULL, hex);
}

static lks_status run_failing(lks_custom_function forward, lks_status status) {
    lks_graph *graph = lks_graph_create(NULL);
    lks_node *x = lks_input(graph, "x", LKS_F32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_custom(&x, 1, &(lks_custom_options){.name = "mine", .forward = forward, .context = &status});
    lks_store *store;
    lks_program *program;
    const float data[1] = {1};
    assert_ok(lks_store_create(&store, loss, NULL));
    assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 1, .loss = loss}));
    assert_ok(lks_program_set_input(program, x, data));
    status = lks_program_forward(program);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
    return status;
}

static void a_function_that_fails_ends_the_run_and_is_named(void **state) {
    (void)state;
    assert_int_equal(run_failing(fails, LKS_ERR_FILE), LKS_ERR_FILE);
    assert_non_null(strstr(lks_error_text(), "the forward function of the custom operator 'mine'"));
    assert_int_equal(run_failing(explains, LKS_OK), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "`store` is NULL"));
}

static void a_loss_that_depends_on_one_without_backward_is_refused(void **state) {
    (void)state;
    lks_graph *graph = lks_graph_create(NULL);
    lks_node *w = lks_parameter(graph, "w", 0, NULL, (lks_initializer){LKS_INITIAL_ZERO, 0});
    lks_node *loss = lks_custom(&w, 1, &(lks_custom_options){.name = "mine", .forward = fails});
    lks_store *store = NULL;
    assert_int_equal(lks_store_create(&store, loss, NULL), LKS_ERR_UNSUPPORTED);
    assert_non_null(strstr(lks_error_text(), "'mine' has no backward function"));
    lks_graph_destroy(graph);
}

static lks_status copies(const lks_custom_call *call) {
    const lks_tensor_view *x = &call->inputs[0];
    for (int64_t i = 0; i < x->count; i++) set(x, call->output.data, i, get(x, x->data, i));
    return LKS_OK;
}

/* A buffer is a constant to it, so nobody asks for its gradient. */
static void one_that_reads_only_buffers_needs_no_backward(void **state) {
    (void)state;
    lks_graph *graph = lks_graph_create(NULL);
    lks_node *w = lks_parameter(graph, "w", 1, (int64_t[]){2}, (lks_initializer){LKS_INITIAL_ZERO, 0});
    lks_node *buffer = lks_buffer(graph, "buffer", 1, (int64_t[]){2}, 3, 0.1);
    lks_node *made = lks_custom(
        &buffer, 1, &(lks_custom_options){.name = "mine", .n_dims = 1, .dims = (int64_t[]){2}, .forward = copies});
    lks_node *loss = lks_sum(lks_mul(w, made), 0, NULL, 0);
    lks_store *store;
    lks_program *program;
    float gradient[2];
    assert_ok(lks_store_create(&store, loss, NULL));
    assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 1, .is_training = 1, .loss = loss}));
    assert_ok(lks_program_forward(program));
    assert_ok(lks_program_backward(program, 1));
    assert_ok(lks_store_read_gradient(store, lks_store_find(store, "w"), gradient));
    assert_true(gradient[0] == 3 && gradient[1] == 3);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
}

static void bad_options_are_named(void **state) {
    (void)state;
    static const int64_t zero[2] = {LKS_BATCH, 0};
    static const struct {
        lks_custom_options options;
        int n_inputs;
        const char *expected;
    } cases[] = {{{.forward = fails}, 1, "a custom operator has no name"},
                 {{.name = "a\nb", .forward = fails}, 1, "has a control character (10) at 1"},
                 {{.name = "mine"}, 1, "'mine' has no forward function"},
                 {{.name = "mine", .forward = fails}, 0, "'mine' has 0 inputs; 1 to 6 are possible"},
                 {{.name = "mine", .forward = fails}, 7, "'mine' has 7 inputs; 1 to 6 are possible"},
                 {{.name = "mine", .forward = fails, .n_dims = 9, .dims = zero}, 1, "has 9 dimensions"},
                 {{.name = "mine", .forward = fails, .n_dims = 1}, 1, "has 1 dimensions, but dims is NULL"},
                 {{.name = "mine", .forward = fails, .n_dims = 2, .dims = zero}, 1, "dimension 1 of 'mine' is 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_graph *graph = lks_graph_create(NULL);
        lks_node *x = lks_input(graph, "x", LKS_F32, 1, (int64_t[]){LKS_BATCH});
        lks_node *node = lks_custom((lks_node *[]){x, x, x, x, x, x, x}, cases[i].n_inputs, &cases[i].options);
        lks_store *store;
        assert_int_not_equal(lks_store_create(&store, node, NULL), LKS_OK);
        if (strstr(lks_error_text(), cases[i].expected) == NULL) fail_msg("%zu: %s", i, lks_error_text());
        lks_graph_destroy(graph);
    }
    lks_store *store;
    assert_int_not_equal(lks_store_create(&store, lks_custom(NULL, 1, NULL), NULL), LKS_OK);
}

/* Ranks compare their models by descriptions. The address of a function differs between processes. */
static void descriptions_depend_on_the_name(void **state) {
    (void)state;
    lksi_description seen[3];
    for (int i = 0; i < 3; i++) {
        lks_graph *graph = lks_graph_create(NULL);
        lks_node *x = lks_input(graph, "x", LKS_F32, 1, (int64_t[]){LKS_BATCH});
        (void)lks_custom(
            &x, 1, &(lks_custom_options){.name = i == 2 ? "other" : "mine", .forward = i == 0 ? fails : explains});
        assert_true(lksi_graph_describe(graph, 1, &seen[i]));
        lks_graph_destroy(graph);
    }
    assert_string_equal(seen[0].what, seen[1].what);
    assert_string_not_equal(seen[0].what, seen[2].what);
    assert_non_null(strstr(seen[0].what, "'mine'"));
    assert_non_null(strstr(seen[2].what, "'other'"));
}

/* --- the state of the calling thread --- */

typedef int (*openmp_function)(void);

/* Number of threads of OpenMP regions of the calling thread. Skips if the process has no OpenMP. */
static int count_threads(void) {
    openmp_function found;
    void *symbol = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    if (symbol == NULL) skip();
    memcpy(&found, &symbol, sizeof found);
    return found();
}

static lks_status pass_on(const lks_custom_call *call) {
    memcpy(call->output.data, call->inputs[0].data, (size_t)call->inputs[0].count * sizeof(float));
    return LKS_OK;
}

static lks_status count_threads_here(const lks_custom_call *call) {
    *(int *)call->context = count_threads();
    return pass_on(call);
}

/* Runs another program, which is the context. */
static lks_status run_another(const lks_custom_call *call) {
    (void)pass_on(call);
    return lks_program_forward(call->context);
}

typedef struct chain {
    lks_graph *graph;
    lks_store *store;
    lks_program *program;
} chain;

/* The first function runs on the device's threads, the second after it. */
static chain build_chain(lks_device *on, lks_custom_function first, void *context, int *n_threads) {
    static const float data[1] = {1};
    chain c = {.graph = lks_graph_create(on)};
    lks_node *x = lks_input(c.graph, "x", LKS_F32, 1, (int64_t[]){LKS_BATCH});
    lks_custom_options options = {
        .name = "first", .n_dims = 1, .dims = (int64_t[]){LKS_BATCH}, .forward = first, .context = context};
    lks_node *h = lks_custom(&x, 1, &options);
    options.name = "second", options.n_dims = 0, options.forward = count_threads_here, options.context = n_threads;
    h = lks_custom(&h, 1, &options);
    assert_ok(lks_store_create(&c.store, h, NULL));
    assert_ok(
        lks_program_create(&c.program, c.store, &(lks_program_options){.batch = 1, .outputs = &h, .n_outputs = 1}));
    assert_ok(lks_program_set_input(c.program, x, data));
    return c;
}

static void destroy_chain(chain *c) {
    lks_program_destroy(c->program);
    lks_store_destroy(c->store);
    lks_graph_destroy(c->graph);
}

static void the_devices_threads_are_back_after_another_devices_program(void **state) {
    (void)state;
    lks_device *two;
    int n_inner = 0, n_outer = 0;
    (void)count_threads();
    assert_ok(lks_device_create(&two, &(lks_device_options){.num_threads = 2}));
    chain inner = build_chain(two, pass_on, NULL, &n_inner);
    chain outer = build_chain(NULL, run_another, inner.program, &n_outer);
    for (int i = 0; i < 2; i++) assert_ok(lks_program_forward(outer.program));
    assert_int_equal(n_inner, 2);
    assert_int_equal(n_outer, 1);
    destroy_chain(&outer);
    destroy_chain(&inner);
    lks_device_destroy(two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_compute_and_differentiate_as_the_librarys_own),
        cmocka_unit_test(likewise_in_f64_on_the_reference_device),
        cmocka_unit_test(likewise_on_a_gpu_by_way_of_the_host),
        cmocka_unit_test(evaluation_calls_forward_alone),
        cmocka_unit_test(a_function_that_fails_ends_the_run_and_is_named),
        cmocka_unit_test(a_loss_that_depends_on_one_without_backward_is_refused),
        cmocka_unit_test(one_that_reads_only_buffers_needs_no_backward),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(descriptions_depend_on_the_name),
        cmocka_unit_test(the_devices_threads_are_back_after_another_devices_program),
    };
    return run_group(tests);
}
