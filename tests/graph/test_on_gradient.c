/* The callback after the last write of each gradient, and the callback before the first use of each tensor. */
#include "operator_cases.h"

#include "graph/graph.h"

#include <lockstep/nn.h>

enum { N = 4, MAX_TENSORS = 16, MAX_COUNT = 4096 };

typedef struct fixture {
    lks_graph *graph;
    lks_node *loss;
    lks_store *store;
    lks_program *program;
} fixture;

typedef struct record {
    lks_store *store;
    int n_calls, failing_call; /* the number of the call that fails, from 1; 0: none */
    int order[MAX_TENSORS];
    float seen[MAX_TENSORS][MAX_COUNT];
} record;

static float images[N * 2 * 6 * 6];
static const int32_t labels[N] = {0, 2, 1, 2};

/* The model has convolutions, whose gradients may need a reorder, and batch norm, whose statistics are computed in the
 * forward pass. */
static fixture build(void) {
    fixture f = {.graph = lks_graph_create(lks_device_default(NULL))};
    lks_node *x = lks_input(f.graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 2, 6, 6});
    lks_node *y = lks_input(f.graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_conv2d(x, 16, 3, "conv", &(lks_conv2d_options){.window = {.padding = {1, 1}}});
    h = lks_relu(lks_batch_norm(h, "norm"));
    h = lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 16 * 6 * 6});
    f.loss = lks_cross_entropy(lks_linear(h, 3, "fc"), y);
    assert_ok(lks_store_create(&f.store, f.loss, NULL));
    assert_ok(
        lks_program_create(&f.program, f.store, &(lks_program_options){.batch = N, .is_training = 1, .loss = f.loss}));
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

/* One bias is added twice. */
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
    (void)lksi_error(LKS_ERR_FILE, "of long ago");
    assert_int_equal(lks_program_backward(f.program, 1), LKS_ERR_STATE);
    assert_int_equal(recorded.n_calls, 2);
    assert_non_null(strstr(lks_error_text(), "the callback of lks_on_gradient, called for '"));
    assert_non_null(strstr(lks_error_text(), "', returned "));
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

/* --- parameters that the loss does not depend on --- */

static const char *const devices[] = {"reference", "cpu"};

typedef struct two_losses {
    lks_device *device;
    lks_graph *graph;
    lks_node *x, *loss_of_a, *loss;
    lks_store *store;
    lks_program *of_a, *of_both;
} two_losses;

static lks_node *branch(lks_node *x, const char *layer, const char *norm) {
    return lks_mean(lks_batch_norm(lks_linear(x, 3, layer), norm), 0, NULL, 0);
}

static lks_program *train(const two_losses *f, lks_node *loss) {
    static const float rows[2 * 2] = {3, 4, -1, 2};
    lks_program *program;
    assert_ok(
        lks_program_create(&program, f->store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = loss}));
    assert_ok(lks_program_set_input(program, f->x, rows));
    return program;
}

static two_losses begin_two_losses(const char *device) {
    two_losses f = {0};
    assert_ok(lks_device_create(&f.device, &(lks_device_options){.name = device}));
    f.graph = lks_graph_create(f.device);
    f.x = lks_input(f.graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 2});
    return f;
}

static two_losses build_two_losses(const char *device) {
    two_losses f = begin_two_losses(device);
    f.loss_of_a = branch(f.x, "a", "norm_a");
    f.loss = lks_add(f.loss_of_a, branch(f.x, "b", "norm_b"));
    assert_ok(lks_store_create(&f.store, f.loss, NULL));
    f.of_a = train(&f, f.loss_of_a);
    f.of_both = train(&f, f.loss);
    return f;
}

static void destroy_two_losses(two_losses *f) {
    lks_program_destroy(f->of_a);
    lks_program_destroy(f->of_both);
    lks_store_destroy(f->store);
    lks_graph_destroy(f->graph);
    lks_device_destroy(f->device);
}

static void assert_gradient(const two_losses *f, const char *name, float expected) {
    float gradient[6];
    int index = lks_store_find(f->store, name);
    assert_ok(lks_store_read_gradient(f->store, index, gradient));
    for (int64_t i = 0; i < lks_store_parameter(f->store, index).count; i++) assert_true(gradient[i] == expected);
}

static void a_loss_clears_the_gradients_of_what_it_does_not_depend_on(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        two_losses f = build_two_losses(devices[i]);
        assert_ok(lks_program_forward(f.of_both));
        assert_ok(lks_program_backward(f.of_both, 2));
        assert_gradient(&f, "norm_b.bias", 2.0f / 3);
        assert_ok(lks_program_forward(f.of_a));
        assert_ok(lks_program_backward(f.of_a, 2));
        assert_gradient(&f, "norm_a.bias", 2.0f / 3);
        static const char *const others[] = {"b.weight", "b.bias", "norm_b.weight", "norm_b.bias"};
        for (int k = 0; k < 4; k++) assert_gradient(&f, others[k], 0);
        destroy_two_losses(&f);
    }
}

/* The average is moved to its current value. */
static void a_buffer_without_a_statistic_stays_as_it_is(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        two_losses f = build_two_losses(devices[i]);
        recorded = (record){.store = f.store};
        lks_on_gradient(f.of_a, remember, &recorded);
        assert_ok(lks_program_forward(f.of_a));
        assert_ok(lks_program_backward(f.of_a, 2));
        assert_gradient(&f, "norm_b.running_var", 2);
        assert_gradient(&f, "norm_b.running_mean", 0);
        assert_int_equal(recorded.n_calls, 8);
        destroy_two_losses(&f);
    }
}

static void a_buffer_is_a_constant_to_all_but_batch_norm(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        two_losses f = begin_two_losses(devices[i]);
        lks_node *factor = lks_buffer(f.graph, "factor", 1, (int64_t[]){2}, 5, 0.1);
        lks_node *loss = lks_sum(lks_mul(lks_linear(f.x, 2, "a"), factor), 0, NULL, 0);
        assert_ok(lks_store_create(&f.store, loss, NULL));
        f.of_a = train(&f, loss);
        assert_ok(lks_program_forward(f.of_a));
        assert_ok(lks_program_backward(f.of_a, 2));
        assert_gradient(&f, "a.bias", 20);
        assert_gradient(&f, "factor", 10);
        destroy_two_losses(&f);
    }
}

/* --- the order --- */

static lks_status note_order(void *context, int index) {
    record *r = context;
    r->order[r->n_calls++] = index;
    return LKS_OK;
}

/* At batch 1 the gradient of `shift` is that of the sum itself, which the layer below reads, too. */
static void the_order_is_the_same_at_every_batch(void **state) {
    (void)state;
    static const float data[5 * 16 * 4 * 4];
    static const int32_t classes[5];
    static const int batches[] = {2, 1, 5};
    static record orders[3];
    for (int i = 0; i < 2; i++) {
        two_losses f = {0};
        assert_ok(lks_device_create(&f.device, &(lks_device_options){.name = devices[i]}));
        f.graph = lks_graph_create(f.device);
        f.x = lks_input(f.graph, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 16, 4, 4});
        lks_node *label = lks_input(f.graph, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
        lks_node *shift = lks_parameter(f.graph, "shift", 2, (int64_t[]){1, 4}, (lks_initializer){0});
        lks_node *h = lks_relu(lks_batch_norm(lks_conv2d(f.x, 16, 3, "conv", NULL), "norm"));
        h = lks_linear(lks_reshape(h, 2, (int64_t[]){LKS_BATCH, 16 * 2 * 2}), 4, "fc");
        f.loss = lks_cross_entropy(lks_add(h, shift), label);
        assert_ok(lks_store_create(&f.store, f.loss, NULL));
        for (int k = 0; k < 3; k++) {
            lks_program *program;
            orders[k] = (record){.store = f.store};
            assert_ok(lks_program_create(
                &program, f.store, &(lks_program_options){.batch = batches[k], .is_training = 1, .loss = f.loss}));
            assert_ok(lks_program_set_input(program, f.x, data));
            assert_ok(lks_program_set_input(program, label, classes));
            lks_on_gradient(program, note_order, &orders[k]);
            assert_ok(lks_program_forward(program));
            assert_ok(lks_program_backward(program, 1));
            assert_int_equal(orders[k].n_calls, lks_store_n_tensors(f.store));
            assert_memory_equal(orders[k].order, orders[0].order, sizeof orders[0].order);
            lks_program_destroy(program);
        }
        destroy_two_losses(&f);
    }
}

/* --- an update in progress while the next pass begins --- */

typedef struct update_under_way {
    lks_store *store;
    float values[MAX_TENSORS][MAX_COUNT]; /* the values after settling */
    int order[MAX_TENSORS + 1], n_calls, failing_call;
} update_under_way;

static update_under_way under_way;

static float *values_of(const lks_store *store, int index, size_t *count) {
    size_t offset;
    lksi_store_place(store, index, &offset, count);
    assert_true(*count <= MAX_COUNT);
    return (float *)lksi_store_values(store) + offset;
}

static lks_status settle(void *context, int index) {
    update_under_way *u = context;
    u->order[u->n_calls++] = index;
    if (u->n_calls == u->failing_call) return lksi_error(LKS_ERR_PEER, "rank 1 was lost");
    for (int i = index < 0 ? 0 : index; i <= index || (index < 0 && i < lks_store_n_tensors(u->store)); i++) {
        size_t count;
        float *values = values_of(u->store, i, &count);
        memcpy(values, u->values[i], count * sizeof *values);
    }
    return LKS_OK;
}

/* All values are NaN until they are settled. */
static void begin_update(lks_store *store) {
    for (int i = 0; i < lks_store_n_tensors(store); i++) {
        size_t count;
        float *values = values_of(store, i, &count);
        memcpy(under_way.values[i], values, count * sizeof *values);
        for (size_t k = 0; k < count; k++) values[k] = NAN;
    }
    under_way.store = store;
    under_way.n_calls = under_way.failing_call = 0;
    lksi_store_set_settle(store, settle, &under_way);
}

static void what_a_step_touches_is_settled_before_it(void **state) {
    (void)state;
    fixture f = build();
    int n_tensors = lks_store_n_tensors(f.store), n_seen[MAX_TENSORS] = {0};
    assert_ok(lks_program_forward(f.program));
    double loss = lks_program_scalar(f.program, f.loss);
    begin_update(f.store);
    assert_ok(lks_program_forward(f.program));
    assert_true(lks_program_scalar(f.program, f.loss) == loss);
    for (int i = 0; i < under_way.n_calls; i++) n_seen[under_way.order[i]]++;
    for (int i = 0; i < n_tensors; i++) assert_int_equal(n_seen[i], 1); /* the pass writes batch statistics, too */
    assert_string_equal(lks_store_parameter(f.store, under_way.order[0]).name, "conv.weight");
    assert_ok(lks_program_backward(f.program, 1));
    assert_int_equal(under_way.n_calls, n_tensors + 1);
    assert_int_equal(under_way.order[n_tensors], -1);
    lksi_store_set_settle(f.store, NULL, NULL);
    assert_ok(lks_program_forward(f.program));
    assert_int_equal(under_way.n_calls, n_tensors + 1);
    destroy(&f);
}

static void who_reads_or_writes_a_store_settles_all(void **state) {
    (void)state;
    fixture f = build();
    static float values[MAX_COUNT];
    size_t count;
    begin_update(f.store);
    assert_ok(lks_store_read(f.store, 0, values));
    assert_ok(lks_store_write(f.store, 0, values));
    assert_ok(lks_store_read_gradient(f.store, 0, values));
    assert_non_null(lks_store_gradient(f.store, 0, &count));
    assert_int_equal(under_way.n_calls, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(under_way.order[i], -1);
    destroy(&f);
}

static void an_update_that_fails_ends_the_pass(void **state) {
    (void)state;
    fixture f = build();
    static float values[MAX_COUNT];
    size_t count;
    begin_update(f.store);
    under_way.failing_call = 2;
    assert_int_equal(lks_program_forward(f.program), LKS_ERR_PEER);
    assert_string_equal(lks_error_text(), "rank 1 was lost");
    assert_int_equal(lks_program_backward(f.program, 1), LKS_ERR_STATE);
    under_way.failing_call = 3;
    assert_int_equal(lks_store_read(f.store, 0, values), LKS_ERR_PEER);
    under_way.failing_call = 4;
    assert_null(lks_store_gradient(f.store, 0, &count));
    destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gradient_is_told_once_when_it_is_final),
        cmocka_unit_test(a_gradient_may_be_changed_once_it_is_told),
        cmocka_unit_test(a_callback_that_fails_ends_the_pass),
        cmocka_unit_test(there_is_no_gradient_outside_the_store),
        cmocka_unit_test(a_loss_clears_the_gradients_of_what_it_does_not_depend_on),
        cmocka_unit_test(a_buffer_without_a_statistic_stays_as_it_is),
        cmocka_unit_test(a_buffer_is_a_constant_to_all_but_batch_norm),
        cmocka_unit_test(the_order_is_the_same_at_every_batch),
        cmocka_unit_test(what_a_step_touches_is_settled_before_it),
        cmocka_unit_test(who_reads_or_writes_a_store_settles_all),
        cmocka_unit_test(an_update_that_fails_ends_the_pass),
    };
    return run_group(tests);
}
