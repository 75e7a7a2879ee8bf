/* Gradients of inputs equal the gradients of parameters in their place. */
#include "cuda/cuda_test.h"

#include "graph/graph.h"

#include <lockstep/nn.h>
#include <lockstep/operators.h>
#include <lockstep/parallel.h>
#include <math.h>

enum { N = 3, COUNT = N * 2 * 6 * 6, MOST_STORED = 1 << 16 };

static lks_device *device; /* NULL: the default one */
static float values[COUNT], wanted[COUNT];
static const int32_t labels[N] = {0, 2, 1};

/* x (N,2,6,6) -> loss */
typedef lks_node *(*model)(lks_node *x, lks_node *y);

static lks_node *flat(lks_node *x) { return lks_reshape(x, 2, (int64_t[]){lks_node_dim(x, 0), 2 * 6 * 6}); }
static lks_node *layers(lks_node *x, lks_node *y) {
    return lks_cross_entropy(lks_linear(lks_relu(lks_linear(flat(x), 16, "fc1")), 3, "fc2"), y);
}
static lks_node *convolutions(lks_node *x, lks_node *y) {
    lks_node *h = lks_conv2d(x, 16, 3, "conv", &(lks_conv2d_options){.window = {.padding = {1, 1}}});
    h = lks_max_pool2d(lks_relu(lks_batch_norm(h, "norm")), 2, 2, NULL);
    return lks_cross_entropy(lks_linear(lks_reshape(h, 2, (int64_t[]){lks_node_dim(x, 0), 16 * 9}), 3, "fc"), y);
}
static lks_node *used_twice(lks_node *x, lks_node *y) {
    lks_node *h = lks_mul(lks_tanh(x), lks_sigmoid(x));
    return lks_cross_entropy(lks_linear(flat(lks_add(x, h)), 3, "fc"), y);
}
/* The gradient of the sum is the gradient of both the bias and the input. */
static lks_node *added(lks_node *x, lks_node *y) {
    lks_node *bias =
        lks_parameter(lks_node_graph(x), "bias", 4, (int64_t[]){N, 2, 6, 6}, (lks_initializer){LKS_INITIAL_NORMAL, 1});
    return lks_cross_entropy(lks_linear(flat(lks_add(x, bias)), 3, "fc"), y);
}
/* As above, but the input's gradient is a reshaped view. */
static lks_node *added_flat(lks_node *x, lks_node *y) {
    lks_node *bias =
        lks_parameter(lks_node_graph(x), "bias", 2, (int64_t[]){N, 72}, (lks_initializer){LKS_INITIAL_NORMAL, 1});
    return lks_cross_entropy(lks_linear(lks_add(flat(x), bias), 3, "fc"), y);
}
static lks_node *sum(lks_node *x, lks_node *y) {
    lks_node *scale =
        lks_parameter(lks_node_graph(x), "scale", 1, (int64_t[]){1}, (lks_initializer){LKS_INITIAL_CONSTANT, 3});
    (void)y;
    return lks_add(lks_sum(x, 0, NULL, 0), lks_sum(scale, 0, NULL, 0));
}

static const struct {
    const char *name;
    model model;
    bool is_fixed; /* the model has a fixed batch size */
} models[] = {{"layers", layers, false}, {"convolutions", convolutions, false}, {"used twice", used_twice, false},
              {"added", added, true},    {"added flat", added_flat, true},      {"sum", sum, false}};

typedef struct built {
    lks_graph *graph;
    lks_node *x, *y, *loss;
    lks_store *store;
    lks_program *program;
} built;

static built build(size_t i, bool is_parameter) {
    int64_t n = is_parameter || models[i].is_fixed ? N : LKS_BATCH;
    built b = {.graph = lks_graph_create(device)};
    b.x = is_parameter ? lks_parameter(b.graph, "x", 4, (int64_t[]){N, 2, 6, 6}, (lks_initializer){LKS_INITIAL_ZERO, 0})
                       : lks_input(b.graph, "x", LKS_F32, 4, (int64_t[]){n, 2, 6, 6});
    b.y = lks_input(b.graph, "y", LKS_I32, 1, &n);
    b.loss = models[i].model(b.x, b.y);
    assert_ok(lks_store_create(&b.store, b.loss, NULL));
    lks_program_options options = {.batch = N, .is_training = 1, .loss = b.loss};
    if (!is_parameter) options.differentiated = &b.x, options.n_differentiated = 1;
    assert_ok(lks_program_create(&b.program, b.store, &options));
    assert_ok(lks_program_set_input(b.program, b.y, labels));
    if (is_parameter)
        assert_ok(lks_store_write(b.store, lks_store_find(b.store, "x"), values));
    else
        assert_ok(lks_program_set_input(b.program, b.x, values));
    assert_ok(lks_program_forward(b.program));
    return b;
}

static void destroy(built *b) {
    lks_program_destroy(b->program);
    lks_store_destroy(b->store);
    lks_graph_destroy(b->graph);
}

/* A callback may change a final gradient. This must not affect the gradient of the input. */
static lks_status spoil(void *context, int index) {
    size_t count;
    float *gradient = lks_store_gradient(context, index, &count);
    for (size_t i = 0; i < count; i++) gradient[i] = NAN;
    return LKS_OK;
}

static void compare(const char *name, const float *gradient, double factor) {
    for (int i = 0; i < COUNT; i++) {
        double expected = factor * (double)wanted[i], difference = fabs((double)gradient[i] - expected);
        if (!(difference <= 1e-6 + 1e-5 * fabs(expected)))
            fail_msg("%s: element %d is %g, not %g", name, i, (double)gradient[i], expected);
    }
}

static void an_inputs_gradient_is_that_of_a_parameter_in_its_place(void **state) {
    (void)state;
    for (int i = 0; i < COUNT; i++) values[i] = (float)(i * 7 % 19) / 8 - 1;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        built twin = build(i, true), b = build(i, false);
        assert_ok(lks_program_backward(twin.program, 1));
        assert_ok(lks_store_read_gradient(twin.store, lks_store_find(twin.store, "x"), wanted));
        assert_null(lks_program_input_gradient(b.program, b.x)); /* no backward pass ran yet */
        assert_ok(lks_program_backward(b.program, 1));
        assert_null(lks_program_input_gradient(b.program, b.y));
        compare(models[i].name, lks_program_input_gradient(b.program, b.x), 1);
        if (device == NULL) lks_on_gradient(b.program, spoil, b.store);
        assert_ok(lks_program_forward(b.program));
        assert_null(lks_program_input_gradient(b.program, b.x));
        assert_ok(lks_program_backward(b.program, 2));
        compare(models[i].name, lks_program_input_gradient(b.program, b.x), 2);
        destroy(&twin), destroy(&b);
    }
}

/* A program that differentiates inputs leaves the same gradients in the store as one that does not. */
static void parameters_gradients_are_what_they_are_without(void **state) {
    static float with[MOST_STORED], without[MOST_STORED];
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        built b = build(i, false);
        lks_program *plain;
        assert_ok(
            lks_program_create(&plain, b.store, &(lks_program_options){.batch = N, .is_training = 1, .loss = b.loss}));
        assert_ok(lks_program_set_input(plain, b.x, values));
        assert_ok(lks_program_set_input(plain, b.y, labels));
        assert_ok(lks_program_forward(plain));
        for (int k = 0; k < lks_store_n_parameters(b.store); k++) {
            assert_true(lks_store_parameter(b.store, k).count <= MOST_STORED);
            assert_ok(lks_program_forward(b.program));
            assert_ok(lks_program_backward(b.program, 1));
            assert_ok(lks_store_read_gradient(b.store, k, with));
            assert_ok(lks_program_forward(plain));
            assert_ok(lks_program_backward(plain, 1));
            assert_ok(lks_store_read_gradient(b.store, k, without));
            assert_memory_equal(with, without, (size_t)lks_store_parameter(b.store, k).count * sizeof *with);
        }
        lks_program_destroy(plain);
        destroy(&b);
    }
}

/* Two stages of a pipeline on one rank. The first stage's loss is chosen so that the gradient of h is the one that the
 * second stage returned. */
static void stages_give_the_gradients_of_the_whole(void **state) {
    (void)state;
    built whole = build(0, false);
    assert_ok(lks_program_backward(whole.program, N));
    lks_graph *g1 = lks_graph_create(device), *g2 = lks_graph_create(device);
    lks_node *x = lks_input(g1, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 2, 6, 6});
    lks_node *dh = lks_input(g1, "dh", LKS_F32, 2, (int64_t[]){LKS_BATCH, 16});
    lks_node *h = lks_relu(lks_linear(flat(x), 16, "fc1"));
    lks_node *first_loss = lks_sum(lks_mul(h, dh), 0, NULL, 0);
    lks_node *h_in = lks_input(g2, "h", LKS_F32, 2, (int64_t[]){LKS_BATCH, 16});
    lks_node *y = lks_input(g2, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(h_in, 3, "fc2"), y);
    lks_store *s1, *s2;
    lks_program *p1, *p2;
    float came[N * 16] = {0}, gradient[16 * 72], expected[16 * 72];
    assert_ok(lks_store_create(&s1, first_loss, NULL));
    assert_ok(lks_store_create(&s2, loss, NULL));
    assert_ok(lks_program_create(
        &p1, s1,
        &(lks_program_options){.batch = N, .is_training = 1, .loss = first_loss, .outputs = &h, .n_outputs = 1}));
    assert_ok(lks_program_create(
        &p2, s2,
        &(lks_program_options){
            .batch = N, .is_training = 1, .loss = loss, .differentiated = &h_in, .n_differentiated = 1}));
    assert_ok(lks_program_set_input(p1, x, values));
    assert_ok(lks_program_set_input(p1, dh, came));
    assert_ok(lks_program_set_input(p2, y, labels));
    assert_ok(lks_program_forward(p1));
    assert_ok(lks_program_set_input(p2, h_in, lks_program_output(p1, h)));
    assert_ok(lks_program_forward(p2));
    assert_ok(lks_program_backward(p2, N));
    memcpy(came, lks_program_input_gradient(p2, h_in), sizeof came);
    assert_ok(lks_program_set_input(p1, dh, came)); /* the input must be set again for a GPU */
    assert_ok(lks_program_backward(p1, 1));
    static const char *const names[] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
    for (int i = 0; i < 4; i++) {
        lks_store *stage = i < 2 ? s1 : s2;
        int index = lks_store_find(stage, names[i]);
        assert_ok(lks_store_read_gradient(stage, index, gradient));
        assert_ok(lks_store_read_gradient(whole.store, lks_store_find(whole.store, names[i]), expected));
        for (int k = 0; k < lks_store_parameter(stage, index).count; k++)
            if (!(fabsf(gradient[k] - expected[k]) <= 1e-5f * (1 + fabsf(expected[k]))))
                fail_msg("%s, element %d: %g, not %g", names[i], k, (double)gradient[k], (double)expected[k]);
    }
    lks_program_destroy(p1), lks_program_destroy(p2);
    lks_store_destroy(s1), lks_store_destroy(s2);
    lks_graph_destroy(g1), lks_graph_destroy(g2);
    destroy(&whole);
}

/* The models are a pipeline stage without weights, and a model with frozen weights. Without parameters a training
 * program is refused, unless it differentiates inputs. An optimizer is always refused. */
static void a_model_without_parameters_has_gradients_of_inputs(void **state) {
    (void)state;
    for (int is_frozen = 0; is_frozen < 2; is_frozen++) {
        lks_graph *g = lks_graph_create(device);
        lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 4}), *h = lks_relu(x);
        if (is_frozen) h = lks_linear_function(x, lks_buffer(g, "weight", 2, (int64_t[]){3, 4}, 0.5, 0), NULL);
        lks_node *loss = lks_sum(h, 0, NULL, 0);
        const float data[N * 4] = {1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6};
        lks_store *store;
        lks_program *program = NULL;
        lks_group *world;
        lks_distributed_optimizer *optimizer;
        lks_optimizer sgd = lks_sgd(NULL);
        lks_program_options options = {.batch = N, .is_training = 1, .loss = loss};
        assert_ok(lks_store_create(&store, loss, NULL));
        assert_int_equal(lks_store_n_parameters(store), 0);
        assert_int_equal(lks_program_create(&program, store, &options), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), "the loss depends on no parameter"));
        options.differentiated = &x, options.n_differentiated = 1;
        assert_ok(lks_program_create(&program, store, &options));
        assert_ok(lks_program_set_input(program, x, data));
        assert_ok(lks_program_forward(program));
        assert_ok(lks_program_backward(program, 2));
        const float *dx = lks_program_input_gradient(program, x);
        for (int i = 0; i < N * 4; i++) {
            const float expected = is_frozen ? 3 : data[i] > 0 ? 2 : 0;
            assert_float_equal(dx[i], expected, 1e-6);
        }
        assert_ok(lks_init(&world, NULL));
        assert_int_equal(lks_distributed_optimizer_create(&optimizer, world, store, &sgd), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), "the loss depends on no parameter"));
        lks_group_destroy(world); /* dead now */
        assert_ok(lks_init(&world, NULL));
        lks_store *shared;
        assert_int_equal(lks_distributed_store_create(&shared, world, loss, NULL), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), "the loss depends on no parameter"));
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_group_destroy(world);
        lks_graph_destroy(g);
    }
}

static lks_status note_training(const lks_custom_call *call) {
    *(int *)call->context = call->is_training;
    return LKS_OK;
}

/* The gradient of the loss with respect to itself is the factor, which no kernel computes. */
static void a_loss_that_is_an_input_has_a_backward_pass(void **state) {
    (void)state;
    const float number = 3;
    int was_training = 0;
    lks_graph *g = lks_graph_create(device);
    lks_node *x = lks_input(g, "x", LKS_F32, 0, NULL);
    lks_node *y =
        lks_custom(&x, 1, &(lks_custom_options){.name = "y", .forward = note_training, .context = &was_training});
    lks_store *store;
    lks_program *program;
    assert_ok(lks_store_create(&store, x, NULL));
    assert_ok(lks_program_create(&program, store,
                                 &(lks_program_options){.batch = 1,
                                                        .is_training = 1,
                                                        .loss = x,
                                                        .outputs = &y,
                                                        .n_outputs = 1,
                                                        .differentiated = &x,
                                                        .n_differentiated = 1}));
    assert_non_null(lksi_program_batch_note(program));
    assert_ok(lks_program_set_input(program, x, &number));
    assert_ok(lks_program_forward(program));
    assert_ok(lks_program_backward(program, 2));
    assert_true(*(const float *)lks_program_input_gradient(program, x) == 2 && was_training);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
}

static void likewise_on_a_gpu(void **state) {
    use_gpu();
    device = create_cuda();
    an_inputs_gradient_is_that_of_a_parameter_in_its_place(state);
    stages_give_the_gradients_of_the_whole(state);
    a_model_without_parameters_has_gradients_of_inputs(state);
    a_loss_that_is_an_input_has_a_backward_pass(state);
    lks_device_destroy(device);
    device = NULL;
}

static void refuse(const built *b, lks_program_options options, const char *text) {
    lks_program *program = NULL;
    assert_int_equal(lks_program_create(&program, b->store, &options), LKS_ERR_ARGUMENT);
    assert_null(program);
    if (strstr(lks_error_text(), text) == NULL) fail_msg("'%s' does not say '%s'", lks_error_text(), text);
}

static void what_is_no_input_of_the_loss_is_refused(void **state) {
    (void)state;
    built b = build(0, false), other = build(0, false);
    lks_node *idle = lks_input(b.graph, "idle", LKS_F32, 1, (int64_t[]){4}), *inner = lks_relu(b.x), *none = NULL;
    lks_node *read = lks_detach(b.x), *detached = lks_sum(lks_mul(read, read), 0, NULL, 0);
    lks_program_options good = {.batch = N, .is_training = 1, .loss = b.loss, .n_differentiated = 1};
    lks_program_options o = good;
    refuse(&b, o, "a program with 1 differentiated inputs, but differentiated is NULL");
    o.differentiated = &idle;
    refuse(&b, o, "no gradient flows from the loss to input 'idle'");
    o.differentiated = &b.y;
    refuse(&b, o, "differentiated input 0 is not an input of a floating type");
    o.differentiated = &inner;
    refuse(&b, o, "differentiated input 0 is not an input of a floating type");
    o.differentiated = &none;
    refuse(&b, o, "differentiated input 0 is NULL");
    o.differentiated = &other.x;
    refuse(&b, o, "differentiated input 0 is a node of another graph than the store's");
    o.differentiated = &b.x, o.is_training = 0;
    refuse(&b, o, "only a training program can differentiate inputs");
    o = good, o.differentiated = &b.x, o.n_differentiated = -1;
    refuse(&b, o, "a program with -1 differentiated inputs");
    o = good, o.differentiated = &b.x, o.loss = detached;
    refuse(&b, o, "no gradient flows from the loss to input 'x'");
    o = good, o.differentiated = &b.x, o.loss = lks_add(b.loss, lks_scale(detached, 0));
    lks_program *program;
    assert_ok(lks_program_create(&program, b.store, &o)); /* one path of gradients is enough */
    lks_program_destroy(program);
    assert_null(lks_program_input_gradient(NULL, b.x));
    destroy(&b), destroy(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_inputs_gradient_is_that_of_a_parameter_in_its_place),
        cmocka_unit_test(parameters_gradients_are_what_they_are_without),
        cmocka_unit_test(stages_give_the_gradients_of_the_whole),
        cmocka_unit_test(a_model_without_parameters_has_gradients_of_inputs),
        cmocka_unit_test(a_loss_that_is_an_input_has_a_backward_pass),
        cmocka_unit_test(likewise_on_a_gpu),
        cmocka_unit_test(what_is_no_input_of_the_loss_is_refused),
    };
    return run_group(tests);
}
