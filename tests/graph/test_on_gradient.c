/* The callback at each gradient's last write. */
#include "operator_cases.h"

#include <lockstep/nn.h>

enum { N = 4, MAX_TENSORS = 16, MAX_COUNT = 4096 };

typedef struct fixture {
    lks_graph *graph;
    lks_store *store;
    lks_program *program;
} fixture;

typedef struct record {
    lks_store *store;
    int n_calls, failing_call; /* which call fails, counted from 1; 0: none */
    int order[MAX_TENSORS];
    float seen[MAX_TENSORS][MAX_COUNT];
} record;

static float images[N * 2 * 6 * 6];
static const int32_t labels[N] = {0, 2, 1, 2};

/* Convolutions, whose gradients may need a reorder, and batch norm, whose statistics come with the forward pass. */
static fixture build(void) {
    fixture f = {.graph = lks_graph_create(lks_device_default(NULL))};
    lks_node *x = lks_input(f.graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 2, 6, 6});
    lks_node *y = lks_input(f.graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_conv2d(x, 16, 3, "conv", &(lks_conv2d_options){.window = {.padding = {1, 1}}});
    h = lks_relu(lks_batch_norm(h, "norm"));
    h = lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 16 * 6 * 6});
    lks_node *loss = lks_cross_entropy(lks_linear(h, 3, "fc"), y);
    assert_ok(lks_store_create(&f.store, loss, NULL));
    assert_ok(
        lks_program_create(&f.program, f.store, &(lks_program_options){.batch = N, .is_training = 1, .loss = loss}));
    assert_ok(lks_program_set_input(f.program, x, images));
    assert_ok(lks_program_set_input(f.program, y, labels));
    for (int i = 0; i < N * 2 * 6 * 6; i++) images[i] = (float)(i % 13) - 6;
    return f;
}

static void destroy(fixture *f) {
    lks_program_destroy(f->program);
    lks_store_destroy(f->store);
    lks_graph_destroy(f->graph);
}

static lks_status remember(void *context, int index) {
    record *r = context;
    size_t count;
    const float *gradient = lks_store_gradient(r->store, index, &count);
    assert_non_null(gradient);
    assert_true(count <= MAX_COUNT);
    r->order[r->n_calls++] = index;
    memcpy(r->seen[index], gradient, count * sizeof *gradient);
    return r->n_calls == r->failing_call ? LKS_ERR_STATE : LKS_OK;
}

static record recorded;

static void each_gradient_is_told_once_when_it_is_final(void **state) {
    (void)state;
    fixture f = build();
    recorded = (record){.store = f.store};
    lks_on_gradient(f.program, remember, &recorded);
    assert_ok(lks_program_forward(f.program));
    assert_int_equal(recorded.n_calls, 0);
    assert_ok(lks_program_backward(f.program, 1));
    assert_int_equal(recorded.n_calls, lks_store_n_tensors(f.store));
    int n_seen[MAX_TENSORS] = {0};
    for (int i = 0; i < recorded.n_calls; i++) n_seen[recorded.order[i]]++;
    for (int i = 0; i < lks_store_n_tensors(f.store); i++) {
        size_t count;
        const float *final = lks_store_gradient(f.store, i, &count);
        assert_int_equal(n_seen[i], 1);
        assert_memory_equal(recorded.seen[i], final, count * sizeof *final);
    }
    lks_on_gradient(f.program, NULL, NULL);
    assert_ok(lks_program_forward(f.program));
    assert_ok(lks_program_backward(f.program, 1));
    assert_int_equal(recorded.n_calls, lks_store_n_tensors(f.store));
    destroy(&f);
}

static lks_node *residual_block(const operator_leaves *l) {
    lks_conv2d_options same = {.window = {.padding = {1, 1}}};
    lks_node *x = batch_tensor(l, "image", 3, (int64_t[]){2, 6, 6});
    x = lks_relu(lks_batch_norm(lks_conv2d(x, 16, 3, "conv1", &same), "norm1"));
    lks_node *h = lks_relu(lks_batch_norm(lks_conv2d(x, 16, 3, "conv2", &same), "norm2"));
    return lks_layer_norm(lks_reshape(lks_add(x, h), 2, (int64_t[]){LKS_BATCH, 16 * 6 * 6}), "layer_norm");
}

/* One bias, added twice. */
static lks_node *shared_bias(const operator_leaves *l) {
    lks_conv2d_options same = {.window = {.padding = {1, 1}}, .no_bias = 1};
    lks_node *h = lks_conv2d(batch_tensor(l, "image", 3, (int64_t[]){16, 6, 6}), 16, 3, "conv", &same);
    h = lks_linear(lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 16 * 6 * 6}), 7, "fc");
    lks_node *bias = normal_parameter(l, "bias", 1, (int64_t[]){7});
    return lks_add(lks_tanh(lks_add(h, bias)), bias);
}

static void a_gradient_may_be_changed_once_it_is_told(void **state) {
    (void)state;
    static const operator_case cases[] = {{"residual block", residual_block, 0}, {"shared bias", shared_bias, 0}};
    cases_let_gradients_be_changed_once_told(cases, 2);
}

static void a_callback_that_fails_ends_the_pass(void **state) {
    (void)state;
    fixture f = build();
    recorded = (record){.store = f.store, .failing_call = 2};
    lks_on_gradient(f.program, remember, &recorded);
    assert_ok(lks_program_forward(f.program));
    assert_int_equal(lks_program_backward(f.program, 1), LKS_ERR_STATE);
    assert_int_equal(recorded.n_calls, 2);
    destroy(&f);
}

static void there_is_no_gradient_outside_the_store(void **state) {
    (void)state;
    fixture f = build();
    size_t count;
    assert_null(lks_store_gradient(f.store, -1, &count));
    assert_null(lks_store_gradient(f.store, lks_store_n_tensors(f.store), &count));
    destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gradient_is_told_once_when_it_is_final),
        cmocka_unit_test(a_gradient_may_be_changed_once_it_is_told),
        cmocka_unit_test(a_callback_that_fails_ends_the_pass),
        cmocka_unit_test(there_is_no_gradient_outside_the_store),
    };
    return run_group(tests);
}
