/* Conversion of f16 and bf16 to and from f32, rounding to nearest, ties to even. The code has no branches, so that
 * loops that use it are vectorized on every instruction set. It uses integer arithmetic where flush-to-zero modes could
 * change a bit. */
#ifndef LKSI_HALF_H
#define LKSI_HALF_H

#include <stdint.h>
#include <string.h>

#ifndef LKSI_HALF_FUNCTION /* CUDA kernels define it differently */
#define LKSI_HALF_FUNCTION static inline
#endif

LKSI_HALF_FUNCTION uint32_t lksi_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
LKSI_HALF_FUNCTION float lksi_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LKSI_HALF_FUNCTION float lksi_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (normal + (112u << 23)) | ((magnitude & 0x3ffu) != 0 ? 1u << 22 : 0u); /* a NaN becomes quiet */
    uint32_t subnormal = lksi_float_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits = magnitude >= 0x7c00u ? special : magnitude < 0x0400u ? subnormal : normal;
    return lksi_float_of_bits(sign | bits);
}

LKSI_HALF_FUNCTION uint16_t lksi_f32_to_f16(float value) {
    uint32_t bits = lksi_float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13; /* overflows to infinity */
    /* The last bit of a float near 0.5 is 2^-24, the smallest f16. So the addition rounds correctly. */
    uint32_t subnormal = lksi_float_bits(lksi_float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x47800000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? nan : half;
    return (uint16_t)(sign | half);
}

LKSI_HALF_FUNCTION float lksi_bf16_to_f32(uint16_t half) { return lksi_float_of_bits((uint32_t)half << 16); }

LKSI_HALF_FUNCTION uint16_t lksi_f32_to_bf16(float value) {
    uint32_t bits = lksi_float_bits(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
