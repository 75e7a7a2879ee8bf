/* Kernels around the products of cuBLAS and cuDNN: bf16 operands, bias and activation, sums of rows. */
#include "cuda/bf16.cuh"
#include "cuda/product.h"

/* --- bf16 --- */

__global__ void round_operand(const float *from, uint16_t *to, size_t count) {
    LKSI_FOR_EACH(i, count) to[i] = lksi_bf16_of(from[i]);
}

/* Four elements at a time. Block 0 also rounds the remaining elements, at most three. */
__global__ void round_by_four(const float *from, uint16_t *to, size_t count) {
    LKSI_FOR_EACH(i, count / 4) {
        float4 x = ((const float4 *)from)[i];
        ((ushort4 *)to)[i] = ushort4{lksi_bf16_of(x.x), lksi_bf16_of(x.y), lksi_bf16_of(x.z), lksi_bf16_of(x.w)};
    }
    if (blockIdx.x > 0 || threadIdx.x >= count % 4) return;
    size_t last = count - 1 - threadIdx.x;
    to[last] = lksi_bf16_of(from[last]);
}

static bool is_aligned(const float *pointer) { return lksi_is_aligned(pointer); }
static bool is_aligned(const uint16_t *pointer) { return (uintptr_t)pointer % sizeof(ushort4) == 0; }

lks_status lksi_cuda_round(lksi_cuda *cuda, const float *from, size_t count, void *to) {
    if (is_aligned(from) && is_aligned((const uint16_t *)to))
        LKSI_LAUNCH(round_by_four, lksi_grid(count / 4), LKSI_BLOCK, cuda->stream, from, (uint16_t *)to, count);
    else
        LKSI_LAUNCH(round_operand, lksi_grid(count), LKSI_BLOCK, cuda->stream, from, (uint16_t *)to, count);
    return lksi_cuda_launched("f32 to bf16");
}

/* --- bias and activation --- */

static __device__ float value_at(const float *x, size_t i) { return x[i]; }
static __device__ float value_at(const uint16_t *x, size_t i) { return lksi_bf16_value(x[i]); }

static __device__ float4 four_at(const float *x, size_t i) { return ((const float4 *)x)[i]; }
static __device__ float4 four_at(const uint16_t *x, size_t i) {
    ushort4 four = ((const ushort4 *)x)[i];
    return float4{lksi_bf16_value(four.x), lksi_bf16_value(four.y), lksi_bf16_value(four.z), lksi_bf16_value(four.w)};
}

static __device__ float end_of_sum(float sum, bool is_relu) { return is_relu && sum < 0 ? 0.0f : sum; }

template <typename T>
__global__ void end_product(const T *x, const float *bias, size_t n_columns, bool is_relu, float *y, size_t count) {
    LKSI_FOR_EACH(i, count) {
        y[i] = end_of_sum(value_at(x, i) + (bias != NULL ? bias[i % n_columns] : 0.0f), is_relu);
    }
}

/* The same, four elements at a time. n_columns must be a multiple of 4 if there is a bias, and count / 4 less than
 * 2^32.
 */
template <typename T>
__global__ void end_by_four(const T *x, const float *bias, uint32_t n_columns, bool is_relu, float4 *y, size_t count) {
    LKSI_FOR_EACH(i, count / 4) {
        float4 p = four_at(x, i), q = {0, 0, 0, 0};
        if (bias != NULL) q = four_at(bias, (uint32_t)i % (n_columns / 4));
        y[i] = float4{end_of_sum(p.x + q.x, is_relu), end_of_sum(p.y + q.y, is_relu), end_of_sum(p.z + q.z, is_relu),
                      end_of_sum(p.w + q.w, is_relu)};
    }
}

template <typename T> static void end_of(lksi_cuda *cuda, const lksi_cuda_ending *e, size_t count, float *y) {
    const T *x = (const T *)e->x;
    size_t n_columns = (size_t)e->n_columns;
    bool fits = count % 4 == 0 && (e->bias == NULL || n_columns % 4 == 0) && count / 4 <= UINT32_MAX;
    if (fits && is_aligned(x) && is_aligned(y) && is_aligned(e->bias))
        LKSI_LAUNCH((end_by_four<T>), lksi_grid(count / 4), LKSI_BLOCK, cuda->stream, x, e->bias, (uint32_t)n_columns,
                    e->is_relu, (float4 *)y, count);
    else
        LKSI_LAUNCH((end_product<T>), lksi_grid(count), LKSI_BLOCK, cuda->stream, x, e->bias, n_columns, e->is_relu, y,
                    count);
}

lks_status lksi_cuda_end_product(lksi_cuda *cuda, const lksi_cuda_ending *ending, size_t count, float *y) {
    if (ending->is_rounded)
        end_of<uint16_t>(cuda, ending, count, y);
    else
        end_of<float>(cuda, ending, count, y);
    return lksi_cuda_launched("a product's bias and activation");
}

/* --- sums over rows: each block sums a chunk of rows for a few columns; a second launch sums the chunks' sums --- */

enum { COLUMNS = 32, LANES = LKSI_BLOCK / COLUMNS, MOST_CHUNKS = 128, LEAST_ROWS = 64 };
/* Up to this many rows are one chunk, because a second launch would take longer. */
enum { FEW_ROWS = 256 };

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
    if (n_rows <= FEW_ROWS) return 1;
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
    if (n_chunks == 1) return sum_in_chunks(cuda, x, n_rows, n_columns, 1, sum);
    LKS_TRY(sum_in_chunks(cuda, x, n_rows, n_columns, n_chunks, sums));
    return sum_in_chunks(cuda, sums, n_chunks, n_columns, 1, sum);
}
