/* How kernels are written and launched, for nvcc and for the emulation of the tests.
 *
 *     __global__ void relu(const float *x, float *y, size_t count) {
 *         LKSI_FOR_EACH(i, count) y[i] = x[i] > 0 ? x[i] : 0;
 *     }
 *     LKSI_LAUNCH(relu, lksi_grid(count), LKSI_BLOCK, stream, x, y, count);
 *     return lksi_cuda_launched("relu");
 *
 * The emulation runs the threads of a block one after the other, each up to the next __syncthreads. Blocks run one
 * after the other. So a kernel may use only these features: __global__, __device__, __shared__ (of a size known at
 * compile time), __syncthreads (reached by all threads of a block or by none), __threadfence, threadIdx, blockIdx,
 * blockDim, gridDim (x, y, z), atomicCAS and atomicAdd of int, __popc, and the functions of <math.h>. No warp
 * functions, no dynamic shared memory, no textures. Sums are added in a fixed order, never by atomics on floats, so
 * that the bits are the same in every run. */
#ifndef LKSI_KERNEL_CUH
#define LKSI_KERNEL_CUH

#include "cuda/cuda.h"

#ifdef __CUDACC__
#define LKSI_LAUNCH(kernel, grid, block, stream, ...) kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)
#else
#include "cuda/emulation/kernel.h" /* in tests/ */
#endif

enum { LKSI_BLOCK = 256 };

/* The number of blocks for one thread per element. If a grid cannot hold as many, LKSI_FOR_EACH's stride covers the
 * rest. */
static inline unsigned lksi_grid(size_t count) {
    size_t blocks = (count + LKSI_BLOCK - 1) / LKSI_BLOCK;
    return (unsigned)(blocks < 1 ? 1 : blocks < 65535 ? blocks : 65535);
}

/* Whether a float4 can be read from this address. */
static inline bool lksi_is_aligned(const void *pointer) { return (uintptr_t)pointer % sizeof(float4) == 0; }

/* The type of lksi_kernel's `run`. */
typedef lks_status lksi_cuda_run(const lksi_kernel *kernel, void *const *inputs, void *const *outputs, void *scratch);

#define LKSI_FOR_EACH(i, count)                                                                                        \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count); i += (size_t)gridDim.x * blockDim.x)

/* Sums one value per thread of a block of LKSI_BLOCK threads along a fixed tree. Every thread gets the sum. `room` is
 * shared memory for LKSI_BLOCK values. It may be reused after the call. */
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
