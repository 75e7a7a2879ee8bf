/* Checks an operator of the cuda device against the reference device: the same inputs, and the outputs compared. */
#ifndef OPERATOR_CHECK_H
#define OPERATOR_CHECK_H

#include "cuda/cuda_test.h"

#include <math.h>
#include <string.h>

enum { CHANNELS_LAST = 1 }; /* LKSI_CUDA_CHANNELS_LAST */

typedef struct operator_case {
    lksi_op op;
    lksi_attributes attributes;
    int n_inputs;
    lksi_tensor inputs[LKSI_MAX_INPUTS];
    lksi_tensor result;                /* if the catalogue says "given" */
    const void *data[LKSI_MAX_INPUTS]; /* row-major; NULL: random in [-1, 1), of i32: in [0, n_labels) */
    int n_labels;
    lksi_op epilogues[4]; /* offered; those that are taken are applied to the reference's result, too */
    int n_epilogues;
    int expected_epilogues;                   /* how many of them must be taken */
    bool is_channels_last;                    /* 4-dimensional inputs are offered in this layout */
    bool is_result_channels_last;             /* outputs[0] must have this layout */
    double tolerance;                         /* ‖difference‖ / ‖reference‖ of each output; 0: 2e-6 */
    bool is_output_skipped[LKSI_MAX_OUTPUTS]; /* the device may choose its contents */
    bool is_bf16;                             /* products of operands rounded to bf16 */
} operator_case;

static inline lksi_tensor shape_of(lks_type type, int n_dims, const int64_t *dims) {
    lksi_tensor tensor = {.type = type, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) tensor.dims[i] = dims[i];
    return tensor;
}
#define SHAPE(type, ...)                                                                                               \
    shape_of(type, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

/* (N,C,H,W) to N, H, W, C, or back. */
static inline void to_channels_last(const lksi_tensor *t, const char *from, char *to, bool is_back) {
    size_t nbytes = lks_type_nbytes(t->type);
    int64_t n = t->dims[0], c = t->dims[1], area = t->dims[2] * t->dims[3];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < c; j++)
            for (int64_t k = 0; k < area; k++) {
                size_t plain = (size_t)((i * c + j) * area + k), last = (size_t)((i * area + k) * c + j);
                memcpy(to + (is_back ? plain : last) * nbytes, from + (is_back ? last : plain) * nbytes, nbytes);
            }
}

static inline void fill(const operator_case *c, int input, void *data, uint64_t seed) {
    const lksi_tensor *t = &c->inputs[input];
    size_t count = (size_t)lksi_tensor_count(t, 0);
    if (c->data[input] != NULL) {
        memcpy(data, c->data[input], lksi_tensor_nbytes(t));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        double u = (double)lksi_random_uniform(seed, (uint64_t)input, i);
        switch (t->type) {
        case LKS_F32:
            ((float *)data)[i] = (float)(2 * u - 1);
            break;
        case LKS_F64:
            ((double *)data)[i] = 2 * u - 1;
            break;
        case LKS_I32:
            ((int32_t *)data)[i] = (int32_t)(u * c->n_labels);
            break;
        case LKS_U8:
            ((unsigned char *)data)[i] = u < 0.5;
            break;
        default:
            fail_msg("no random %s", lks_type_name(t->type));
        }
    }
}

static inline double value_at(const lksi_tensor *t, const void *data, size_t i) {
    switch (t->type) {
    case LKS_F32:
        return (double)((const float *)data)[i];
    case LKS_F64:
        return ((const double *)data)[i];
    case LKS_I32:
        return ((const int32_t *)data)[i];
    case LKS_U8:
        return ((const unsigned char *)data)[i];
    default:
        return (double)((const int64_t *)data)[i];
    }
}

static inline void compare(const operator_case *c, int output, const lksi_tensor *t, const void *expected,
                           const void *got) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < (size_t)lksi_tensor_count(t, 0); i++) {
        double a = value_at(t, expected, i), b = value_at(t, got, i);
        if ((isnan(a) && isnan(b)) || (isinf(a) && a == b)) continue;
        difference += (a - b) * (a - b);
        norm += a * a;
    }
    double error = sqrt(difference) / (norm > 0 ? sqrt(norm) : 1),
           most = gpu_tolerance(c->tolerance > 0 ? c->tolerance : 2e-6);
    if (!(error <= most))
        fail_msg("%s: output %d differs from the reference device's by %g", lksi_op_name(c->op), output, error);
}

/* Runs `lowering` on the reference device, and then the epilogues. */
static inline void run_reference(const operator_case *c, const lksi_lowering *lowering, void *const *in,
                                 void *const *out, const lksi_op *epilogues, int n_epilogues) {
    lks_device *reference;
    lksi_kernel kernel;
    assert_ok(lksi_device_create_unchecked(
        &reference, &(lks_device_options){.name = "reference", .precision = c->is_bf16 ? LKS_BF16 : LKS_F32}));
    lksi_lowering plain = *lowering;
    plain.n_epilogues = 0;
    if (plain.op == LKSI_OP_REORDER) plain.op = LKSI_OP_COPY; /* the reference device has only one layout */
    assert_ok(reference->ops->lower(reference, &plain, &kernel));
    char *scratch = lksi_alloc(kernel.scratch_nbytes);
    assert_ok(kernel.run(&kernel, in, out, scratch));
    lksi_free(scratch);
    for (int i = 0; i < n_epilogues; i++) {
        lksi_lowering after = {.op = epilogues[i], .n_inputs = 1, .n_outputs = 1};
        after.inputs[0] = after.outputs[0] = lowering->outputs[0];
        assert_ok(reference->ops->lower(reference, &after, &kernel));
        assert_ok(kernel.run(&kernel, &out[0], &out[0], NULL));
    }
    lks_device_destroy(reference);
}

/* The kernel must write all of each output: they start as NaN. */
static inline void run_cuda_kernel(const lks_device *device, const lksi_kernel *kernel, void *const *in, void **out) {
    const lksi_lowering *l = &kernel->lowering;
    void *inputs[LKSI_MAX_INPUTS], *outputs[LKSI_MAX_OUTPUTS], *scratch;
    for (int i = 0; i < l->n_inputs; i++) {
        size_t nbytes = lksi_tensor_nbytes(&l->inputs[i]);
        char *stored = lksi_alloc(nbytes);
        if (l->input_layouts[i].id == CHANNELS_LAST)
            to_channels_last(&l->inputs[i], in[i], stored, false);
        else
            memcpy(stored, in[i], nbytes);
        assert_ok(lksi_device_alloc(device, nbytes, &inputs[i]));
        assert_ok(lksi_device_copy_in(device, inputs[i], stored, nbytes));
        lksi_free(stored);
    }
    for (int i = 0; i < l->n_outputs; i++) {
        size_t nbytes = lksi_tensor_nbytes(&l->outputs[i]);
        memset(out[i], 0xff, nbytes);
        assert_ok(lksi_device_alloc(device, nbytes, &outputs[i]));
        assert_ok(lksi_device_copy_in(device, outputs[i], out[i], nbytes));
    }
    assert_ok(lksi_device_alloc(device, kernel->scratch_nbytes, &scratch));
    assert_ok(kernel->run(kernel, inputs, outputs, scratch));
    for (int i = 0; i < l->n_outputs; i++) {
        size_t nbytes = lksi_tensor_nbytes(&l->outputs[i]);
        char *stored = lksi_alloc(nbytes);
        assert_ok(lksi_device_copy_out(device, stored, outputs[i], nbytes));
        if (l->output_layouts[i].id == CHANNELS_LAST)
            to_channels_last(&l->outputs[i], stored, out[i], true);
        else
            memcpy(out[i], stored, nbytes);
        lksi_free(stored);
        lksi_device_free(device, outputs[i]);
    }
    for (int i = 0; i < l->n_inputs; i++) lksi_device_free(device, inputs[i]);
    lksi_device_free(device, scratch);
}

/* One device for all checks: its workspaces are large, and emulated memory is never reused. */
static inline lks_device *device_of(bool is_bf16) {
    static lks_device *devices[2];
    lks_device_options options = {.name = "cuda:0", .precision = is_bf16 ? LKS_BF16 : LKS_F32};
    if (devices[is_bf16] == NULL) assert_ok(lks_device_create(&devices[is_bf16], &options));
    return devices[is_bf16];
}

static inline void check_operator(const operator_case *c) {
    lks_device *device = device_of(c->is_bf16);
    lksi_kernel kernel;
    lksi_lowering lowering = {.op = c->op,
                              .attributes = c->attributes,
                              .n_inputs = c->n_inputs,
                              .n_outputs = lksi_op_n_outputs(c->op),
                              .epilogues = c->epilogues,
                              .n_epilogues = c->n_epilogues};
    lowering.outputs[0] = c->result;
    memcpy(lowering.inputs, c->inputs, sizeof lowering.inputs);
    assert_ok(lksi_op_infer(c->op, &c->attributes, c->inputs, c->n_inputs, lowering.outputs));
    for (int i = 0; c->is_channels_last && i < c->n_inputs; i++)
        if (c->inputs[i].n_dims == 4)
            lowering.input_layouts[i] = (lksi_layout){CHANNELS_LAST, lksi_tensor_nbytes(&c->inputs[i])};
    if (c->is_result_channels_last)
        lowering.output_layouts[0] = (lksi_layout){CHANNELS_LAST, lksi_tensor_nbytes(&lowering.outputs[0])};
    void *in[LKSI_MAX_INPUTS], *expected[LKSI_MAX_OUTPUTS], *got[LKSI_MAX_OUTPUTS];
    for (int i = 0; i < c->n_inputs; i++) {
        in[i] = lksi_alloc(lksi_tensor_nbytes(&c->inputs[i]));
        fill(c, i, in[i], 1);
    }
    for (int i = 0; i < lowering.n_outputs; i++) {
        expected[i] = lksi_alloc(lksi_tensor_nbytes(&lowering.outputs[i]));
        got[i] = lksi_alloc(lksi_tensor_nbytes(&lowering.outputs[i]));
    }
    assert_ok(device->ops->lower(device, &lowering, &kernel));
    assert_int_equal(kernel.n_epilogues, c->expected_epilogues);
    run_reference(c, &lowering, in, expected, kernel.epilogues, kernel.n_epilogues);
    run_cuda_kernel(device, &kernel, in, got);
    for (int i = 0; i < lowering.n_outputs; i++)
        if (!c->is_output_skipped[i]) compare(c, i, &lowering.outputs[i], expected[i], got[i]);
    if (kernel.release != NULL) kernel.release(&kernel);
    for (int i = 0; i < c->n_inputs; i++) lksi_free(in[i]);
    for (int i = 0; i < lowering.n_outputs; i++) {
        lksi_free(expected[i]);
        lksi_free(got[i]);
    }
}

#endif
