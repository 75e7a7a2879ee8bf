/* Softmax over the last axis, its logarithm, and their gradients. Row-major. A row gets as many threads as it has
 * elements, rounded up to a power of 2, at most a block. A block processes as many rows as fit. Loops are unrolled so
 * that several reads are in flight. */
#include "cuda/kernel.cuh"

namespace {

struct rows {
    size_t n_rows, n_columns, n_steps; /* n_steps: rows of a triangle if causal, else 0 */
    unsigned width;                    /* threads per row, a power of 2 */
};

struct state {
    lksi_cuda *cuda;
    rows shape;
};

/* A thread's view of its row. It processes the elements lane, lane + width, ... */
struct row {
    size_t begin, n_seen, n; /* in elements; n_seen: those not masked; all 0 if there is no such row */
    unsigned lane;
};

__device__ row row_of_thread(const rows &s) {
    row r = {0, 0, 0, threadIdx.x % s.width};
    size_t i = (size_t)blockIdx.x * (LKSI_BLOCK / s.width) + threadIdx.x / s.width;
    if (i >= s.n_rows) return r;
    r.begin = i * s.n_columns;
    r.n = r.n_seen = s.n_columns;
    if (s.n_steps > 0 && i % s.n_steps + 1 < r.n) r.n_seen = i % s.n_steps + 1;
    return r;
}

/* The sum or the maximum of one value per thread of a row, along a fixed tree. Every thread gets it. */
__device__ float combine(float value, float *room, unsigned width, bool is_largest) {
    unsigned lane = threadIdx.x % width;
    float *mine = &room[threadIdx.x];
    *mine = value;
    __syncthreads();
    for (unsigned n = width / 2; n > 0; n /= 2) {
        if (lane < n) *mine = is_largest ? fmaxf(*mine, mine[n]) : *mine + mine[n];
        __syncthreads();
    }
    float result = room[threadIdx.x - lane];
    __syncthreads();
    return result;
}

template <bool is_log> __global__ void softmax(const float *__restrict__ x, float *__restrict__ y, rows s) {
    __shared__ float room[LKSI_BLOCK];
    row r = row_of_thread(s);
    float largest = -INFINITY, sum = 0;
    x += r.begin;
    y += r.begin;
#pragma unroll 4
    for (size_t j = r.lane; j < r.n_seen; j += s.width) largest = fmaxf(largest, x[j]);
    largest = combine(largest, room, s.width, true);
#pragma unroll 4
    for (size_t j = r.lane; j < r.n_seen; j += s.width) sum += expf(x[j] - largest);
    sum = combine(sum, room, s.width, false);
    float log_sum = logf(sum); /* subtracted separately: largest + log_sum would round it away if largest is large */
#pragma unroll 4
    for (size_t j = r.lane; j < r.n_seen; j += s.width) {
        float shifted = x[j] - largest;
        y[j] = is_log ? shifted - log_sum : expf(shifted) / sum;
    }
    for (size_t j = r.n_seen + r.lane; j < r.n; j += s.width) y[j] = 0;
}

template <bool is_log>
__global__ void softmax_grad(const float *__restrict__ y, const float *__restrict__ dy, float *__restrict__ dx,
                             rows s) {
    __shared__ float room[LKSI_BLOCK];
    row r = row_of_thread(s);
    float sum = 0;
    y += r.begin;
    dy += r.begin;
    dx += r.begin;
#pragma unroll 4
    for (size_t j = r.lane; j < r.n_seen; j += s.width) sum += is_log ? dy[j] : dy[j] * y[j];
    sum = combine(sum, room, s.width, false);
#pragma unroll 4
    for (size_t j = r.lane; j < r.n_seen; j += s.width)
        dx[j] = is_log ? dy[j] - expf(y[j]) * sum : y[j] * (dy[j] - sum);
    for (size_t j = r.n_seen + r.lane; j < r.n; j += s.width) dx[j] = 0;
}

unsigned grid_of(const rows *s) {
    size_t n_rows_each = LKSI_BLOCK / s->width;
    return (unsigned)((s->n_rows + n_rows_each - 1) / n_rows_each);
}

template <bool is_log> lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const state *s = (const state *)kernel->state;
    LKSI_LAUNCH((softmax<is_log>), grid_of(&s->shape), LKSI_BLOCK, s->cuda->stream, (const float *)in[0],
                (float *)out[0], s->shape);
    return lksi_cuda_launched(kernel->name);
}

template <bool is_log>
lks_status run_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const state *s = (const state *)kernel->state;
    LKSI_LAUNCH((softmax_grad<is_log>), grid_of(&s->shape), LKSI_BLOCK, s->cuda->stream, (const float *)in[0],
                (const float *)in[1], (float *)out[0], s->shape);
    return lksi_cuda_launched(kernel->name);
}

lksi_cuda_run *run_of(lksi_op op) {
    switch (op) {
    case LKSI_OP_SOFTMAX:
        return run<false>;
    case LKSI_OP_SOFTMAX_GRAD:
        return run_grad<false>;
    case LKSI_OP_LOG_SOFTMAX:
        return run<true>;
    default:
        return run_grad<true>;
    }
}

rows shape_of(const lksi_lowering *l) {
    const lksi_tensor *x = &l->inputs[0];
    bool is_log = l->op == LKSI_OP_LOG_SOFTMAX || l->op == LKSI_OP_LOG_SOFTMAX_GRAD;
    rows s = {(size_t)lksi_tensor_rows(x), (size_t)lksi_tensor_columns(x), 0, 1};
    if (l->attributes.is_causal != 0 && !is_log) s.n_steps = (size_t)x->dims[x->n_dims - 2];
    while (s.width < s.n_columns && s.width < LKSI_BLOCK) s.width *= 2;
    return s;
}

void release(lksi_kernel *kernel) { lksi_free(kernel->state); }

} // namespace

lks_status lksi_cuda_lower_softmax(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    state *s = (state *)lksi_alloc(sizeof *s);
    if (s == NULL) return LKS_ERR_MEMORY;
    lksi_cuda_answer(device, question, kernel);
    lksi_lowering_make_row_major(&kernel->lowering);
    s->cuda = lksi_cuda_of(device);
    s->shape = shape_of(question);
    kernel->run = run_of(question->op);
    kernel->release = release;
    kernel->state = s;
    return LKS_OK;
}
