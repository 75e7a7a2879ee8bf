/* How kernels are written and launched, for nvcc and for the emulation of the tests.
 *
 *     __global__ void relu(const float *x, float *y, size_t count) {
 *         LKSI_FOR_EACH(i, count) y[i] = x[i] > 0 ? x[i] : 0;
 *     }
 *     LKSI_LAUNCH(relu, lksi_grid(count), LKSI_BLOCK, stream, x, y, count);
 *     return lksi_cuda_launched("relu");
 *
 * The emulation runs the threads of a block one after the other, each up to the next __syncthreads, and the blocks one
 * after the other. So a kernel may use: __global__, __device__, __shared__ (of a size known to the compiler),
 * __syncthreads (reached by all threads of a block or by none), __threadfence, threadIdx, blockIdx, blockDim, gridDim
 * (x, y, z), atomicCAS and atomicAdd of int, __popc, the functions of <math.h>. No warp functions, no dynamic shared
 * memory, no textures. Sums over many are made in a fixed order, never by atomics on floats: the same bits every time.
 */
#ifndef LKSI_KERNEL_CUH
#define LKSI_KERNEL_CUH

#include "cuda/cuda.h"

#ifdef __CUDACC__
#define LKSI_LAUNCH(kernel, grid, block, stream, ...) kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)
#else
#include "cuda/emulation/kernel.h" /* in tests/ */
#endif

enum { LKSI_BLOCK = 256 };

/* Blocks for one thread per element; more elements than a grid holds are met by LKSI_FOR_EACH's stride. */
static inline unsigned lksi_grid(size_t count) {
    size_t blocks = (count + LKSI_BLOCK - 1) / LKSI_BLOCK;
    return (unsigned)(blocks < 1 ? 1 : blocks < 65535 ? blocks : 65535);
}

/* Whether four floats can be read from there at once. */
static inline bool lksi_is_aligned(const void *pointer) { return (uintptr_t)pointer % sizeof(float4) == 0; }

/* As lksi_kernel has it. */
typedef lks_status lksi_cuda_run(const lksi_kernel *kernel, void *const *inputs, void *const *outputs, void *scratch);

#define LKSI_FOR_EACH(i, count)                                                                                        \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count); i += (size_t)gridDim.x * blockDim.x)

/* The sum of one value per thread of a block of LKSI_BLOCK threads, up a fixed tree; every thread gets it. `room` is
 * shared, LKSI_BLOCK long, and may be used again after the call. */
template <typename T> static __device__ T lksi_block_sum(T value, T *room) {
    room[threadIdx.x] = value;
    __syncthreads();
    for (unsigned n = LKSI_BLOCK / 2; n > 0; n /= 2) {
        if (threadIdx.x < n) room[threadIdx.x] += room[threadIdx.x + n];
        __syncthreads();
    }
    T sum = room[0];
    __syncthreads();
    return sum;
}

#endif
