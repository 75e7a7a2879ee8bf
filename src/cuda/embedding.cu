/* Embedding: rows of a table by number, and the sum of the rows' gradients. */
#include "cuda/team.cuh"

__global__ void embedding(const int *index, const float *w, float *y, size_t n, size_t n_words, size_t k, unsigned team,
                          lksi_cuda_fault_word *fault) {
    LKSI_FOR_EACH_ROW(team, i, n) {
        if (i >= n) continue;
        const int word = index[i];
        const unsigned lane = lksi_team_lane(team);
        if (word < 0 || (size_t)word >= n_words) {
            for (size_t j = lane; j < k; j += team) y[i * k + j] = NAN;
            if (lane != 0 || atomicCAS(&fault->fault, LKSI_NO_FAULT, LKSI_BAD_INDEX) != LKSI_NO_FAULT) continue;
            fault->value = word;
            fault->position = (long long)i;
            fault->most = (long long)n_words - 1;
            continue;
        }
        for (size_t j = lane; j < k; j += team) y[i * k + j] = w[(size_t)word * k + j];
    }
}

/* Blocks that fill the GPU: each has a range of words for itself, and reads all indices for it. */
enum { MOST_RANGES = 1024 };

/* Words [range * n_each, (range + 1) * n_each) are a block's alone, and column j of them a thread's alone: what belongs
 * to a word is added in the order of the indices, without atomics. */
__global__ void embedding_grad(const float *dy, const int *index, float *dw, size_t n, size_t n_words, size_t k,
                               size_t n_each) {
    __shared__ int room[LKSI_BLOCK];
    const size_t begin = blockIdx.x * n_each, end = begin + n_each < n_words ? begin + n_each : n_words;
    const size_t j = (size_t)blockIdx.y * LKSI_BLOCK + threadIdx.x;
    const bool is_one_word = n_each == 1;
    float sum = 0;
    for (size_t word = begin; word < end && j < k; word++) dw[word * k + j] = 0;
    for (size_t first = 0; first < n; first += LKSI_BLOCK) {
        const size_t count = n - first < LKSI_BLOCK ? n - first : (size_t)LKSI_BLOCK;
        if (threadIdx.x < count) room[threadIdx.x] = index[first + threadIdx.x];
        __syncthreads();
        for (size_t i = 0; i < count && j < k; i++) {
            const size_t word = (size_t)room[i]; /* of a negative index, a large one: no range has it */
            if (word < begin || word >= end) continue;
            if (is_one_word)
                sum += dy[(first + i) * k + j]; /* of a character, hundreds: each would wait for the memory */
            else
                dw[word * k + j] += dy[(first + i) * k + j];
        }
        __syncthreads();
    }
    if (is_one_word && j < k) dw[begin * k + j] = sum;
}

static lks_status run_embedding(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *w = &kernel->lowering.inputs[1];
    lksi_cuda *cuda = (lksi_cuda *)kernel->state;
    size_t n = (size_t)lksi_tensor_count(&kernel->lowering.inputs[0], 0), k = (size_t)w->dims[1];
    unsigned team = lksi_team_for(k);
    LKSI_LAUNCH(embedding, lksi_team_grid(team, n), LKSI_BLOCK, cuda->stream, (const int *)in[0], (const float *)in[1],
                (float *)out[0], n, (size_t)w->dims[0], k, team, cuda->fault);
    return lksi_cuda_launched(kernel->name);
}

static lks_status run_embedding_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_tensor *w = &kernel->lowering.outputs[0];
    size_t n = (size_t)lksi_tensor_count(&kernel->lowering.inputs[1], 0);
    size_t n_words = (size_t)w->dims[0], k = (size_t)w->dims[1], n_each = (n_words + MOST_RANGES - 1) / MOST_RANGES;
    dim3 grid((unsigned)((n_words + n_each - 1) / n_each), (unsigned)((k + LKSI_BLOCK - 1) / LKSI_BLOCK));
    LKSI_LAUNCH(embedding_grad, grid, LKSI_BLOCK, ((lksi_cuda *)kernel->state)->stream, (const float *)in[0],
                (const int *)in[1], (float *)out[0], n, n_words, k, n_each);
    return lksi_cuda_launched(kernel->name);
}

lks_status lksi_cuda_lower_embedding(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    const bool is_grad = question->op == LKSI_OP_EMBEDDING_GRAD;
    *kernel = lksi_kernel{};
    kernel->name = is_grad ? "cuda:embedding_grad" : "cuda:embedding";
    kernel->run = is_grad ? run_embedding_grad : run_embedding;
    kernel->lowering = *question;
    kernel->state = device->state;
    lksi_lowering_make_row_major(&kernel->lowering);
    return LKS_OK;
}
