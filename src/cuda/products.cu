/* What our products need beside cuBLAS and cuDNN. */
#include "cuda/bf16.cuh"
#include "cuda/product.h"

/* --- bf16 --- */

__global__ void round_operand(const float *from, uint16_t *to, size_t count) {
    LKSI_FOR_EACH(i, count) to[i] = lksi_bf16_of(from[i]);
}

lks_status lksi_cuda_round(lksi_cuda *cuda, const float *from, size_t count, void *to) {
    LKSI_LAUNCH(round_operand, lksi_grid(count), LKSI_BLOCK, cuda->stream, from, (uint16_t *)to, count);
    return lksi_cuda_launched("f32 to bf16");
}

/* --- endings --- */

static __device__ float value_of(float x) { return x; }
static __device__ float value_of(uint16_t x) { return lksi_bf16_value(x); }

template <typename T>
__global__ void end_product(const T *x, const float *bias, int64_t n_columns, bool is_relu, float *y, size_t count) {
    LKSI_FOR_EACH(i, count) {
        float sum = value_of(x[i]) + (bias != NULL ? bias[i % (size_t)n_columns] : 0.0f);
        y[i] = is_relu && sum < 0 ? 0.0f : sum;
    }
}

template <typename T> static void end_of(lksi_cuda *cuda, const lksi_cuda_ending *e, size_t count, float *y) {
    LKSI_LAUNCH((end_product<T>), lksi_grid(count), LKSI_BLOCK, cuda->stream, (const T *)e->x, e->bias, e->n_columns,
                e->is_relu, y, count);
}

lks_status lksi_cuda_end_product(lksi_cuda *cuda, const lksi_cuda_ending *ending, size_t count, float *y) {
    if (ending->is_rounded)
        end_of<uint16_t>(cuda, ending, count, y);
    else
        end_of<float>(cuda, ending, count, y);
    return lksi_cuda_launched("a product's bias and activation");
}

/* --- sums over rows: each block adds up a chunk of rows for a few columns, then the chunks' sums are rows again --- */

enum { COLUMNS = 32, LANES = LKSI_BLOCK / COLUMNS, MOST_CHUNKS = 128, LEAST_ROWS = 64 };

/* sums (gridDim.y, n_columns): row i is the sum of chunk i. */
__global__ void sum_row_chunks(const float *x, int64_t n_rows, int64_t n_columns, int64_t n_chunk, float *sums) {
    __shared__ float lanes[LANES][COLUMNS];
    unsigned lane = threadIdx.x / COLUMNS, column_here = threadIdx.x % COLUMNS;
    int64_t column = (int64_t)blockIdx.x * COLUMNS + column_here, begin = blockIdx.y * n_chunk;
    int64_t end = begin + n_chunk < n_rows ? begin + n_chunk : n_rows;
    float sum = 0;
    if (column < n_columns)
        for (int64_t row = begin + lane; row < end; row += LANES) sum += x[row * n_columns + column];
    lanes[lane][column_here] = sum;
    __syncthreads();
    if (lane > 0 || column >= n_columns) return;
    for (int i = 1; i < LANES; i++) sum += lanes[i][column_here];
    sums[blockIdx.y * n_columns + column] = sum;
}

static int64_t chunks_of(int64_t n_rows) {
    int64_t n = (n_rows + LEAST_ROWS - 1) / LEAST_ROWS;
    return n < MOST_CHUNKS ? n : (int64_t)MOST_CHUNKS;
}

size_t lksi_cuda_sum_columns_nbytes(int64_t n_rows, int64_t n_columns) {
    return lksi_cuda_aligned((size_t)(chunks_of(n_rows) * n_columns) * sizeof(float));
}

static lks_status sum_in_chunks(lksi_cuda *cuda, const float *x, int64_t n_rows, int64_t n_columns, int64_t n_chunks,
                                float *sums) {
    dim3 grid((unsigned)((n_columns + COLUMNS - 1) / COLUMNS), (unsigned)n_chunks);
    LKSI_LAUNCH(sum_row_chunks, grid, LKSI_BLOCK, cuda->stream, x, n_rows, n_columns,
                (n_rows + n_chunks - 1) / n_chunks, sums);
    return lksi_cuda_launched("a sum of rows");
}

lks_status lksi_cuda_sum_columns(lksi_cuda *cuda, const float *x, int64_t n_rows, int64_t n_columns, void *scratch,
                                 float *sum) {
    int64_t n_chunks = chunks_of(n_rows);
    float *sums = (float *)scratch;
    LKS_TRY(sum_in_chunks(cuda, x, n_rows, n_columns, n_chunks, sums));
    return sum_in_chunks(cuda, sums, n_chunks, n_columns, 1, sum);
}
