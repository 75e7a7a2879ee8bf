/* labels: no-asan */
/* Convolutions of the cuda device, on the emulated GPU. */
#include "cuda/recording_check.h"

typedef struct geometry {
    int64_t n, c, h, w, m, window[2], stride[2], padding[2], dilation[2], groups;
} geometry;

static const geometry geometries[] = {
    {1, 1, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 3, 7, 9, 4, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {3, 4, 8, 5, 6, {3, 2}, {2, 1}, {0, 2}, {1, 1}, 2},
    {2, 4, 9, 9, 4, {3, 3}, {1, 2}, {2, 1}, {2, 3}, 4},
    {2, 5, 6, 6, 3, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 1},
    {4, 2, 28, 28, 33, {5, 5}, {1, 1}, {2, 2}, {1, 1}, 1},
    {7, 16, 6, 6, 8, {6, 6}, {1, 1}, {0, 0}, {1, 1}, 1},
    {20, 1, 24, 24, 33, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
    /* windows that cover the whole image: products with one row, with two, and cases that remain for cuDNN */
    {9, 8, 1, 1, 12, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {5, 3, 2, 2, 7, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1},
    {6, 4, 2, 3, 8, {4, 5}, {9, 9}, {1, 2}, {1, 1}, 1},
    {3, 4, 3, 3, 5, {5, 5}, {4, 4}, {1, 1}, {1, 1}, 1},
    {4, 6, 1, 4, 5, {3, 4}, {1, 1}, {1, 0}, {1, 1}, 1},
    {4, 6, 2, 4, 8, {2, 4}, {1, 1}, {0, 0}, {1, 1}, 2},
};
enum { N_GEOMETRIES = sizeof geometries / sizeof geometries[0] };

/* bf16 operands give bf16 results, with 8 bits. f32 gradients of weights are sums of up to 11520 products. */
#define BF16_TOLERANCE 4e-3
#define GRADIENT_TOLERANCE 1e-5

static lksi_attributes attributes_of(const geometry *g) {
    return (lksi_attributes){.stride = {g->stride[0], g->stride[1]},
                             .padding = {g->padding[0], g->padding[1]},
                             .dilation = {g->dilation[0], g->dilation[1]},
                             .groups = g->groups};
}
static lksi_tensor x_of(const geometry *g) { return SHAPE(LKS_F32, g->n, g->c, g->h, g->w); }
static lksi_tensor w_of(const geometry *g) {
    return SHAPE(LKS_F32, g->m, g->c / g->groups, g->window[0], g->window[1]);
}
static lksi_tensor y_of(const geometry *g) {
    lksi_attributes a = attributes_of(g);
    lksi_tensor inputs[] = {x_of(g), w_of(g)}, y = {0};
    assert_ok(lksi_op_infer(LKSI_OP_CONV2D, &a, inputs, 2, &y));
    return y;
}

static void forward_with_and_without_bias_and_relu(void **state) {
    (void)state;
    for (int i = 0; i < N_GEOMETRIES * 8; i++) {
        const geometry *g = &geometries[i / 8];
        check_operator(&(operator_case){.op = LKSI_OP_CONV2D,
                                        .attributes = attributes_of(g),
                                        .n_inputs = i % 2 == 0 ? 2 : 3,
                                        .inputs = {x_of(g), w_of(g), SHAPE(LKS_F32, g->m)},
                                        .epilogues = {LKSI_OP_RELU, LKSI_OP_TANH},
                                        .n_epilogues = i % 4 < 2 ? 0 : 2,
                                        .expected_epilogues = i % 4 < 2 ? 0 : 1,
                                        .is_channels_last = i % 3 == 0,
                                        .is_bf16 = i % 8 >= 4,
                                        .tolerance = i % 8 >= 4 ? BF16_TOLERANCE : 0});
    }
}

static void gradients(void **state) {
    (void)state;
    for (int i = 0; i < N_GEOMETRIES * 2; i++) {
        const geometry *g = &geometries[i / 2];
        bool is_bf16 = i % 2 == 1;
        check_operator(&(operator_case){.op = LKSI_OP_CONV2D_GRAD_INPUT,
                                        .attributes = attributes_of(g),
                                        .n_inputs = 2,
                                        .inputs = {y_of(g), w_of(g)},
                                        .result = x_of(g),
                                        .is_bf16 = is_bf16,
                                        .tolerance = is_bf16 ? BF16_TOLERANCE : GRADIENT_TOLERANCE});
        check_operator(&(operator_case){.op = LKSI_OP_CONV2D_GRAD_WEIGHT,
                                        .attributes = attributes_of(g),
                                        .n_inputs = 2,
                                        .inputs = {y_of(g), x_of(g)},
                                        .result = w_of(g),
                                        .is_channels_last = true,
                                        .is_bf16 = is_bf16,
                                        .tolerance = is_bf16 ? BF16_TOLERANCE : GRADIENT_TOLERANCE});
    }
}

/* Images and weights are channels-last whatever is offered, so that one choice of layout serves all. */
static void layouts_are_channels_last(void **state) {
    (void)state;
    lks_device *device = create_cuda();
    lksi_kernel kernel;
    const geometry *g = &geometries[1];
    lksi_lowering l = {.op = LKSI_OP_CONV2D, .attributes = attributes_of(g), .n_inputs = 3, .n_outputs = 1};
    l.inputs[0] = x_of(g);
    l.inputs[1] = w_of(g);
    l.inputs[2] = SHAPE(LKS_F32, g->m);
    l.outputs[0] = y_of(g);
    assert_ok(device->ops->lower(device, &l, &kernel));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kernel.lowering.input_layouts[i].id, CHANNELS_LAST);
        assert_int_equal(kernel.lowering.input_layouts[i].nbytes, lksi_tensor_nbytes(&l.inputs[i]));
    }
    assert_int_equal(kernel.lowering.input_layouts[2].id, 0);
    assert_int_equal(kernel.lowering.output_layouts[0].id, CHANNELS_LAST);
    kernel.release(&kernel);
    lks_device_destroy(device);
}

/* For images of one position both layouts are the same, so no reorders are needed. */
static void images_of_one_position_are_row_major(void **state) {
    (void)state;
    lks_device *device = create_cuda();
    lksi_kernel kernel;
    lksi_layout storage;
    const geometry *g = &geometries[0];
    lksi_lowering l = {.op = LKSI_OP_CONV2D, .attributes = attributes_of(g), .n_inputs = 2, .n_outputs = 1};
    l.inputs[0] = x_of(g);
    l.inputs[1] = w_of(g);
    l.outputs[0] = y_of(g);
    assert_ok(device->ops->lower(device, &l, &kernel));
    assert_ok(device->ops->choose_storage(device, &l, 1, &storage));
    for (int i = 0; i < 2; i++) assert_int_equal(kernel.lowering.input_layouts[i].id, 0);
    assert_int_equal(kernel.lowering.output_layouts[0].id, 0);
    assert_int_equal(storage.id, 0);
    kernel.release(&kernel);
    lks_device_destroy(device);
}

static void a_bias_gradient_that_nobody_reads_is_not_made(void **state) {
    (void)state;
    lks_device *device = create_cuda();
    lksi_kernel kernel;
    const geometry *g = &geometries[1];
    void *in[2], *out[2] = {0}, *scratch;
    lksi_lowering l = {.op = LKSI_OP_CONV2D_GRAD_WEIGHT,
                       .attributes = attributes_of(g),
                       .n_inputs = 2,
                       .n_outputs = 2,
                       .inputs = {y_of(g), x_of(g)},
                       .outputs = {w_of(g), SHAPE(LKS_F32, g->m)},
                       .is_output_unread = {false, true}};
    assert_ok(device->ops->lower(device, &l, &kernel));
    for (int i = 0; i < 2; i++) assert_ok(lksi_device_alloc(device, lksi_tensor_nbytes(&l.inputs[i]), &in[i]));
    assert_ok(lksi_device_alloc(device, lksi_tensor_nbytes(&l.outputs[0]), &out[0]));
    assert_ok(lksi_device_alloc(device, kernel.scratch_nbytes, &scratch));
    assert_ok(kernel.run(&kernel, in, out, scratch));
    assert_ok(device->ops->memory->wait(device));
    for (int i = 0; i < 2; i++) lksi_device_free(device, in[i]);
    lksi_device_free(device, out[0]);
    lksi_device_free(device, scratch);
    kernel.release(&kernel);
    lks_device_destroy(device);
}

static void recorded_gradient(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        const geometry *g = &geometries[i < 2 ? 2 : 9];
        check_recording(&(operator_case){.op = LKSI_OP_CONV2D_GRAD_WEIGHT,
                                         .attributes = attributes_of(g),
                                         .n_inputs = 2,
                                         .inputs = {y_of(g), x_of(g)},
                                         .result = w_of(g),
                                         .is_bf16 = i % 2 == 1});
    }
}

static void what_cudnn_refuses_is_one_clear_line(void **state) {
    (void)state;
    need_emulated_gpu();
    lks_device *device = create_cuda();
    lksi_kernel kernel;
    const geometry *g = &geometries[2];
    lksi_lowering l = {.op = LKSI_OP_CONV2D_GRAD_WEIGHT, .attributes = attributes_of(g), .n_inputs = 2, .n_outputs = 2};
    l.inputs[0] = y_of(g);
    l.inputs[1] = x_of(g);
    l.outputs[0] = w_of(g);
    l.outputs[1] = SHAPE(LKS_F32, g->m);
    setenv("LOCKSTEP_EMULATED_GPU", "no-convolution", 1);
    lks_status status = device->ops->lower(device, &l, &kernel);
    unsetenv("LOCKSTEP_EMULATED_GPU");
    assert_int_equal(status, LKS_ERR_UNSUPPORTED);
    assert_string_equal(lks_error_text(),
                        "cuDNN has no deterministic algorithm for conv2d_grad_weight: x f32 (3, 4, 8, 5), weights f32 "
                        "(6, 2, 3, 2), stride 2x1, padding 0x2, dilation 1x1, 2 groups: CUDNN_STATUS_NOT_SUPPORTED");
    lks_device_destroy(device);
}

/* cuDNN must be asked to time its algorithms: the emulation refuses the heuristics. */
static void algorithms_are_timed_where_the_variable_says_so(void **state) {
    (void)state;
    need_emulated_gpu();
    const geometry *g = &geometries[1];
    lksi_tensor x = x_of(g), w = w_of(g), y = y_of(g);
    lksi_lowering questions[] = {{.op = LKSI_OP_CONV2D, .n_outputs = 1, .inputs = {x, w}, .outputs = {y}},
                                 {.op = LKSI_OP_CONV2D_GRAD_INPUT, .n_outputs = 1, .inputs = {y, w}, .outputs = {x}},
                                 {.op = LKSI_OP_CONV2D_GRAD_WEIGHT, .n_outputs = 2, .inputs = {y, x}, .outputs = {w}}};
    questions[2].outputs[1] = SHAPE(LKS_F32, g->m);
    setenv("LOCKSTEP_EMULATED_GPU", "no-heuristics", 1);
    setenv("LOCKSTEP_CUDNN_BENCHMARK", "1", 1);
    lks_device *device = create_cuda();
    for (int i = 0; i < 3; i++) {
        lksi_kernel kernel;
        questions[i].attributes = attributes_of(g);
        questions[i].n_inputs = 2;
        assert_ok(device->ops->lower(device, &questions[i], &kernel));
        kernel.release(&kernel);
    }
    lks_device_destroy(device);
    setenv("LOCKSTEP_CUDNN_BENCHMARK", "yes", 1);
    assert_int_equal(lks_device_create(&device, &(lks_device_options){.name = "cuda"}), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "LOCKSTEP_CUDNN_BENCHMARK 'yes' is not 0 or 1");
    unsetenv("LOCKSTEP_CUDNN_BENCHMARK");
    unsetenv("LOCKSTEP_EMULATED_GPU");
}

static void what_is_too_large_for_cudnn_is_named(void **state) {
    (void)state;
    lks_device *device = create_cuda();
    lksi_kernel kernel;
    const geometry *g = &geometries[2];
    lksi_lowering l = {.op = LKSI_OP_CONV2D, .attributes = attributes_of(g), .n_inputs = 2, .n_outputs = 1};
    l.inputs[0] = x_of(g);
    l.inputs[1] = w_of(g);
    l.outputs[0] = y_of(g);
    l.inputs[0].dims[0] = l.outputs[0].dims[0] = 20000000;
    assert_int_equal(device->ops->lower(device, &l, &kernel), LKS_ERR_UNSUPPORTED);
    assert_string_equal(lks_error_text(),
                        "conv2d: cuDNN takes tensors of at most 2147483647 elements, f32 (20000000, 4, 8, 5) has "
                        "3200000000: take a smaller batch, or more micro-batches (accumulate)");
    lks_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward_with_and_without_bias_and_relu),
                                       cmocka_unit_test(gradients),
                                       cmocka_unit_test(layouts_are_channels_last),
                                       cmocka_unit_test(images_of_one_position_are_row_major),
                                       cmocka_unit_test(a_bias_gradient_that_nobody_reads_is_not_made),
                                       cmocka_unit_test(recorded_gradient),
                                       cmocka_unit_test(what_cudnn_refuses_is_one_clear_line),
                                       cmocka_unit_test(algorithms_are_timed_where_the_variable_says_so),
                                       cmocka_unit_test(what_is_too_large_for_cudnn_is_named)};
    return run_cuda_tests("cuda convolution", tests);
}
