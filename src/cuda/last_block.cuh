/* Sums by many blocks in one launch. Each block stores its part in memory, and the last block to finish adds all parts.
 * Which block is last changes from run to run. The order of additions does not, so the bits are always the same.
 *
 *     __global__ void sum(const float *x, size_t count, double *parts, int *n_done, float *y) {
 *         __shared__ double room[LKSI_BLOCK];
 *         double total = 0;
 *         LKSI_FOR_EACH(i, count) total += (double)x[i];
 *         total = lksi_block_sum(total, room);
 *         if (threadIdx.x == 0) parts[blockIdx.x] = total;
 *         if (!lksi_is_last_block(n_done, gridDim.x)) return;
 *         total = 0;
 *         for (unsigned i = threadIdx.x; i < gridDim.x; i += LKSI_BLOCK) total += parts[i];
 *         total = lksi_block_sum(total, room);
 *         if (threadIdx.x == 0) *y = (float)total;
 *     }
 */
#ifndef LKSI_LAST_BLOCK_CUH
#define LKSI_LAST_BLOCK_CUH

#include "cuda/kernel.cuh"

/* Whether this block is the last of the `n_blocks` blocks that increment *n_done. If so, it sees the writes of all of
 * them. *n_done is 0 before and after. Called once in a kernel, by all threads of a block. */
static __device__ bool lksi_is_last_block(int *n_done, unsigned n_blocks) {
    __shared__ bool is_last;
    __threadfence(); /* release: this thread's writes are visible before its block is counted */
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(n_done, 1) + 1 == (int)n_blocks;
        if (is_last) *n_done = 0;
    }
    __syncthreads();
    if (is_last) __threadfence(); /* acquire: later reads see the writes of all counted blocks */
    return is_last;
}

/* The state of a kernel that uses lksi_is_last_block. */
typedef struct lksi_counting {
    lksi_cuda *cuda;
    int *n_done; /* counters, 0 between runs; NULL if there are none */
} lksi_counting;

static void lksi_counting_release(lksi_kernel *kernel) {
    lksi_counting *counting = (lksi_counting *)kernel->state;
    (void)cudaSetDevice(counting->cuda->index);
    (void)cudaFree(counting->n_done);
    lksi_free(counting);
}

/* Creates the kernel's state with `n_counters` counters. */
static lks_status lksi_counting_create(const lks_device *device, size_t n_counters, lksi_kernel *kernel) {
    lksi_counting *counting = (lksi_counting *)lksi_alloc(sizeof *counting);
    lks_status status = LKS_OK;
    void *n_done = NULL;
    if (counting == NULL) return LKS_ERR_MEMORY;
    if (n_counters > 0) status = lksi_cuda_memory.alloc(device, n_counters * sizeof(int), &n_done);
    counting->cuda = lksi_cuda_of(device);
    counting->n_done = (int *)n_done;
    kernel->state = counting;
    kernel->release = lksi_counting_release;
    if (status != LKS_OK) lksi_counting_release(kernel);
    return status;
}

#endif
