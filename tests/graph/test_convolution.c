/* labels: no-tsan */
/* Convolutions and pooling, at shapes that are no multiples of any block size. */
#include "check_layer.h"

#include <string.h>

/* --- convolution --- */

typedef struct conv_case {
    int64_t out_channels, kernel[2];
    lks_window_options window;
    int no_bias, has_relu;
} conv_case;

static lks_node *build_conv(lks_node *x, const void *argument) {
    const conv_case *c = argument;
    int64_t groups = c->window.groups != 0 ? c->window.groups : 1;
    lks_node *w = layer_parameter(
        x, "w", 4, (int64_t[]){c->out_channels, lks_node_dim(x, 1) / groups, c->kernel[0], c->kernel[1]});
    lks_node *b = c->no_bias ? NULL : layer_parameter(x, "b", 1, &c->out_channels);
    lks_node *y = lks_conv2d_function(x, w, b, &c->window);
    return c->has_relu ? lks_relu(y) : y;
}

static const layer convolutions[] = {
    {"3x3, odd channels", 4, {2, 3, 8, 8}, build_conv, &(conv_case){5, {3, 3}, {.padding = {1, 1}}, 0, 0}},
    {"no bias", 4, {2, 5, 6, 7}, build_conv, &(conv_case){3, {3, 3}, {.padding = {1, 1}}, 1, 0}},
    {"stride 3, padding 4",
     4,
     {1, 8, 7, 7},
     build_conv,
     &(conv_case){16, {3, 3}, {.stride = {3, 3}, .padding = {4, 4}}, 0, 0}},
    {"rectangular, dilated",
     4,
     {2, 9, 11, 9},
     build_conv,
     &(conv_case){10, {3, 2}, {.stride = {1, 2}, .padding = {2, 0}, .dilation = {2, 3}}, 0, 0}},
    {"2 groups", 4, {2, 6, 5, 5}, build_conv, &(conv_case){4, {3, 3}, {.padding = {1, 1}, .groups = 2}, 0, 0}},
    {"4 groups of blocks",
     4,
     {2, 32, 5, 5},
     build_conv,
     &(conv_case){32, {3, 3}, {.padding = {1, 1}, .groups = 4}, 0, 0}},
    {"depthwise", 4, {2, 16, 6, 6}, build_conv, &(conv_case){16, {3, 3}, {.padding = {1, 1}, .groups = 16}, 0, 0}},
    {"1x1 image", 4, {4, 16, 1, 1}, build_conv, &(conv_case){24, {3, 3}, {.padding = {1, 1}}, 0, 0}},
    {"2x2 image, stride 2",
     4,
     {4, 16, 2, 2},
     build_conv,
     &(conv_case){24, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}, 0, 0}},
    {"1x1 image, odd channels", 4, {3, 5, 1, 1}, build_conv, &(conv_case){7, {3, 3}, {.padding = {1, 1}}, 0, 0}},
    {"first layer",
     4,
     {2, 3, 32, 32},
     build_conv,
     &(conv_case){16, {7, 7}, {.stride = {4, 4}, .padding = {3, 3}}, 0, 0}},
    {"1x1 kernel, batch 1", 4, {1, 20, 4, 5}, build_conv, &(conv_case){12, {1, 1}, {.groups = 1}, 0, 0}},
    {"image smaller than the kernel", 4, {2, 8, 2, 3}, build_conv, &(conv_case){8, {5, 5}, {.padding = {2, 2}}, 0, 0}},
    {"stride that stops short", 4, {2, 9, 8, 10}, build_conv, &(conv_case){6, {3, 3}, {.stride = {2, 4}}, 0, 0}},
    {"relu behind", 4, {2, 17, 5, 5}, build_conv, &(conv_case){9, {3, 3}, {.padding = {1, 1}}, 0, 1}},
    {"whole window", 4, {3, 16, 3, 3}, build_conv, &(conv_case){8, {3, 3}, {.groups = 1}, 0, 1}},
};
enum { N_CONVOLUTIONS = sizeof convolutions / sizeof convolutions[0] };

static void convolutions_have_the_gradients_of_finite_differences(void **state) {
    (void)state;
    for (int i = 0; i < N_CONVOLUTIONS; i++) layer_check_differences(&convolutions[i]);
}

static void convolutions_agree_across_devices(void **state) {
    (void)state;
    for (int i = 0; i < N_CONVOLUTIONS; i++) layer_check_devices(&convolutions[i], 2e-5f);
}

/* --- several layers: layouts between them --- */

static lks_node *build_chain(lks_node *x, const void *argument) {
    (void)argument;
    lks_conv2d_options same = {.window = {.padding = {1, 1}}};
    lks_node *a = lks_relu(lks_conv2d(x, 12, 3, "a", &same));
    lks_node *b = lks_add(lks_conv2d(a, 12, 3, "b", &same), a);
    return lks_conv2d(lks_relu(b), 4, 1, "c", NULL);
}

/* A full and a grouped convolution share a weight: one parameter with two layouts. */
static lks_node *build_shared_weight(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *w = layer_parameter(x, "w", 4, (int64_t[]){16, 8, 3, 3});
    lks_node *y = lks_conv2d_function(x, w, NULL, &(lks_window_options){.padding = {1, 1}});
    return lks_conv2d_function(y, w, NULL, &(lks_window_options){.padding = {1, 1}, .groups = 2});
}

/* One tensor is needed in a blocked layout and in row-major order. */
static lks_node *build_two_readers(lks_node *x, const void *argument) {
    (void)argument;
    lks_node *y = lks_conv2d(x, 12, 3, "a", NULL);
    lks_node *z = lks_tanh(lks_reshape(y, 4, (int64_t[]){2, 12, 3, 3}));
    return lks_add(z, lks_relu(y));
}

static const layer chains[] = {
    {"chain", 4, {2, 5, 4, 4}, build_chain, NULL},
    {"shared weight", 4, {2, 8, 4, 4}, build_shared_weight, NULL},
    {"two readers", 4, {2, 9, 5, 5}, build_two_readers, NULL},
};
enum { N_CHAINS = sizeof chains / sizeof chains[0] };

static void layers_in_a_row_have_the_gradients_of_finite_differences(void **state) {
    (void)state;
    for (int i = 0; i < N_CHAINS; i++) layer_check_differences(&chains[i]);
}

static void layers_in_a_row_agree_across_devices(void **state) {
    (void)state;
    for (int i = 0; i < N_CHAINS; i++) layer_check_devices(&chains[i], 2e-5f);
}

/* --- long sums --- */

enum { N_IMAGES = 64, SIDE = 32, IN_CHANNELS = 3, OUT_CHANNELS = 8, N_IN = N_IMAGES * IN_CHANNELS * SIDE * SIDE };
enum { N_OUT = N_IMAGES * OUT_CHANNELS * SIDE * SIDE, N_WEIGHTS = OUT_CHANNELS * IN_CHANNELS * 9 };

typedef struct long_sums {
    double weight[N_WEIGHTS], bias[OUT_CHANNELS];
} long_sums;

/* The program reads the input in the caller's memory. */
static void *random_numbers(size_t count, lks_type type) {
    double *wide = lksi_alloc(count * sizeof *wide);
    float *narrow = (float *)wide;
    for (size_t i = 0; i < count; i++) {
        float value = (float)lksi_random_normal(5, count, i);
        if (type == LKS_F64)
            wide[i] = (double)value;
        else
            narrow[i] = value;
    }
    return wide;
}

static void read_as_double(lks_store *store, int index, lks_type type, size_t count, double *values) {
    float narrow[N_WEIGHTS];
    assert_ok(lks_store_read_gradient(store, index, type == LKS_F64 ? (void *)values : narrow));
    for (size_t i = 0; i < count && type != LKS_F64; i++) values[i] = (double)narrow[i];
}

/* The loss is the mean of y * factor, so that dy is a factor divided by a power of 2. */
static void find_long_sums(const char *device_name, lks_type type, long_sums *sums) {
    lks_device *device;
    lks_store *store;
    lks_program *program;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = device_name, .precision = type}));
    lks_graph *g = lks_graph_create(device);
    lks_node *x = lks_input(g, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, IN_CHANNELS, SIDE, SIDE});
    lks_node *factor = lks_input(g, "factor", LKS_F32, 4, (int64_t[]){LKS_BATCH, OUT_CHANNELS, SIDE, SIDE});
    lks_conv2d_options same = {.window = {.padding = {1, 1}}};
    lks_node *y = lks_mul(lks_conv2d(x, OUT_CHANNELS, 3, "conv", &same), factor);
    lks_node *loss = lks_mean(y, 4, (int[]){0, 1, 2, 3}, 0);
    assert_ok(lks_store_create(&store, loss, NULL));
    assert_ok(
        lks_program_create(&program, store, &(lks_program_options){.batch = N_IMAGES, .is_training = 1, .loss = loss}));
    void *images = random_numbers(N_IN, type), *factors = random_numbers(N_OUT, type);
    assert_ok(lks_program_set_input(program, x, images));
    assert_ok(lks_program_set_input(program, factor, factors));
    assert_ok(lks_program_forward(program));
    assert_ok(lks_program_backward(program, 1));
    for (int i = 0; i < 2; i++) {
        bool is_bias = lks_store_parameter(store, i).n_dims == 1;
        read_as_double(store, i, type, is_bias ? OUT_CHANNELS : N_WEIGHTS, is_bias ? sums->bias : sums->weight);
    }
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_device_destroy(device);
    lksi_free(images);
    lksi_free(factors);
}

static void check_long_sum(const char *name, const double *got, const double *expected, int count) {
    double distance = 0, length = 0;
    for (int i = 0; i < count; i++) {
        distance += (got[i] - expected[i]) * (got[i] - expected[i]);
        length += expected[i] * expected[i];
    }
    if (!(sqrt(distance / length) <= 7e-7)) fail_msg("%s: %.3g apart", name, sqrt(distance / length));
}

/* Added in one sequence, 65,536 terms lose 4e-6 of their sum. */
static void gradients_keep_their_digits_over_many_terms(void **state) {
    (void)state;
    static long_sums expected, got;
    find_long_sums("reference", LKS_F64, &expected);
    find_long_sums("cpu", LKS_F32, &got);
    check_long_sum("weight", got.weight, expected.weight, N_WEIGHTS);
    check_long_sum("bias", got.bias, expected.bias, OUT_CHANNELS);
}

/* --- pooling --- */

typedef struct pool_case {
    lks_node *(*pool)(lks_node *x, int64_t height, int64_t width, const lks_window_options *options);
    int64_t window[2];
    lks_window_options options;
    int has_conv; /* after a convolution: blocked layouts on both sides */
} pool_case;

static lks_node *build_pool(lks_node *x, const void *argument) {
    const pool_case *c = argument;
    if (c->has_conv) x = lks_conv2d(x, 12, 1, "before", NULL);
    lks_node *y = c->pool(x, c->window[0], c->window[1], &c->options);
    return c->has_conv ? lks_conv2d(y, 5, 1, "behind", NULL) : y;
}

static lks_node *build_global_pool(lks_node *x, const void *argument) {
    (void)argument;
    return lks_global_avg_pool2d(lks_conv2d(x, 10, 1, "before", NULL));
}

static const layer pools[] = {
    {"max 2x2", 4, {2, 5, 6, 6}, build_pool, &(pool_case){lks_max_pool2d, {2, 2}, {.groups = 1}, 0}},
    {"max 3x2 overlapping",
     4,
     {2, 9, 7, 5},
     build_pool,
     &(pool_case){lks_max_pool2d, {3, 2}, {.stride = {2, 1}, .padding = {1, 1}}, 1}},
    {"max to 1x1", 4, {2, 8, 3, 3}, build_pool, &(pool_case){lks_max_pool2d, {3, 3}, {.groups = 1}, 1}},
    {"max of 1x1 with padding",
     4,
     {2, 8, 1, 1},
     build_pool,
     &(pool_case){lks_max_pool2d, {2, 2}, {.stride = {1, 1}, .padding = {1, 1}}, 0}},
    {"mean 2x2", 4, {2, 5, 6, 6}, build_pool, &(pool_case){lks_avg_pool2d, {2, 2}, {.groups = 1}, 0}},
    {"mean 3x3 with padding",
     4,
     {2, 16, 5, 7},
     build_pool,
     &(pool_case){lks_avg_pool2d, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}, 1}},
    {"global mean", 4, {3, 4, 5, 3}, build_global_pool, NULL},
};
enum { N_POOLS = sizeof pools / sizeof pools[0] };

static void pools_have_the_gradients_of_finite_differences(void **state) {
    (void)state;
    for (int i = 0; i < N_POOLS; i++) layer_check_differences(&pools[i]);
}

static void pools_agree_across_devices(void **state) {
    (void)state;
    for (int i = 0; i < N_POOLS; i++) layer_check_devices(&pools[i], 2e-5f);
}

/* --- max pooling of NaN and of equal elements --- */

static void pool_values(const char *device_name, const float *x_values, float *y_values) {
    lks_device *device;
    lks_store *store;
    lks_program *program;
    assert_ok(lks_device_create(&device, &(lks_device_options){.name = device_name}));
    lks_graph *g = lks_graph_create(device);
    lks_node *x = lks_parameter(g, "x", 4, (int64_t[]){1, 1, 2, 4}, (lks_initializer){LKS_INITIAL_ZERO, 0});
    lks_node *y = lks_max_pool2d(x, 2, 2, NULL);
    lks_node *label = lks_input(g, "label", LKS_I32, 1, (int64_t[]){1});
    lks_node *loss = lks_cross_entropy(lks_reshape(y, 2, (int64_t[]){1, 2}), label);
    assert_ok(lks_store_create(&store, loss, NULL));
    assert_ok(lks_store_write(store, 0, x_values));
    assert_ok(lks_program_create(&program, store, &(lks_program_options){.batch = 1, .outputs = &y, .n_outputs = 1}));
    assert_ok(lks_program_forward(program));
    for (int i = 0; i < 2; i++) y_values[i] = ((const float *)lks_program_output(program, y))[i];
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_device_destroy(device);
}

static void max_pooling_lets_nan_and_infinities_through(void **state) {
    (void)state;
    static const char *const devices[] = {"cpu", "reference"};
    for (int d = 0; d < 2; d++) {
        float y[2];
        pool_values(devices[d], (float[]){1, NAN, -INFINITY, -INFINITY, 2, 3, -INFINITY, -INFINITY}, y);
        assert_true(isnan(y[0]));
        assert_true(isinf(y[1]) && y[1] < 0);
    }
}

/* --- errors --- */

static void expect_error(lks_status expected, const char *text, lks_node *(*build)(lks_graph *g)) {
    lks_graph *g = lks_graph_create(lks_device_default(NULL));
    lks_store *store;
    lks_node *y = build(g);
    lks_node *loss = lks_cross_entropy(y, lks_input(g, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH}));
    assert_int_equal(lks_store_create(&store, loss, NULL), expected);
    if (strstr(lks_error_text(), text) == NULL) fail_msg("'%s' lacks '%s'", lks_error_text(), text);
    lks_graph_destroy(g);
}

static lks_node *image(lks_graph *g) { return lks_input(g, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 6, 5, 5}); }
static lks_node *wide_padding(lks_graph *g) {
    return lks_max_pool2d(image(g), 2, 2, &(lks_window_options){.padding = {2, 0}});
}
static lks_node *large_window(lks_graph *g) { return lks_conv2d(image(g), 4, 7, "a", NULL); }
static lks_node *odd_groups(lks_graph *g) {
    return lks_conv2d(image(g), 8, 3, "a", &(lks_conv2d_options){.window = {.groups = 4}});
}
static lks_node *negative_stride(lks_graph *g) {
    return lks_conv2d(image(g), 8, 3, "a", &(lks_conv2d_options){.window = {.stride = {-1, 1}}});
}
static lks_node *grouped_pool(lks_graph *g) {
    return lks_avg_pool2d(image(g), 2, 2, &(lks_window_options){.groups = 2});
}

static void options_that_cannot_be_meant_are_named(void **state) {
    (void)state;
    expect_error(LKS_ERR_ARGUMENT, "a padding of 2 is more than half of the window of 2", wide_padding);
    expect_error(LKS_ERR_SHAPE,
                 "conv2d of 'x' and 'a': a window of 7, dilation 1, does not fit into height 5 with padding 0",
                 large_window);
    expect_error(LKS_ERR_SHAPE, "'a' takes x (N,C,H,W) with C a multiple of its 4 groups", odd_groups);
    expect_error(LKS_ERR_ARGUMENT, "its stride must be 1 to 2147483647, not -1", negative_stride);
    expect_error(LKS_ERR_ARGUMENT, "avg_pool2d of 'x' has neither dilation nor groups", grouped_pool);
}

/* --- memory --- */

static lks_status build_and_run(void) {
    lks_graph *g = lks_graph_create(lks_device_default(NULL));
    lks_node *x = lks_input(g, "x", LKS_F32, 4, (int64_t[]){LKS_BATCH, 6, 9, 9});
    lks_node *label = lks_input(g, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *y = lks_relu(lks_batch_norm(lks_conv2d(x, 8, 3, "a", NULL), "bn"));
    y = lks_conv2d(lks_max_pool2d(y, 2, 2, NULL), 4, 3, "b", NULL);
    lks_node *loss = lks_cross_entropy(lks_reshape(y, 2, (int64_t[]){LKS_BATCH, 4}), label);
    lks_store *store = NULL;
    lks_program *program = NULL;
    static const float images[2 * 6 * 9 * 9];
    static const int32_t labels[2] = {0, 3};
    lks_status status = lks_store_create(&store, loss, NULL);
    if (status == LKS_OK)
        status =
            lks_program_create(&program, store, &(lks_program_options){.batch = 2, .is_training = 1, .loss = loss});
    if (status == LKS_OK) status = lks_program_set_input(program, x, images);
    if (status == LKS_OK) status = lks_program_set_input(program, label, labels);
    if (status == LKS_OK) status = lks_program_forward(program);
    if (status == LKS_OK) status = lks_program_backward(program, 1);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    lks_status status = LKS_ERR_MEMORY;
    for (int64_t n = 1; status != LKS_OK; n++) {
        lksi_alloc_fail_after(n);
        status = build_and_run();
        lksi_alloc_fail_after(0);
        assert_true(status == LKS_OK || status == LKS_ERR_MEMORY);
        assert_int_equal(lks_memory_nbytes(), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_have_the_gradients_of_finite_differences),
        cmocka_unit_test(convolutions_agree_across_devices),
        cmocka_unit_test(layers_in_a_row_have_the_gradients_of_finite_differences),
        cmocka_unit_test(layers_in_a_row_agree_across_devices),
        cmocka_unit_test(gradients_keep_their_digits_over_many_terms),
        cmocka_unit_test(pools_have_the_gradients_of_finite_differences),
        cmocka_unit_test(pools_agree_across_devices),
        cmocka_unit_test(max_pooling_lets_nan_and_infinities_through),
        cmocka_unit_test(options_that_cannot_be_meant_are_named),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return run_group(tests);
}
