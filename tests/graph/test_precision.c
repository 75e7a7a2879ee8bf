/* labels: no-tsan */
/* Products with operands rounded to bf16. The oracle: with parameters rounded beforehand, the f32 loops of the
 * reference device must give the same bits as its bf16 loops, for results and gradients. The cpu device is compared to
 * that, also if the CPU has no bf16 instructions. Its kernels then multiply rounded f32 numbers. */
#include "operator_cases.h"

#include "comm/arithmetic/half.h"

#include <lockstep/nn.h>

#define DIMS(...)                                                                                                      \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

/* --- cases: operands are parameters, so that no result of another kernel is rounded; "b..." and "c0" are not operands
 * --- */

typedef struct precision_case {
    operator_case op;
    bool is_forward_only; /* its gradient rounds intermediate values */
} precision_case;

static lks_node *linear(const operator_leaves *l) {
    return lks_linear_function(normal_parameter(l, "a", DIMS(9, 37)), normal_parameter(l, "w", DIMS(13, 37)),
                               normal_parameter(l, "b", DIMS(13)));
}
static lks_node *linear_of_rows_with_relu(const operator_leaves *l) {
    return lks_relu(lks_linear_function(normal_parameter(l, "a", DIMS(2, 32, 128)),
                                        normal_parameter(l, "w", DIMS(64, 128)), normal_parameter(l, "b", DIMS(64))));
}
static lks_node *matmul(const operator_leaves *l, int transpose_a, int transpose_b) {
    lks_node *a = transpose_a ? normal_parameter(l, "a", DIMS(3, 19, 5)) : normal_parameter(l, "a", DIMS(3, 5, 19));
    lks_node *w = transpose_b ? normal_parameter(l, "w", DIMS(3, 7, 19)) : normal_parameter(l, "w", DIMS(3, 19, 7));
    return lks_matmul(a, w, transpose_a, transpose_b);
}
static lks_node *matmul_nn(const operator_leaves *l) { return matmul(l, 0, 0); }
static lks_node *matmul_nt(const operator_leaves *l) { return matmul(l, 0, 1); }
static lks_node *matmul_tn(const operator_leaves *l) { return matmul(l, 1, 0); }
static lks_node *matmul_tt(const operator_leaves *l) { return matmul(l, 1, 1); }

static lks_node *convolution(const operator_leaves *l, int64_t channels, int64_t size, int64_t kernel, int64_t groups,
                             int64_t stride) {
    lks_node *x = normal_parameter(l, "a", DIMS(2, channels, size, size));
    lks_node *w = normal_parameter(l, "w", DIMS(16, channels / groups, kernel, kernel));
    return lks_conv2d_function(x, w, normal_parameter(l, "b", DIMS(16)),
                               &(lks_window_options){.stride = {stride, stride}, .padding = {1, 1}, .groups = groups});
}
static lks_node *conv2d(const operator_leaves *l) { return convolution(l, 16, 9, 3, 1, 1); }
static lks_node *conv2d_of_3_channels(const operator_leaves *l) { return convolution(l, 3, 8, 3, 1, 1); }
static lks_node *conv2d_strided(const operator_leaves *l) { return convolution(l, 8, 9, 3, 1, 2); }
static lks_node *conv2d_in_groups(const operator_leaves *l) { return convolution(l, 16, 6, 3, 2, 1); }
static lks_node *conv2d_of_one_window(const operator_leaves *l) { return convolution(l, 16, 1, 3, 1, 1); }
static lks_node *conv2d_of_idle_weights(const operator_leaves *l) { return convolution(l, 16, 2, 3, 1, 3); }
static lks_node *conv2d_with_relu(const operator_leaves *l) { return lks_relu(conv2d(l)); }

static lks_node *lstm(const operator_leaves *l, int64_t t) {
    return lks_lstm_function(normal_parameter(l, "a", DIMS(5, t, 7)), normal_parameter(l, "h0", DIMS(5, 32)),
                             normal_parameter(l, "c0", DIMS(5, 32)), normal_parameter(l, "w_ih", DIMS(128, 7)),
                             normal_parameter(l, "w_hh", DIMS(128, 32)), normal_parameter(l, "b_ih", DIMS(128)),
                             normal_parameter(l, "b_hh", DIMS(128)))
        .y;
}
static lks_node *lstm_of_one_step(const operator_leaves *l) { return lstm(l, 1); }
static lks_node *lstm_of_three_steps(const operator_leaves *l) { return lstm(l, 3); }
static lks_node *relu_rnn_of_one_step(const operator_leaves *l) {
    return lks_rnn_function(normal_parameter(l, "a", DIMS(5, 1, 7)), normal_parameter(l, "h0", DIMS(5, 19)),
                            normal_parameter(l, "w_ih", DIMS(19, 7)), normal_parameter(l, "w_hh", DIMS(19, 19)),
                            normal_parameter(l, "b_ih", DIMS(19)), normal_parameter(l, "b_hh", DIMS(19)), 1)
        .y;
}

static const precision_case cases[] = {
    {{"linear", linear, 0}, false},
    {{"linear of rows with relu", linear_of_rows_with_relu, 0}, false},
    {{"matmul nn", matmul_nn, 0}, false},
    {{"matmul nt", matmul_nt, 0}, false},
    {{"matmul tn", matmul_tn, 0}, false},
    {{"matmul tt", matmul_tt, 0}, false},
    {{"conv2d", conv2d, 0}, false},
    {{"conv2d of 3 channels", conv2d_of_3_channels, 0}, false},
    {{"conv2d strided", conv2d_strided, 0}, false},
    {{"conv2d in groups", conv2d_in_groups, 0}, false},
    {{"conv2d of one window", conv2d_of_one_window, 0}, false},
    {{"conv2d of weights that meet padding alone", conv2d_of_idle_weights, 0}, false},
    {{"conv2d with relu", conv2d_with_relu, 0}, false},
    {{"relu rnn of one step", relu_rnn_of_one_step, 0}, false},
    {{"lstm of one step", lstm_of_one_step, 0}, true},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* --- a case on one device --- */

static bool is_operand(const char *name) { return name[0] != 'b' && strcmp(name, "c0") != 0; }

/* Rounds the projection, which is the gradient of y. If `rounds_operands`, rounds the parameters that are operands,
 * too. */
static void round_parameters(lks_store *store, bool rounds_operands) {
    for (int i = 0; i < lks_store_n_parameters(store); i++) {
        lks_parameter_view p = lks_store_parameter(store, i);
        if (strcmp(p.name, "projection") != 0 && !(rounds_operands && is_operand(p.name))) continue;
        float *values = lksi_alloc((size_t)p.count * sizeof *values);
        assert_ok(lks_store_read(store, i, values));
        for (int64_t j = 0; j < p.count; j++) values[j] = lksi_bf16_to_f32(lksi_f32_to_bf16(values[j]));
        assert_ok(lks_store_write(store, i, values));
        lksi_free(values);
    }
}

static void run_case(operator_bench *b, const precision_case *c, const char *device, lks_type precision,
                     bool rounds_operands) {
    operator_bench_create(b, &c->op, 1, device, precision);
    round_parameters(b->store, rounds_operands);
    assert_ok(lks_program_forward(b->program));
    assert_ok(lks_program_backward(b->program, 1));
}

/* Result -1 is y. Result i is the gradient of parameter i of `like`, found in `b` by its name. */
static float *read_result(const operator_bench *b, const operator_bench *like, int i, int64_t *count) {
    const char *name = i >= 0 ? lks_store_parameter(like->store, i).name : NULL;
    *count = i >= 0 ? lks_store_parameter(like->store, i).count : count_elements(b->y, 1);
    float *values = lksi_alloc((size_t)*count * sizeof *values);
    if (i >= 0)
        assert_ok(lks_store_read_gradient(b->store, lks_store_find(b->store, name), values));
    else
        memcpy(values, lks_program_output(b->program, b->y), (size_t)*count * sizeof *values);
    return values;
}

static int n_results(const precision_case *c, const operator_bench *b) {
    return c->is_forward_only ? 0 : lks_store_n_parameters(b->store);
}

/* --- tests --- */

static void the_reference_device_computes_what_f32_does_with_rounded_operands(void **state) {
    (void)state;
    for (int k = 0; k < N_CASES; k++) {
        operator_bench emulated, oracle;
        run_case(&emulated, &cases[k], "reference", LKS_BF16, false);
        run_case(&oracle, &cases[k], "reference", LKS_F32, true);
        for (int i = -1; i < n_results(&cases[k], &oracle); i++) {
            int64_t count;
            float *a = read_result(&emulated, &oracle, i, &count), *b = read_result(&oracle, &oracle, i, &count);
            if (memcmp(a, b, (size_t)count * sizeof *a) != 0) fail_msg("%s: result %d differs", cases[k].op.name, i);
            lksi_free(a);
            lksi_free(b);
        }
        operator_bench_destroy(&oracle);
        operator_bench_destroy(&emulated);
    }
}

/* The cpu device adds in another order, as in f32. */
static void the_cpu_devices_kernels_agree_with_the_reference_device(void **state) {
    (void)state;
    for (int k = 0; k < N_CASES; k++) {
        operator_bench cpu, reference;
        run_case(&cpu, &cases[k], "cpu", LKS_BF16, false);
        run_case(&reference, &cases[k], "reference", LKS_BF16, false);
        for (int i = -1; i < n_results(&cases[k], &reference); i++) {
            int64_t count;
            float *a = read_result(&cpu, &reference, i, &count), *b = read_result(&reference, &reference, i, &count);
            check_near(&cases[k].op, i < 0 ? "result" : lks_store_parameter(reference.store, i).name, a, b, count);
            lksi_free(a);
            lksi_free(b);
        }
        operator_bench_destroy(&reference);
        operator_bench_destroy(&cpu);
    }
}

/* A state or gradient that differs in its last bit may be rounded to the other neighbour in the next step, which
 * changes it by 2^-8 of itself. */
static void several_steps_agree_as_far_as_rounding_lets_them(void **state) {
    (void)state;
    const precision_case lstm_case = {{"lstm of three steps", lstm_of_three_steps, 0x1p-8}, false};
    operator_bench cpu, reference;
    run_case(&cpu, &lstm_case, "cpu", LKS_BF16, false);
    run_case(&reference, &lstm_case, "reference", LKS_BF16, false);
    for (int i = -1; i < lks_store_n_parameters(reference.store); i++) {
        int64_t count;
        float *a = read_result(&cpu, &reference, i, &count), *b = read_result(&reference, &reference, i, &count);
        check_near(&lstm_case.op, "a result", a, b, count);
        lksi_free(a);
        lksi_free(b);
    }
    operator_bench_destroy(&reference);
    operator_bench_destroy(&cpu);
}

/* The largest difference, relative to the largest element. (Without fmax: gcc 12 breaks down over this loop on arm64.)
 */
static double distance(const float *a, const float *b, int64_t count) {
    double most = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - (double)b[i]), size = fabs((double)b[i]);
        if (difference > most) most = difference;
        if (size > scale) scale = size;
    }
    return most / scale;
}

/* bf16 keeps 8 bits: over sums of 5 to some hundred products the difference is more than 1e-4 of the largest element.
 * If a sum changes its sign before a ReLU, a whole row of the gradient appears or vanishes: the difference is less than
 * 0.2. */
static void bf16_differs_from_f32_by_what_8_bits_leave_out(void **state) {
    (void)state;
    static const char *const devices[] = {"cpu", "reference"};
    for (int k = 0; k < 2 * N_CASES; k++) {
        operator_bench rounded, f32;
        run_case(&rounded, &cases[k / 2], devices[k % 2], LKS_BF16, false);
        run_case(&f32, &cases[k / 2], devices[k % 2], LKS_F32, false);
        for (int i = -1; i < n_results(&cases[k / 2], &f32); i++) {
            int64_t count;
            const char *name = i < 0 ? "y" : lks_store_parameter(f32.store, i).name;
            if (i >= 0 && (!is_operand(name) || strcmp(name, "projection") == 0)) continue;
            float *a = read_result(&rounded, &f32, i, &count), *b = read_result(&f32, &f32, i, &count);
            double d = distance(a, b, count);
            if (!(d > 1e-4 && d < 0.2))
                fail_msg("%s on %s: %s is %g away", cases[k / 2].op.name, devices[k % 2], name, d);
            lksi_free(a);
            lksi_free(b);
        }
        operator_bench_destroy(&f32);
        operator_bench_destroy(&rounded);
    }
}

/* Holds with and without bf16 support of this CPU. */
static void the_cpu_device_offers_bf16_or_says_what_is_missing(void **state) {
    (void)state;
    lks_device *device = NULL;
    lks_status status = lks_device_create(&device, &(lks_device_options){.precision = LKS_BF16});
    if (status == LKS_OK) {
        lks_device_destroy(device);
        return;
    }
    assert_int_equal(status, LKS_ERR_UNSUPPORTED);
    assert_null(device);
    assert_non_null(strstr(lks_error_text(), "precision bf16 needs a CPU with AVX512-BF16 or AMX, this one has "));
}

static void f16_is_no_precision_of_any_device(void **state) {
    (void)state;
    static const char *const devices[] = {"cpu", "reference"};
    for (int i = 0; i < 2; i++) {
        lks_device *device;
        lks_device_options options = {.name = devices[i], .precision = LKS_F16};
        assert_int_equal(lks_device_create(&device, &options), LKS_ERR_UNSUPPORTED);
    }
}

static void values_in_memory_stay_f32(void **state) {
    (void)state;
    operator_bench b;
    run_case(&b, &cases[0], "reference", LKS_BF16, false);
    assert_int_equal(lks_node_type(b.y), LKS_F32);
    assert_int_equal(lks_store_parameter(b.store, 0).type, LKS_F32);
    operator_bench_destroy(&b);
}

/* --- memory --- */

static lks_node *build_all_kinds(lks_node *x) {
    lks_node *y = lks_conv2d(x, 8, 3, "conv", NULL);
    y = lks_linear(lks_reshape(y, 3, (int64_t[]){LKS_BATCH, 2, 36}), 8, "fc");
    y = lks_matmul(y, y, 0, 1);
    lks_graph *g = lks_node_graph(x);
    lks_node *h0 = lks_input(g, "h0", LKS_F32, 2, (int64_t[]){LKS_BATCH, 3});
    lks_node *c0 = lks_input(g, "c0", LKS_F32, 2, (int64_t[]){LKS_BATCH, 3});
    return lks_recurrent_layers(
               y, "rnn", &(lks_recurrent_options){.kind = LKS_LSTM, .hidden = 3, .n_layers = 1, .h0 = {h0}, .c0 = {c0}})
        .y;
}

static lks_status build_and_compile(void) {
    lks_device *device = NULL;
    lks_status status = lksi_device_create_unchecked(&device, &(lks_device_options){.precision = LKS_BF16});
    if (status != LKS_OK) return status;
    lks_graph *g = lks_graph_create(device);
    lks_node *x = lks_input(g, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 4, 5, 5});
    lks_node *loss = lks_mean(build_all_kinds(x), 0, NULL, 0);
    lks_store *store = NULL;
    lks_program *program = NULL;
    status = lks_store_create(&store, loss, NULL);
    if (status == LKS_OK)
        status =
            lks_program_create(&program, store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = loss});
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_device_destroy(device);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    lks_status status = LKS_ERR_MEMORY;
    for (int64_t n = 1; status != LKS_OK; n++) {
        lksi_alloc_fail_after(n);
        status = build_and_compile();
        lksi_alloc_fail_after(0);
        assert_true(status == LKS_OK || status == LKS_ERR_MEMORY);
        assert_int_equal(lks_memory_nbytes(), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_device_computes_what_f32_does_with_rounded_operands),
        cmocka_unit_test(the_cpu_devices_kernels_agree_with_the_reference_device),
        cmocka_unit_test(several_steps_agree_as_far_as_rounding_lets_them),
        cmocka_unit_test(bf16_differs_from_f32_by_what_8_bits_leave_out),
        cmocka_unit_test(the_cpu_device_offers_bf16_or_says_what_is_missing),
        cmocka_unit_test(f16_is_no_precision_of_any_device),
        cmocka_unit_test(values_in_memory_stay_f32),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return run_group(tests);
}
