/* Operators on each element by itself: any layout, as long as all tensors have the same. */
#include "cuda/kernel.cuh"

/* y = f(a): an activation, or a copy. dx = f(a, b): a is what the forward pass kept (y; of gelu, x), b is dy. */
template <int op> static __device__ float apply(float a, float b, float factor) {
    switch (op) {
    case LKSI_OP_RELU:
        return a > 0 || a != a ? a : 0.0f;
    case LKSI_OP_RELU_GRAD:
        return a > 0 ? b : 0.0f;
    case LKSI_OP_LEAKY_RELU:
        return a > 0 ? a : factor * a;
    case LKSI_OP_LEAKY_RELU_GRAD:
        return a > 0 ? b : factor * b;
    case LKSI_OP_TANH:
        return tanhf(a);
    case LKSI_OP_TANH_GRAD:
        return b * (1 - a * a);
    case LKSI_OP_SIGMOID:
        return 1 / (1 + expf(-a));
    case LKSI_OP_SIGMOID_GRAD:
        return b * a * (1 - a);
    default:
        return a;
    }
}

template <int op>
__global__ void elementwise(const float *a, const float *b, float *y, float factor, size_t count) {
    LKSI_FOR_EACH(i, count) y[i] = apply<op>(a[i], b != NULL ? b[i] : 0.0f, factor);
}

template <int op>
static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    lksi_cuda *cuda = (lksi_cuda *)kernel->state;
    size_t count = (size_t)lksi_tensor_count(&l->outputs[0], 0);
    LKSI_LAUNCH((elementwise<op>), lksi_grid(count), LKSI_BLOCK, cuda->stream, (const float *)in[0],
                l->n_inputs > 1 ? (const float *)in[1] : NULL, (float *)out[0], (float)l->attributes.slope, count);
    return lksi_cuda_launched(kernel->name);
}

lks_status lksi_cuda_lower_elementwise(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    *kernel = lksi_kernel{};
    kernel->name = "cuda:elementwise";
    kernel->lowering = *question;
    kernel->is_deterministic = true;
    kernel->state = device->state;
    switch (question->op) {
    case LKSI_OP_RELU:
        kernel->run = run<LKSI_OP_RELU>;
        break;
    case LKSI_OP_TANH:
        kernel->run = run<LKSI_OP_TANH>;
        break;
    default:
        return lksi_error(LKS_ERR_UNSUPPORTED, "cuda: %s is not written yet", lksi_op_name(question->op));
    }
    lksi_lowering_make_row_major(&kernel->lowering);
    return LKS_OK;
}
