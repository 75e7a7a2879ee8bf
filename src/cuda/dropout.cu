/* Dropout, with the draws defined in op/dropout.h. They are the same on every device. */
#include "cuda/kernel.cuh"

/* The values of lksi_dropout_begin that the host knows. The others are in the GPU's memory. */
typedef struct draws {
    uint64_t stream_hash; /* of the operator's stream; the kernel continues the hash with the step */
    uint32_t threshold;
    float factor;
} draws;

/* Philox4x32-10, as base/philox.c. */
static __device__ void philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1,
                              uint32_t *out) {
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * c0, product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* lksi_hash64 over the bytes of `value`. */
static __device__ uint64_t hash_on(uint64_t hash, uint64_t value) {
    for (int i = 0; i < 64; i += 8) hash = (hash ^ (value >> i & 0xff)) * 0x100000001b3u;
    return hash;
}

/* One Philox call gives the words for four elements of a sample. They go through shared memory, so that neighbouring
 * threads write neighbouring elements. `random`: seed, step, first sample. */
__global__ void dropout(draws d, const float *x, const int64_t *random, float *y, uint8_t *mask, size_t n_samples,
                        size_t n_each) {
    __shared__ uint32_t words[4 * LKSI_BLOCK];
    const uint64_t seed = (uint64_t)random[0], stream = hash_on(d.stream_hash, (uint64_t)random[1]);
    const size_t first = (size_t)blockIdx.x * 4 * LKSI_BLOCK;
    for (size_t sample = blockIdx.y; sample < n_samples; sample += gridDim.y) {
        philox((uint32_t)(first / 4) + threadIdx.x, (uint32_t)random[2] + (uint32_t)sample, (uint32_t)stream,
               (uint32_t)(stream >> 32), (uint32_t)seed, (uint32_t)(seed >> 32), &words[4 * threadIdx.x]);
        __syncthreads();
        for (unsigned i = threadIdx.x; i < 4 * LKSI_BLOCK && first + i < n_each; i += LKSI_BLOCK) {
            const size_t at = sample * n_each + first + i;
            const bool is_kept = words[i] >= d.threshold;
            mask[at] = is_kept;
            y[at] = is_kept ? x[at] * d.factor : 0;
        }
        __syncthreads();
    }
}

__global__ void dropout_grad(const float *dy, const uint8_t *mask, float *dx, float factor, size_t count) {
    LKSI_FOR_EACH(i, count) dx[i] = mask[i] != 0 ? dy[i] * factor : 0;
}

static lks_status run_dropout(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_attributes *a = &kernel->lowering.attributes;
    const lksi_tensor *x = &kernel->lowering.inputs[0];
    const size_t n_samples = (size_t)x->dims[0], n_each = (size_t)lksi_tensor_count(x, 0) / n_samples;
    const size_t n_per_block = 4 * LKSI_BLOCK;
    draws d = {lksi_hash64(LKSI_HASH_START, &a->stream, sizeof a->stream), (uint32_t)(a->probability * 0x1p32),
               (float)(1 / (1 - a->probability))};
    dim3 grid((unsigned)((n_each + n_per_block - 1) / n_per_block), (unsigned)(n_samples < 65535 ? n_samples : 65535));
    LKSI_LAUNCH(dropout, grid, LKSI_BLOCK, ((lksi_cuda *)kernel->state)->stream, d, (const float *)in[0],
                (const int64_t *)in[1], (float *)out[0], (uint8_t *)out[1], n_samples, n_each);
    return lksi_cuda_launched(kernel->name);
}

static lks_status run_dropout_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    size_t count = (size_t)lksi_tensor_count(&kernel->lowering.outputs[0], 0);
    LKSI_LAUNCH(dropout_grad, lksi_grid(count), LKSI_BLOCK, ((lksi_cuda *)kernel->state)->stream, (const float *)in[0],
                (const uint8_t *)in[1], (float *)out[0], (float)(1 / (1 - kernel->lowering.attributes.probability)),
                count);
    return lksi_cuda_launched(kernel->name);
}

lks_status lksi_cuda_lower_dropout(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    const bool is_grad = question->op == LKSI_OP_DROPOUT_GRAD;
    *kernel = lksi_kernel{};
    kernel->name = is_grad ? "cuda:dropout_grad" : "cuda:dropout";
    kernel->run = is_grad ? run_dropout_grad : run_dropout;
    kernel->lowering = *question;
    kernel->state = device->state;
    lksi_lowering_make_row_major(&kernel->lowering);
    return LKS_OK;
}
