/* Combines the contributions of all ranks along the canonical tree. It gives the same bits as comm/arithmetic.
 *
 *     inputs   0   1   2   3   4        Each thread handles one element. It reads the element of every rank in
 *               \ /     \ /    |        order, and keeps one partial result per level of the tree, like the digits of
 *                 \     /      |        a binary counter. What is left at the end is combined from the right.
 *                   \ /       /
 *                      \    /
 *
 * Division is IEEE division. No multiplication could be fused with an addition. f16 and bf16 are rounded by the same
 * functions as on the host. Only the bits of a NaN may differ from the host's.
 */
#define LKSI_HALF_FUNCTION __device__ static inline

#include "comm/nccl/reduce.h"

#ifdef __CUDACC__
#define LKSI_LAUNCH(kernel, grid, block, stream, ...) kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)
#else
#include "cuda/emulation/kernel.h" /* in tests/ */
#endif

#include "comm/arithmetic/half.h"

namespace {

const unsigned BLOCK = 256;
const size_t MOST_BLOCKS = 2048; /* a large GPU has about 130 multiprocessors with 8 such blocks each */

/* --- element types: the type they are added in, load and store --- */

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
__device__ inline float load(f16 value) { return lksi_f16_to_f32(value.bits); }
__device__ inline float load(bf16 value) { return lksi_bf16_to_f32(value.bits); }
template <typename T> __device__ inline T load(T value) { return value; }
__device__ inline void store(f16 *out, float value) { out->bits = lksi_f32_to_f16(value); }
__device__ inline void store(bf16 *out, float value) { out->bits = lksi_f32_to_bf16(value); }
template <typename T> __device__ inline void store(T *out, T value) { *out = value; }

__device__ inline uint32_t bits_of(float value) { return lksi_float_bits(value); }
__device__ inline float of_bits(uint32_t bits) { return lksi_float_of_bits(bits); }
__device__ inline uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
__device__ inline double of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* --- operators: integers wrap; min and max of floats propagate NaN, and -0 < +0 --- */

template <typename T> struct wide { typedef uint32_t type; };
template <> struct wide<int64_t> { typedef uint64_t type; };

template <typename T> __device__ inline T add(T a, T b) {
    return (T)((typename wide<T>::type)a + (typename wide<T>::type)b);
}
template <typename T> __device__ inline T multiply(T a, T b) {
    return (T)((typename wide<T>::type)a * (typename wide<T>::type)b);
}
__device__ inline float add(float a, float b) { return a + b; }
__device__ inline double add(double a, double b) { return a + b; }
__device__ inline float multiply(float a, float b) { return a * b; }
__device__ inline double multiply(double a, double b) { return a * b; }

template <typename T> __device__ inline T least(T a, T b) { return a < b ? a : b; }
template <typename T> __device__ inline T most(T a, T b) { return a > b ? a : b; }
template <typename T> __device__ inline T least_float(T a, T b) {
    if (a != a || b != b) return a + b;
    return a == b ? of_bits(bits_of(a) | bits_of(b)) : a < b ? a : b;
}
template <typename T> __device__ inline T most_float(T a, T b) {
    if (a != a || b != b) return a + b;
    return a == b ? of_bits(bits_of(a) & bits_of(b)) : a > b ? a : b;
}
__device__ inline float least(float a, float b) { return least_float(a, b); }
__device__ inline double least(double a, double b) { return least_float(a, b); }
__device__ inline float most(float a, float b) { return most_float(a, b); }
__device__ inline double most(double a, double b) { return most_float(a, b); }

#define OPERATOR(name, result)                                                                                         \
    struct name {                                                                                                      \
        template <typename A> __device__ static A apply(A a, A b) { return (A)(result); }                              \
    };
OPERATOR(sum, add(a, b))
OPERATOR(product, multiply(a, b))
OPERATOR(min_, least(a, b))
OPERATOR(max_, most(a, b))
OPERATOR(band, a &b)
OPERATOR(bor, a | b)
OPERATOR(bxor, a ^ b)

/* --- the kernel --- */

template <typename A> __device__ inline A divide(A value, int n) { return value / (A)n; }

/* LEVELS: the number of partial results, for up to 2^LEVELS - 1 ranks. Few levels fit in registers. */
template <typename T, typename A, typename Op, int LEVELS>
__global__ void reduce(T *out, const T *own, const T *others, int rank, int n, size_t stride, size_t count,
                       bool is_average) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        A level[LEVELS];
        for (int k = 0; k < n; k++) {
            A value = load(k == rank ? own[i] : others[(size_t)k * stride + i]);
            bool is_carried = true;
#pragma unroll
            for (int l = 0; l < LEVELS; l++) {
                if (!is_carried) continue;
                is_carried = (k >> l & 1) != 0;
                if (is_carried)
                    value = Op::apply(level[l], value);
                else
                    level[l] = value;
            }
        }
        A result = A();
        bool is_begun = false;
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            if ((n >> l & 1) == 0) continue;
            result = is_begun ? Op::apply(level[l], result) : level[l];
            is_begun = true;
        }
        store(&out[i], is_average ? divide(result, n) : result);
    }
}

template <typename T, typename A, typename Op> void launch(const lksi_nccl_reduction *r, cudaStream_t stream) {
    size_t blocks = (r->count + BLOCK - 1) / BLOCK;
    unsigned grid = (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
    T *out = (T *)r->out;
    const T *own = (const T *)r->own, *others = (const T *)r->others;
    bool is_average = r->op == LKS_AVG;
    if (r->n < 16)
        LKSI_LAUNCH((reduce<T, A, Op, 4>), grid, BLOCK, stream, out, own, others, r->rank, r->n, r->stride, r->count,
                    is_average);
    else
        LKSI_LAUNCH((reduce<T, A, Op, 16>), grid, BLOCK, stream, out, own, others, r->rank, r->n, r->stride, r->count,
                    is_average);
}

template <typename T, typename A> bool launch_any(const lksi_nccl_reduction *r, cudaStream_t stream) {
    switch (r->op) {
    case LKS_SUM:
    case LKS_AVG:
        launch<T, A, sum>(r, stream);
        return true;
    case LKS_PRODUCT:
        launch<T, A, product>(r, stream);
        return true;
    case LKS_MIN:
        launch<T, A, min_>(r, stream);
        return true;
    case LKS_MAX:
        launch<T, A, max_>(r, stream);
        return true;
    default:
        return false;
    }
}

template <typename T> bool launch_integer(const lksi_nccl_reduction *r, cudaStream_t stream) {
    switch (r->op) {
    case LKS_BAND:
        launch<T, T, band>(r, stream);
        return true;
    case LKS_BOR:
        launch<T, T, bor>(r, stream);
        return true;
    case LKS_BXOR:
        launch<T, T, bxor>(r, stream);
        return true;
    default:
        return launch_any<T, T>(r, stream);
    }
}

bool launch_typed(const lksi_nccl_reduction *r, cudaStream_t stream) {
    switch (r->type) {
    case LKS_F32:
        return launch_any<float, float>(r, stream);
    case LKS_F64:
        return launch_any<double, double>(r, stream);
    case LKS_F16:
        return launch_any<f16, float>(r, stream);
    case LKS_BF16:
        return launch_any<bf16, float>(r, stream);
    case LKS_I8:
        return launch_integer<int8_t>(r, stream);
    case LKS_U8:
        return launch_integer<uint8_t>(r, stream);
    case LKS_I32:
        return launch_integer<int32_t>(r, stream);
    case LKS_I64:
        return launch_integer<int64_t>(r, stream);
    default:
        return false;
    }
}

} // namespace

cudaError_t lksi_nccl_reduce(const lksi_nccl_reduction *reduction, cudaStream_t stream) {
    if (reduction->count == 0) return cudaSuccess;
    if (!launch_typed(reduction, stream)) return cudaErrorInvalidValue;
    return cudaGetLastError();
}
