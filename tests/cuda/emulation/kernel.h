// CUDA C++ for the host's compiler: the subset that src/cuda/kernel.cuh allows in kernels. runtime.cc runs them.
#ifndef EMULATION_KERNEL_H
#define EMULATION_KERNEL_H

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __restrict__
#undef __forceinline__
#define __global__ static
#define __device__
#define __host__
#define __shared__ static thread_local
#define __forceinline__ inline

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

void __syncthreads();
inline void __threadfence() {}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
int atomicAdd(int *address, int value);
int atomicCAS(int *address, int compare, int value);

namespace emulation {
// Adds work at the end of `stream`. It runs when the host waits for it.
void enqueue(cudaStream_t stream, std::function<void()> work);
void run_grid(dim3 grid, dim3 block, const std::function<void()> &kernel);

// The arguments are copied now, as in a launch.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments... arguments) {
    std::tuple<Parameters...> copied(static_cast<Parameters>(arguments)...);
    enqueue(stream, [=] { run_grid(grid, block, [&] { std::apply(kernel, copied); }); });
}
} // namespace emulation

#define LKSI_LAUNCH(kernel, grid, block, stream, ...) emulation::launch(kernel, (grid), (block), (stream), __VA_ARGS__)

#endif
