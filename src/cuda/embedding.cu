/* Embedding: rows of a table by index, and the sums of the rows' gradients. */
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

/* MOST_RANGES blocks fill the GPU. Each block owns a range of words and scans all indices for them. */
enum { MOST_RANGES = 1024, N_MASKS = 32, CHUNK = 32 * N_MASKS, AT_ONCE = 4 };

/* The indices of a chunk that are in the block's range: a bit mask, and their positions in order. */
typedef struct matches {
    int masks[N_MASKS];
    unsigned at[CHUNK], count;
} matches;

/* Called by all threads of a block. A negative index is huge as a size_t, so no range contains it. */
static __device__ void find_matches(const int *index, size_t n, size_t begin, size_t end, matches *found) {
    if (threadIdx.x < N_MASKS) found->masks[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < CHUNK && i < n; i += LKSI_BLOCK)
        if ((size_t)index[i] >= begin && (size_t)index[i] < end) atomicAdd(&found->masks[i / 32], (int)(1u << i % 32));
    __syncthreads();
    if (threadIdx.x < N_MASKS) {
        unsigned n_before = 0;
        for (unsigned i = 0; i < threadIdx.x; i++) n_before += (unsigned)__popc((unsigned)found->masks[i]);
        for (unsigned i = 0; i < 32; i++)
            if ((unsigned)found->masks[threadIdx.x] >> i & 1) found->at[n_before++] = 32 * threadIdx.x + i;
        if (threadIdx.x == N_MASKS - 1) found->count = n_before;
    }
    __syncthreads();
}

/* A column of a block's words. The current word's sum stays in a register until another word follows. */
typedef struct column {
    float *dw;
    size_t n_columns, word;
    float sum;
} column;

static __device__ void add_to(column *c, size_t word, float more) {
    if (word != c->word) {
        c->dw[c->word * c->n_columns] = c->sum;
        c->sum = c->dw[word * c->n_columns];
        c->word = word;
    }
    c->sum += more;
}

/* Only one block writes words [range * n_each, (range + 1) * n_each), and only one of its threads writes column j. So
 * the gradients of a word are added in the order of the indices, without atomics. AT_ONCE gradients are read at a time
 * to hide the memory latency. */
__global__ void embedding_grad(const float *dy, const int *index, float *dw, size_t n, size_t n_words, size_t k,
                               size_t n_each) {
    __shared__ matches found;
    const size_t begin = blockIdx.x * n_each, end = begin + n_each < n_words ? begin + n_each : n_words;
    const size_t j = (size_t)blockIdx.y * LKSI_BLOCK + threadIdx.x;
    column c = {dw + j, k, begin, 0};
    for (size_t word = begin; word < end && j < k; word++) dw[word * k + j] = 0;
    for (size_t first = 0; first < n; first += CHUNK) {
        find_matches(index + first, n - first, begin, end, &found);
        for (unsigned m = 0; m < found.count && j < k; m += AT_ONCE) {
            const unsigned count = found.count - m < AT_ONCE ? found.count - m : (unsigned)AT_ONCE;
            float more[AT_ONCE];
            for (unsigned q = 0; q < AT_ONCE; q++) more[q] = q < count ? dy[(first + found.at[m + q]) * k + j] : 0;
            for (unsigned q = 0; q < AT_ONCE; q++)
                if (q < count) add_to(&c, (size_t)index[first + found.at[m + q]], more[q]);
        }
    }
    if (j < k) dw[c.word * k + j] = c.sum;
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
