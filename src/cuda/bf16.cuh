/* bf16 as bits: the upper half of an f32. */
#ifndef LKSI_CUDA_BF16_CUH
#define LKSI_CUDA_BF16_CUH

#include "cuda/kernel.cuh"

#include <string.h>

/* Rounds to nearest, ties to even. A NaN stays a NaN. */
static inline __device__ uint16_t lksi_bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline __device__ float lksi_bf16_value(uint16_t upper) {
    uint32_t bits = (uint32_t)upper << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
