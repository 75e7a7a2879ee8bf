/* labels: no-tsan */
/* LSTM and RNN: finite differences, device against device, PyTorch's numbers, and errors. */
#include "operator_cases.h"

#include <lockstep/nn.h>

/* --- gradients --- */

/* A parameter whose values keep the gates out of saturation. */
static lks_node *weight(const operator_leaves *l, const char *name, int n_dims, const int64_t *dims) {
    return lks_parameter(l->graph, name, n_dims, dims,
                         (lks_initializer){LKS_INITIAL_NORMAL, n_dims == 1 ? 0.4 : 1.2 / sqrt((double)dims[1])});
}

typedef struct layer {
    lks_node *x, *h0, *c0, *w_ih, *w_hh, *b_ih, *b_hh;
} layer;

/* A layer with T steps, K features and M units. x and the states depend on the batch and on parameters. */
static layer make_layer(const operator_leaves *l, int64_t n_gates, int64_t t, int64_t k, int64_t m) {
    return (layer){.x = batch_tensor(l, "x0", 2, (int64_t[]){t, k}),
                   .h0 = lks_tanh(batch_tensor(l, "h0", 1, (int64_t[]){m})),
                   .c0 = n_gates == 4 ? batch_tensor(l, "c0", 1, (int64_t[]){m}) : NULL,
                   .w_ih = weight(l, "w_ih", 2, (int64_t[]){n_gates * m, k}),
                   .w_hh = weight(l, "w_hh", 2, (int64_t[]){n_gates * m, m}),
                   .b_ih = weight(l, "b_ih", 1, (int64_t[]){n_gates * m}),
                   .b_hh = weight(l, "b_hh", 1, (int64_t[]){n_gates * m})};
}

static lks_node *lstm(const operator_leaves *l, int64_t t, int64_t k, int64_t m) {
    layer a = make_layer(l, 4, t, k, m);
    return lks_lstm_function(a.x, a.h0, a.c0, a.w_ih, a.w_hh, a.b_ih, a.b_hh).y;
}

static lks_node *rnn(const operator_leaves *l, int64_t t, int64_t k, int64_t m, int is_relu) {
    layer a = make_layer(l, 1, t, k, m);
    return lks_rnn_function(a.x, a.h0, a.w_ih, a.w_hh, a.b_ih, a.b_hh, is_relu).y;
}

static lks_node *small_lstm(const operator_leaves *l) { return lstm(l, 4, 3, 5); }
static lks_node *lstm_of_one_step(const operator_leaves *l) { return lstm(l, 1, 2, 3); }
static lks_node *lstm_of_one_unit(const operator_leaves *l) { return lstm(l, 3, 1, 1); }
static lks_node *small_tanh_rnn(const operator_leaves *l) { return rnn(l, 4, 3, 5, 0); }
static lks_node *small_relu_rnn(const operator_leaves *l) { return rnn(l, 4, 3, 5, 1); }

static lks_node *two_lstm_layers(const operator_leaves *l) {
    layer a = make_layer(l, 4, 3, 4, 4);
    lks_node *y = lks_lstm_function(a.x, a.h0, a.c0, a.w_ih, a.w_hh, a.b_ih, a.b_hh).y;
    return lks_lstm_function(y, a.h0, a.c0, a.w_ih, a.w_hh, a.b_ih, a.b_hh).y; /* the same weights again */
}

static const operator_case small_cases[] = {
    {"lstm", small_lstm, 0},
    {"lstm of one step", lstm_of_one_step, 0},
    {"lstm of one unit", lstm_of_one_unit, 0},
    {"two lstm layers", two_lstm_layers, 0},
    {"tanh rnn", small_tanh_rnn, 0},
    {"relu rnn", small_relu_rnn, 0},
};

static void gradients_match_finite_differences(void **state) {
    (void)state;
    cases_match_finite_differences(small_cases, sizeof small_cases / sizeof small_cases[0]);
}

/* At these sizes the cpu device takes other paths: several panels of columns, rows of whole KiB. */
static lks_node *lstm_with_panels(const operator_leaves *l) { return lstm(l, 3, 17, 37); }
static lks_node *lstm_with_long_rows(const operator_leaves *l) { return lstm(l, 2, 256, 64); }
static lks_node *lstm_deeper_than_a_block(const operator_leaves *l) { return lstm(l, 2, 5, 300); }
static lks_node *rnn_with_panels(const operator_leaves *l) { return rnn(l, 3, 17, 70, 0); }
static lks_node *rnn_with_long_rows(const operator_leaves *l) { return rnn(l, 2, 9, 256, 0); }

/* Sums of some hundred terms in f32, carried through the steps, and tanh with an error of 4 units in the last place. */
#define CARRIED 2e-5

static const operator_case large_cases[] = {
    {"lstm with panels", lstm_with_panels, CARRIED},
    {"lstm with long rows", lstm_with_long_rows, CARRIED},
    {"lstm deeper than a block", lstm_deeper_than_a_block, CARRIED},
    {"rnn with panels", rnn_with_panels, CARRIED},
    {"rnn with long rows", rnn_with_long_rows, CARRIED},
};

static void the_cpu_device_agrees_with_the_reference_device(void **state) {
    (void)state;
    cases_agree_between_devices(small_cases, sizeof small_cases / sizeof small_cases[0]);
    cases_agree_between_devices(large_cases, sizeof large_cases / sizeof large_cases[0]);
}

static void gradients_may_be_changed_once_they_are_told(void **state) {
    (void)state;
    cases_let_gradients_be_changed_once_told(small_cases, sizeof small_cases / sizeof small_cases[0]);
    cases_let_gradients_be_changed_once_told(large_cases, sizeof large_cases / sizeof large_cases[0]);
}

/* --- PyTorch's numbers --- */

/* Element i of tensor number p is sin(1 + p + 0.7 i) / 2, the loss is the mean of y^2, N 2, T 3, K 3, M 2. The figures
 * are sums of (i + 1) v[i] over a tensor's elements, computed in float64 by PyTorch 1.13's torch.nn.LSTM and
 * torch.nn.RNN. */
typedef struct torch_figures {
    const char *name;
    lks_recurrent_kind kind;
    double loss, y, dx, dh0, dc0, dw_ih, dw_hh, db;
} torch_figures;

static const torch_figures torch[] = {
    {"lstm", LKS_LSTM, 0.01322407836369, -6.969192476284, -0.02679254226912, 0.01066076734398, -0.04202852441802,
     -0.2976611109144, -0.03196672904452, 0.001191278981261},
    {"tanh rnn", LKS_RNN_TANH, 0.2985394528616, 31.95862268151, 1.891391977896, 0.3690440536542, 0, -0.6741961230801,
     0.7513096818169, 0.7651164805763},
    {"relu rnn", LKS_RNN_RELU, 0.4238478578252, 41.20917434916, 5.346467415386, 0.469890788749, 0, 0.09801535169409,
     2.994194400961, 2.357637109881},
};

static const char *const tensor_names[] = {"x", "h0", "c0", "w_ih", "w_hh", "b_ih", "b_hh"};

static void fill_as_torch(lks_store *store) {
    for (int p = 0; p < 7; p++) {
        int index = lks_store_find(store, tensor_names[p]);
        if (index < 0) continue; /* an RNN has no c0 */
        double values[64];
        lks_parameter_view view = lks_store_parameter(store, index);
        for (int64_t i = 0; i < view.count; i++) values[i] = 0.5 * sin(1.0 + p + 0.7 * (double)i);
        assert_ok(lks_store_write(store, index, values));
    }
}

static double weighted_sum(const double *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)(i + 1) * values[i];
    return sum;
}

static double gradient_figure(const lks_store *store, const char *name) {
    double gradient[64];
    int index = lks_store_find(store, name);
    assert_ok(lks_store_read_gradient(store, index, gradient));
    return weighted_sum(gradient, lks_store_parameter(store, index).count);
}

static lks_recurrent build_as_torch(lks_graph *g, lks_recurrent_kind kind) {
    lks_initializer zero = {LKS_INITIAL_ZERO, 0};
    int64_t rows = kind == LKS_LSTM ? 8 : 2;
    lks_node *x = lks_parameter(g, "x", 3, (int64_t[]){2, 3, 3}, zero);
    lks_node *h0 = lks_parameter(g, "h0", 2, (int64_t[]){2, 2}, zero);
    lks_node *w_ih = lks_parameter(g, "w_ih", 2, (int64_t[]){rows, 3}, zero);
    lks_node *w_hh = lks_parameter(g, "w_hh", 2, (int64_t[]){rows, 2}, zero);
    lks_node *b_ih = lks_parameter(g, "b_ih", 1, &rows, zero), *b_hh = lks_parameter(g, "b_hh", 1, &rows, zero);
    if (kind != LKS_LSTM) return lks_rnn_function(x, h0, w_ih, w_hh, b_ih, b_hh, kind == LKS_RNN_RELU);
    lks_node *c0 = lks_parameter(g, "c0", 2, (int64_t[]){2, 2}, zero);
    return lks_lstm_function(x, h0, c0, w_ih, w_hh, b_ih, b_hh);
}

static void check_figures(const torch_figures *f, const lks_program *program, const lks_store *store, lks_node *loss,
                          lks_node *y) {
    const double got[] = {lks_program_scalar(program, loss),
                          weighted_sum(lks_program_output(program, y), 12),
                          gradient_figure(store, "x"),
                          gradient_figure(store, "h0"),
                          f->kind == LKS_LSTM ? gradient_figure(store, "c0") : 0,
                          gradient_figure(store, "w_ih"),
                          gradient_figure(store, "w_hh"),
                          gradient_figure(store, "b_ih"),
                          gradient_figure(store, "b_hh")};
    const double expected[] = {f->loss, f->y, f->dx, f->dh0, f->dc0, f->dw_ih, f->dw_hh, f->db, f->db};
    for (size_t i = 0; i < sizeof got / sizeof got[0]; i++)
        if (fabs(got[i] - expected[i]) > 1e-11) /* 13 digits are given */
            fail_msg("%s: figure %zu is %.13g, PyTorch's %.13g", f->name, i, got[i], expected[i]);
}

static void results_and_gradients_are_those_of_torch(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof torch / sizeof torch[0]; i++) {
        lks_device *device;
        lks_store *store;
        lks_program *program;
        assert_ok(lks_device_create(&device, &(lks_device_options){.name = "reference", .precision = LKS_F64}));
        lks_graph *g = lks_graph_create(device);
        lks_node *y = build_as_torch(g, torch[i].kind).y;
        lks_node *loss = lks_mean(lks_mul(y, y), 0, NULL, 0);
        assert_ok(lks_store_create(&store, loss, NULL));
        fill_as_torch(store);
        assert_ok(lks_program_create(
            &program, store,
            &(lks_program_options){.batch = 1, .is_training = 1, .loss = loss, .outputs = &y, .n_outputs = 1}));
        assert_ok(lks_program_forward(program));
        assert_ok(lks_program_backward(program, 1));
        check_figures(&torch[i], program, store, loss, y);
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(g);
        lks_device_destroy(device);
    }
}

/* --- states --- */

static void the_last_states_are_results_of_their_own(void **state) {
    (void)state;
    static const char *const devices[] = {"cpu", "reference"};
    for (int i = 0; i < 2; i++) {
        lks_device *device;
        lks_store *store;
        lks_program *program;
        assert_ok(lks_device_create(&device, &(lks_device_options){.name = devices[i]}));
        lks_graph *g = lks_graph_create(device);
        lks_recurrent r = build_as_torch(g, LKS_LSTM);
        lks_node *loss = lks_mean(r.y, 0, NULL, 0), *outputs[] = {r.y, r.h, r.c};
        assert_ok(lks_store_create(&store, loss, &(lks_store_options){.seed = 1}));
        assert_ok(lks_program_create(
            &program, store, &(lks_program_options){.batch = 1, .loss = loss, .outputs = outputs, .n_outputs = 3}));
        assert_ok(lks_program_forward(program));
        const float *y = lks_program_output(program, r.y), *h = lks_program_output(program, r.h);
        assert_memory_equal(h, y + 4, 2 * sizeof *h); /* y (2,3,2): the last step of samples 0 and 1 */
        assert_memory_equal(h + 2, y + 10, 2 * sizeof *h);
        assert_non_null(lks_program_output(program, r.c));
        lks_program_destroy(program);
        lks_store_destroy(store);
        lks_graph_destroy(g);
        lks_device_destroy(device);
    }
}

static void expect_refusal(lks_node *loss, lks_status expected, const char *text) {
    lks_store *store;
    assert_int_equal(lks_store_create(&store, loss, NULL), expected);
    if (strstr(lks_error_text(), text) == NULL) fail_msg("%s", lks_error_text());
    lks_graph_destroy(lks_node_graph(loss));
}

static void a_loss_may_not_read_the_last_states(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        lks_graph *g = lks_graph_create(lks_device_default(NULL));
        lks_recurrent r = build_as_torch(g, i < 2 ? LKS_LSTM : LKS_RNN_TANH);
        lks_node *read = i == 1 ? r.c : r.h;
        expect_refusal(lks_add(lks_sum(r.y, 0, NULL, 0), lks_sum(read, 0, NULL, 0)), LKS_ERR_UNSUPPORTED,
                       "which has no gradient: use the last step of y instead");
    }
}

/* A change of any dimension of any input must be refused. */
static void shapes_that_do_not_fit_are_refused(void **state) {
    (void)state;
    lks_initializer zero = {LKS_INITIAL_ZERO, 0};
    static const int64_t dims[7][3] = {{2, 3, 3}, {2, 2, 0}, {2, 2, 0}, {8, 3, 0}, {8, 2, 0}, {8, 0, 0}, {8, 0, 0}};
    static const int n_dims[7] = {3, 2, 2, 2, 2, 1, 1};
    for (int bad = 0; bad < 7; bad++)
        for (int axis = 0; axis < n_dims[bad]; axis++) {
            if (bad == 0 && axis == 1) continue; /* any number of steps is valid */
            lks_graph *g = lks_graph_create(lks_device_default(NULL));
            lks_node *in[7];
            for (int i = 0; i < 7; i++) {
                int64_t changed[3] = {dims[i][0], dims[i][1], dims[i][2]};
                if (i == bad) changed[axis]++;
                in[i] = lks_parameter(g, tensor_names[i], n_dims[i], changed, zero);
            }
            lks_recurrent r = lks_lstm_function(in[0], in[1], in[2], in[3], in[4], in[5], in[6]);
            expect_refusal(lks_sum(r.y, 0, NULL, 0), LKS_ERR_SHAPE,
                           "lstm of 'x', 'h0', 'c0', 'w_ih', 'w_hh', 'b_ih' and 'b_hh' takes x (N,T,K), h0");
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(the_cpu_device_agrees_with_the_reference_device),
        cmocka_unit_test(gradients_may_be_changed_once_they_are_told),
        cmocka_unit_test(results_and_gradients_are_those_of_torch),
        cmocka_unit_test(the_last_states_are_results_of_their_own),
        cmocka_unit_test(a_loss_may_not_read_the_last_states),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
    };
    return run_group(tests);
}
