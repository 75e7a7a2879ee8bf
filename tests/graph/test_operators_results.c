/* labels: no-tsan */
/* Results of operators where a formula leaves a choice, on both devices. */
#include "test.h"

#include "base/base.h"

#include <lockstep/operators.h>
#include <math.h>
#include <string.h>

static const char *const devices[] = {"reference", "cpu"};

/* A graph with x (N,3) and labels (N) on one of the devices, and a program of it. */
typedef struct fixture {
    lks_device *device;
    lks_graph *graph;
    lks_node *x, *labels, *scaled; /* scaled: x times a parameter that is 1 */
    lks_store *store;
    lks_program *program;
} fixture;

static void begin(fixture *f, const char *device) {
    *f = (fixture){0};
    assert_ok(lks_device_create(&f->device, &(lks_device_options){.name = device}));
    f->graph = lks_graph_create(f->device);
    f->x = lks_input(f->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 3});
    f->labels = lks_input(f->graph, "labels", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    f->scaled =
        lks_mul(f->x, lks_parameter(f->graph, "w", 1, (int64_t[]){3}, (lks_initializer){LKS_INITIAL_CONSTANT, 1}));
}

static void compile(fixture *f, int64_t batch, lks_node *loss, lks_node *output, const float *x,
                    const int32_t *labels) {
    assert_ok(lks_store_create(&f->store, loss, NULL));
    assert_ok(lks_program_create(
        &f->program, f->store,
        &(lks_program_options){
            .batch = batch, .is_training = 1, .loss = loss, .outputs = &output, .n_outputs = output != NULL}));
    assert_ok(lks_program_set_input(f->program, f->x, x));
    assert_ok(lks_program_set_input(f->program, f->labels, labels));
    assert_ok(lks_program_forward(f->program));
    assert_ok(lks_program_backward(f->program, 1));
}

static void end(fixture *f) {
    lks_program_destroy(f->program);
    lks_store_destroy(f->store);
    lks_graph_destroy(f->graph);
    lks_device_destroy(f->device);
}

static const float features[4][3] = {{1, 5, 2}, {7, 7, 0}, {0, 1, 2}, {-1, -2, -3}};

static void a_batch_in_which_no_label_counts_has_no_loss(void **state) {
    (void)state;
    static const int32_t labels[4] = {-100, -100, -100, -100};
    for (int i = 0; i < 2; i++) {
        fixture f;
        float gradient[3];
        begin(&f, devices[i]);
        lks_node *loss = lks_cross_entropy_with(
            f.scaled, f.labels,
            &(lks_cross_entropy_options){.has_ignored = 1, .ignored = -100, .label_smoothing = 0.1});
        compile(&f, 4, loss, NULL, features[0], labels);
        assert_true(lks_program_scalar(f.program, loss) == 0);
        assert_ok(lks_store_read_gradient(f.store, 0, gradient));
        for (int k = 0; k < 3; k++) assert_true(gradient[k] == 0);
        end(&f);
    }
}

/* Of equal elements the first is taken. A label that is not a class matches nothing. */
static void correct_rows_have_their_first_largest_element_at_the_label(void **state) {
    (void)state;
    static const int32_t labels[][4] = {{1, 0, 2, 0}, {1, 1, -100, 3}};
    static const double expected[] = {4, 1};
    for (int i = 0; i < 4; i++) {
        fixture f;
        begin(&f, devices[i % 2]);
        lks_node *n_correct = lks_count_correct(f.scaled, f.labels);
        compile(&f, 4, lks_sum(f.scaled, 0, NULL, 0), n_correct, features[0], labels[i / 2]);
        assert_true(lks_program_scalar(f.program, n_correct) == expected[i / 2]);
        end(&f);
    }
}

/* The rule: a search from the first element on takes an element only if it is larger than the current one. */
static void rows_with_nan_are_counted_alike_on_all_devices(void **state) {
    (void)state;
    static const float rows[4][3] = {{NAN, 1, 2}, {1, NAN, 2}, {NAN, NAN, NAN}, {NAN, INFINITY, 0}};
    static const int32_t labels[][4] = {{0, 2, 0, 0}, {2, 1, 1, 1}, {1, 0, 2, 2}};
    static const double expected[] = {4, 0, 0};
    for (int i = 0; i < 6; i++) {
        fixture f;
        begin(&f, devices[i % 2]);
        lks_node *n_correct = lks_count_correct(f.x, f.labels);
        compile(&f, 4, lks_sum(f.scaled, 0, NULL, 0), n_correct, rows[0], labels[i / 2]);
        assert_true(lks_program_scalar(f.program, n_correct) == expected[i / 2]);
        end(&f);
    }
}

static lks_node *at_most_one(lks_node *x) { return lks_clamp(x, -INFINITY, 1); }
static lks_node *within_a_half(lks_node *x) { return lks_clamp(x, -0.5, 0.5); }
static lks_node *at_least_its_hundredth(lks_node *x) { return lks_maximum(x, lks_scale(x, 0.01)); }

/* NaN must not be hidden. */
static void nan_goes_through_everything(void **state) {
    (void)state;
    static lks_node *(*const operators[])(lks_node * x) = {
        lks_relu, lks_tanh,  lks_sigmoid, lks_gelu, lks_softmax,   lks_log_softmax,       lks_exp, lks_log, lks_sqrt,
        lks_abs,  lks_log1p, lks_sin,     lks_cos,  within_a_half, at_least_its_hundredth};
    static const int32_t labels[4] = {0};
    float poisoned[4][3];
    memcpy(poisoned, features, sizeof poisoned);
    poisoned[2][1] = NAN;
    for (size_t i = 0; i < 2 * sizeof operators / sizeof operators[0]; i++) {
        fixture f;
        begin(&f, devices[i % 2]);
        lks_node *y = operators[i / 2](f.scaled), *loss = lks_cross_entropy(y, f.labels);
        compile(&f, 4, loss, y, poisoned[0], labels);
        assert_true(isnan(((const float *)lks_program_output(f.program, y))[7]));
        assert_true(isnan(lks_program_scalar(f.program, loss)));
        end(&f);
    }
}

/* Bounds must not be computed as sums of differences, which round. */
static void bounds_are_exact_however_far_away(void **state) {
    (void)state;
    static const struct {
        lks_node *(*operate)(lks_node *x);
        float expected[6];
    } cases[] = {{at_most_one, {-1e8f, 1, -INFINITY, 1, 1e-9f, -0.0f}},
                 {within_a_half, {-0.5f, 0.5f, -0.5f, 0.5f, 1e-9f, -0.0f}},
                 {at_least_its_hundredth, {-1e6f, 1e8f, -INFINITY, INFINITY, 1e-9f, -0.0f}},
                 {lks_abs, {1e8f, 1e8f, INFINITY, INFINITY, 1e-9f, 0.0f}}};
    static const float x[2][3] = {{-1e8f, 1e8f, -INFINITY}, {INFINITY, 1e-9f, -0.0f}};
    static const int32_t labels[2] = {0};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        begin(&f, devices[i % 2]);
        lks_node *y = cases[i / 2].operate(f.x);
        compile(&f, 2, lks_sum(lks_mul(y, f.scaled), 0, NULL, 0), y, x[0], labels);
        const float *values = lks_program_output(f.program, y);
        for (int k = 0; k < 6; k++)
            if (!(values[k] == cases[i / 2].expected[k]))
                fail_msg("case %zu, %d: %g, not %g", i, k, (double)values[k], (double)cases[i / 2].expected[k]);
        if (cases[i / 2].operate == lks_abs) assert_false(signbit(values[5]));
        end(&f);
    }
}

/* Sums over a batch, over repeated rows, and over both ends. In f32 they would be off by up to 5e-6. */
static void sums_over_many_rows_keep_their_digits(void **state) {
    (void)state;
    enum { ROWS = 65536 };
    float *x = lksi_alloc_array(ROWS, 3 * sizeof *x);
    int32_t *labels = lksi_alloc_array(ROWS, sizeof *labels);
    double expected[3] = {0};
    for (size_t i = 0; i < 3 * ROWS; i++) expected[i % 3] += (double)(x[i] = lksi_random_uniform(1, 2, i));
    for (int i = 0; i < 2; i++) {
        fixture f;
        float gradient[3];
        begin(&f, devices[i]);
        lks_node *mean = lks_mean(f.x, 1, (int[]){0}, 0);
        compile(&f, ROWS, lks_sum(f.scaled, 0, NULL, 0), mean, x, labels);
        assert_ok(lks_store_read_gradient(f.store, 0, gradient)); /* of a parameter that is broadcast to all rows */
        const float *means = lks_program_output(f.program, mean);
        for (int k = 0; k < 3; k++) {
            assert_true(fabs((double)means[k] * ROWS / expected[k] - 1) < 1e-7);
            assert_true(fabs((double)gradient[k] / expected[k] - 1) < 1e-7);
        }
        end(&f);
    }
    lksi_free(x);
    lksi_free(labels);
}

/* The elements are 10001.5 and 10000.5 in turns. Their mean and variance, 10001 and 1/4, are exact in f32. Their sum in
 * f32 is not: beyond 2^25 it would lose 1.5 or 0.5 in each addition. */
static void layer_norm_keeps_its_digits_beside_a_large_offset(void **state) {
    (void)state;
    enum { K = 6000 };
    float *x = lksi_alloc_array(K, sizeof *x);
    assert_non_null(x);
    for (int j = 0; j < K; j++) x[j] = j % 2 == 0 ? 10001.5f : 10000.5f;
    for (int i = 0; i < 2; i++) {
        fixture f = {0};
        assert_ok(lks_device_create(&f.device, &(lks_device_options){.name = devices[i]}));
        f.graph = lks_graph_create(f.device);
        lks_initializer zero = {LKS_INITIAL_ZERO, 0}, one = {LKS_INITIAL_CONSTANT, 1};
        lks_node *p = lks_parameter(f.graph, "p", 2, (int64_t[]){1, K}, zero);
        lks_node *weight = lks_parameter(f.graph, "weight", 1, (int64_t[]){K}, one);
        lks_node *y = lks_layer_norm_function(p, weight, lks_parameter(f.graph, "bias", 1, (int64_t[]){K}, zero), 1e-5);
        lks_node *loss = lks_sum(y, 0, NULL, 0);
        assert_ok(lks_store_create(&f.store, loss, NULL));
        assert_ok(lks_store_write(f.store, lks_store_find(f.store, "p"), x));
        assert_ok(
            lks_program_create(&f.program, f.store, &(lks_program_options){.batch = 1, .outputs = &y, .n_outputs = 1}));
        assert_ok(lks_program_forward(f.program));
        const float *normalised = lks_program_output(f.program, y);
        for (int j = 0; j < K; j++) assert_true(fabsf(normalised[j] - 2 * (x[j] - 10001)) < 1e-3f);
        end(&f);
    }
    lksi_free(x);
}

/* Masked scores often are the lowest finite number. */
static void softmax_stands_the_largest_and_the_smallest_numbers(void **state) {
    (void)state;
    static const float extreme[2][3] = {{-3e38f, 0, -INFINITY}, {3e38f, 3e38f, -3e38f}};
    static const float expected[2][3] = {{0, 1, 0}, {0.5f, 0.5f, 0}};
    static const int32_t labels[2] = {0};
    for (int i = 0; i < 2; i++) {
        fixture f;
        begin(&f, devices[i]);
        lks_node *y = lks_softmax(f.x);
        compile(&f, 2, lks_sum(lks_mul(y, f.scaled), 0, NULL, 0), y, extreme[0], labels);
        assert_memory_equal(lks_program_output(f.program, y), expected, sizeof expected);
        end(&f);
    }
}

/* A common offset of all logits of a row does not change the result, as long as the logits are exact. */
static void log_softmax_is_as_exact_beside_a_large_offset(void **state) {
    (void)state;
    static const float x[2][3] = {{0, 1, 2}, {1 << 23, (1 << 23) + 1, (1 << 23) + 2}};
    static const int32_t labels[2] = {0};
    for (int i = 0; i < 2; i++) {
        fixture f;
        begin(&f, devices[i]);
        lks_node *y = lks_log_softmax(f.x);
        compile(&f, 2, lks_sum(lks_mul(y, f.scaled), 0, NULL, 0), y, x[0], labels);
        const float *rows = lks_program_output(f.program, y);
        assert_memory_equal(rows, rows + 3, 3 * sizeof *rows);
        assert_true(fabsf(rows[2] + 0.4076060f) < 1e-6f); /* of numbers around 1 */
        end(&f);
    }
}

static double smoothed_loss(const char *device, const float x[2][3]) {
    static const int32_t labels[2] = {0, 2};
    fixture f;
    begin(&f, device);
    lks_node *loss = lks_cross_entropy_with(f.scaled, f.labels, &(lks_cross_entropy_options){.label_smoothing = 0.1});
    compile(&f, 2, loss, NULL, x[0], labels);
    double result = lks_program_scalar(f.program, loss);
    end(&f);
    return result;
}

/* The mean of the logits is computed from their differences to the largest. */
static void smoothed_cross_entropy_is_as_exact_beside_a_large_offset(void **state) {
    (void)state;
    static const float near[2][3] = {{0, 1, 2}, {2, 0, 0}};
    static const float far[2][3] = {{1 << 23, (1 << 23) + 1, (1 << 23) + 2}, {(1 << 23) + 2, 1 << 23, 1 << 23}};
    for (int i = 0; i < 2; i++) assert_true(smoothed_loss(devices[i], near) == smoothed_loss(devices[i], far));
}

/* Certainty of the wrong class: rows are a logit and its target. */
static void a_logit_that_is_infinite_and_wrong_has_an_infinite_loss(void **state) {
    (void)state;
    static const float rows[2][3] = {{INFINITY, 0}, {-INFINITY, 1}};
    static const int32_t label = 0;
    for (int i = 0; i < 4; i++) {
        fixture f;
        begin(&f, devices[i % 2]);
        lks_node *loss = lks_bce_with_logits(lks_slice(f.scaled, 1, 0, 1), lks_slice(f.x, 1, 1, 2));
        compile(&f, 1, loss, NULL, rows[i / 2], &label);
        assert_true(lks_program_scalar(f.program, loss) == (double)INFINITY);
        end(&f);
    }
}

static void what_a_causal_softmax_does_not_see_is_zero(void **state) {
    (void)state;
    static const int32_t labels[3] = {0};
    for (int i = 0; i < 2; i++) {
        fixture f;
        begin(&f, devices[i]);
        lks_node *scores = lks_reshape(f.scaled, 3, (int64_t[]){LKS_BATCH, 1, 3});
        lks_node *square = lks_concat((lks_node *[]){scores, scores, scores}, 3, 1);
        lks_node *y = lks_causal_softmax(square);
        compile(&f, 3, lks_sum(lks_mul(y, y), 0, NULL, 0), y, features[0], labels);
        const float *p = lks_program_output(f.program, y);
        for (int row = 0; row < 9; row++) {
            float sum = 0;
            for (int s = 0; s < 3; s++) {
                assert_true(s <= row % 3 || p[3 * row + s] == 0);
                sum += p[3 * row + s];
            }
            assert_true(fabsf(sum - 1) < 1e-6f);
        }
        end(&f);
    }
}

static int occurrences(const char *text, const char *part) {
    int n = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) n++;
    return n;
}

/* There must not be a tensor of zeros per part, nor a sum of them. */
static void the_gradient_of_a_split_is_one_pass(void **state) {
    (void)state;
    static const int32_t labels[4] = {0};
    fixture f;
    char text[4096];
    begin(&f, "cpu");
    lks_node *parts[3];
    lks_split(f.scaled, 1, 3, parts);
    compile(&f, 4, lks_sum(lks_mul(lks_mul(parts[0], parts[1]), parts[2]), 0, NULL, 0), NULL, features[0], labels);
    lks_program_describe(f.program, text, sizeof text);
    assert_int_equal(occurrences(text, "slice_grad"), 1);
    assert_int_equal(occurrences(text, ":add"), 0);
    end(&f);
}

/* The variance is 0, so x and weight have no effect. */
static void batch_norm_of_one_value_per_channel_is_its_bias(void **state) {
    (void)state;
    static const int32_t label = 1;
    for (int i = 0; i < 2; i++) {
        fixture f;
        begin(&f, devices[i]);
        lks_initializer two = {LKS_INITIAL_CONSTANT, 2};
        lks_node *weight = lks_parameter(f.graph, "weight", 1, (int64_t[]){3}, two);
        lks_node *bias = lks_parameter(f.graph, "bias", 1, (int64_t[]){3}, (lks_initializer){LKS_INITIAL_CONSTANT, 5});
        lks_node *mean = lks_buffer(f.graph, "mean", 1, (int64_t[]){3}, 0, 0.1);
        lks_node *variance = lks_buffer(f.graph, "variance", 1, (int64_t[]){3}, 1, 0.1);
        lks_node *y = lks_batch_norm_function(f.scaled, weight, bias, mean, variance, 1e-5);
        compile(&f, 1, lks_cross_entropy(y, f.labels), y, features[0], &label);
        const float *values = lks_program_output(f.program, y);
        for (int j = 0; j < 3; j++) assert_true(values[j] == 5);
        static const char *const without_gradient[] = {"w", "weight", "variance"};
        for (int k = 0; k < 3; k++) {
            float gradient[3] = {1, 1, 1};
            assert_ok(lks_store_read_gradient(f.store, lks_store_find(f.store, without_gradient[k]), gradient));
            for (int j = 0; j < 3; j++) assert_true(gradient[j] == 0);
        }
        end(&f);
    }
}

static void elements_of_any_type_are_transposed(void **state) {
    (void)state;
    enum { N = 2 * 2 * 3 };
    static const int from[N] = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11};
    uint8_t narrow[N];
    int64_t wide[N];
    for (int i = 0; i < N; i++) narrow[i] = (uint8_t)(i + 1), wide[i] = INT64_C(1) << (3 * i);
    for (int i = 0; i < 2; i++) {
        fixture f;
        begin(&f, devices[i]);
        lks_node *inputs[] = {lks_input(f.graph, "narrow", LKS_U8, 3, (int64_t[]){LKS_BATCH, 2, 3}),
                              lks_input(f.graph, "wide", LKS_I64, 3, (int64_t[]){LKS_BATCH, 2, 3})};
        lks_node *outputs[] = {lks_transpose(inputs[0], (int[]){0, 2, 1}), lks_transpose(inputs[1], (int[]){0, 2, 1})};
        assert_ok(lks_store_create(&f.store, lks_mean(f.scaled, 0, NULL, 0), NULL));
        assert_ok(lks_program_create(&f.program, f.store,
                                     &(lks_program_options){.batch = 2, .outputs = outputs, .n_outputs = 2}));
        assert_ok(lks_program_set_input(f.program, inputs[0], narrow));
        assert_ok(lks_program_set_input(f.program, inputs[1], wide));
        assert_ok(lks_program_forward(f.program));
        const uint8_t *narrow_there = lks_program_output(f.program, outputs[0]);
        const int64_t *wide_there = lks_program_output(f.program, outputs[1]);
        for (int k = 0; k < N; k++) assert_true(narrow_there[k] == narrow[from[k]] && wide_there[k] == wide[from[k]]);
        end(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_of_any_type_are_transposed),
        cmocka_unit_test(a_batch_in_which_no_label_counts_has_no_loss),
        cmocka_unit_test(correct_rows_have_their_first_largest_element_at_the_label),
        cmocka_unit_test(rows_with_nan_are_counted_alike_on_all_devices),
        cmocka_unit_test(batch_norm_of_one_value_per_channel_is_its_bias),
        cmocka_unit_test(bounds_are_exact_however_far_away),
        cmocka_unit_test(sums_over_many_rows_keep_their_digits),
        cmocka_unit_test(nan_goes_through_everything),
        cmocka_unit_test(layer_norm_keeps_its_digits_beside_a_large_offset),
        cmocka_unit_test(softmax_stands_the_largest_and_the_smallest_numbers),
        cmocka_unit_test(log_softmax_is_as_exact_beside_a_large_offset),
        cmocka_unit_test(smoothed_cross_entropy_is_as_exact_beside_a_large_offset),
        cmocka_unit_test(a_logit_that_is_infinite_and_wrong_has_an_infinite_loss),
        cmocka_unit_test(what_a_causal_softmax_does_not_see_is_zero),
        cmocka_unit_test(the_gradient_of_a_split_is_one_pass),
    };
    return run_group(tests);
}
