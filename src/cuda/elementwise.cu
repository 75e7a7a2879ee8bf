/* Element-wise operators, in any layout that all tensors share. */
#include "cuda/kernel.cuh"

namespace {

/* The normal distribution function. erfc is accurate far below 0, where 1 + erf would cancel. */
__device__ float normal_below(float x) { return 0.5f * erfcf(x * -0.70710678f); }
__device__ float normal_density(float x) { return 0.39894228f * expf(x * x * -0.5f); }

/* Activations: y = f(a). Gradients: dx = f(a, b). a is what the forward pass kept, y or x according to the catalogue. b
 * is dy. */
template <int op> __device__ float apply(float a, float b, float number) {
    switch (op) {
    case LKSI_OP_RELU:
        return a < 0 ? 0.0f : a;
    case LKSI_OP_RELU_GRAD:
        return a > 0 ? b : 0.0f;
    case LKSI_OP_LEAKY_RELU:
        return a > 0 ? a : number * a;
    case LKSI_OP_LEAKY_RELU_GRAD:
        return a > 0 ? b : number * b;
    case LKSI_OP_GELU:
        return a * normal_below(a);
    case LKSI_OP_GELU_GRAD:
        return b * (normal_below(a) + a * normal_density(a));
    case LKSI_OP_TANH:
        return tanhf(a);
    case LKSI_OP_TANH_GRAD:
        return b * (1 - a * a);
    case LKSI_OP_SIGMOID:
        return 1 / (1 + expf(-a));
    case LKSI_OP_SIGMOID_GRAD:
        return b * a * (1 - a);
    case LKSI_OP_EXP:
        return expf(a);
    case LKSI_OP_LOG:
        return logf(a);
    case LKSI_OP_LOG1P:
        return log1pf(a);
    case LKSI_OP_SIN:
        return sinf(a);
    case LKSI_OP_COS:
        return cosf(a);
    case LKSI_OP_SQRT:
        return sqrtf(a);
    case LKSI_OP_POW:
        return powf(a, number);
    case LKSI_OP_ABS:
        return fabsf(a);
    case LKSI_OP_ABS_GRAD:
        return a > 0 ? b : a < 0 ? -b : 0 * a;
    case LKSI_OP_AT_LEAST:
        return a < number ? number : a;
    case LKSI_OP_AT_LEAST_GRAD:
        return a >= number ? b : 0;
    case LKSI_OP_ADD_SCALAR:
        return a + number;
    default: /* SCALE */
        return number * a;
    }
}

/* `b` has one element per element of a, or one for all (SCALE), or is NULL. */
template <int op> __global__ void one_by_one(const float *a, const float *b, float *y, float number, size_t count) {
    if (op == LKSI_OP_SCALE && b != NULL) number *= *b;
    bool has_each = op != LKSI_OP_SCALE && b != NULL;
    LKSI_FOR_EACH(i, count) y[i] = apply<op>(a[i], has_each ? b[i] : 0.0f, number);
}

/* The same for pointers aligned to 16 bytes. `count` is the number of float4. */
template <int op> __global__ void four_by_four(const float4 *a, const float *b, float4 *y, float number, size_t count) {
    if (op == LKSI_OP_SCALE && b != NULL) number *= *b;
    bool has_each = op != LKSI_OP_SCALE && b != NULL;
    LKSI_FOR_EACH(i, count) {
        float4 p = a[i], q = has_each ? ((const float4 *)b)[i] : float4{0, 0, 0, 0};
        y[i] = float4{apply<op>(p.x, q.x, number), apply<op>(p.y, q.y, number), apply<op>(p.z, q.z, number),
                      apply<op>(p.w, q.w, number)};
    }
}

template <int op> lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    lksi_cuda *cuda = (lksi_cuda *)kernel->state;
    size_t count = (size_t)lksi_tensor_count(&l->outputs[0], 0);
    const float *b = l->n_inputs > 1 ? (const float *)in[1] : NULL;
    float number = (float)l->attributes.number;
    bool is_aligned = lksi_is_aligned(in[0]) && lksi_is_aligned(out[0]) && (op == LKSI_OP_SCALE || lksi_is_aligned(b));
    if (count % 4 == 0 && is_aligned)
        LKSI_LAUNCH((four_by_four<op>), lksi_grid(count / 4), LKSI_BLOCK, cuda->stream, (const float4 *)in[0], b,
                    (float4 *)out[0], number, count / 4);
    else
        LKSI_LAUNCH((one_by_one<op>), lksi_grid(count), LKSI_BLOCK, cuda->stream, (const float *)in[0], b,
                    (float *)out[0], number, count);
    return lksi_cuda_launched(kernel->name);
}

__global__ void fill(float *y, float number, size_t count) { LKSI_FOR_EACH(i, count) y[i] = number; }

lks_status full(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)in, (void)scratch;
    lksi_cuda *cuda = (lksi_cuda *)kernel->state;
    size_t count = (size_t)lksi_tensor_count(&kernel->lowering.outputs[0], 0);
    LKSI_LAUNCH(fill, lksi_grid(count), LKSI_BLOCK, cuda->stream, (float *)out[0],
                (float)kernel->lowering.attributes.number, count);
    return lksi_cuda_launched(kernel->name);
}

lks_status copy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    lksi_cuda *cuda = (lksi_cuda *)kernel->state;
    size_t nbytes = lksi_tensor_nbytes(&kernel->lowering.outputs[0]);
    return lksi_cuda_check(cudaMemcpyAsync(out[0], in[0], nbytes, cudaMemcpyDeviceToDevice, cuda->stream),
                           kernel->name);
}

lksi_cuda_run *run_of(lksi_op op) {
    switch (op) {
#define RUN_OF(name, text, least_inputs, most_inputs, n_outputs, family)                                               \
    case LKSI_OP_##name:                                                                                               \
        return run<LKSI_OP_##name>;
        LKSI_OP_ELEMENTWISES(RUN_OF)
#undef RUN_OF
    case LKSI_OP_FULL:
        return full;
    default:
        return copy;
    }
}

} // namespace

lks_status lksi_cuda_lower_elementwise(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    lksi_cuda_answer(device, question, kernel);
    kernel->run = run_of(question->op);
    lksi_lowering *l = &kernel->lowering;
    l->output_layouts[0] = l->input_layouts[0];
    if (l->n_inputs > 1 && l->op != LKSI_OP_SCALE) l->input_layouts[1] = l->input_layouts[0];
    return LKS_OK;
}
