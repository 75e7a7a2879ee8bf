/* The loops of gradient compression. This file is compiled once per instruction set (base/isa.h). */
#include "comm/arithmetic/half.h"
#include "parallel/compress_internal.h"

static void add(float *restrict a, const float *restrict b, size_t count) {
    for (size_t i = 0; i < count; i++) a[i] += b[i];
}

static void sum(float *restrict out, const float *restrict a, const float *restrict b, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = a[i] + b[i];
}

static void add_scaled(float *restrict a, float factor, const float *restrict b, size_t count) {
    for (size_t i = 0; i < count; i++) a[i] += factor * b[i];
}

/* Sixteen partial sums, added pairwise at the end. The order is the same for every instruction set. */
static float dot(const float *a, const float *b, size_t count) {
    float sums[16] = {0};
    size_t whole = count / 16 * 16;
    for (size_t i = 0; i < whole; i += 16)
        for (size_t j = 0; j < 16; j++) sums[j] += a[i + j] * b[i + j];
    for (size_t i = whole; i < count; i++) sums[i - whole] += a[i] * b[i];
    for (size_t n = 8; n > 0; n /= 2)
        for (size_t j = 0; j < n; j++) sums[j] += sums[j + n];
    return sums[0];
}

/* Without the sign, the bits of floats have the order of the floats, and infinity and NaN come last. */
static float largest(const float *values, size_t count) {
    int32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t magnitude = (int32_t)(lksi_float_bits(values[i]) & 0x7fffffffu);
        int32_t is_finite = -(int32_t)(magnitude < 0x7f800000); /* all bits or none */
        most = (magnitude & is_finite) > most ? magnitude & is_finite : most;
    }
    return lksi_float_of_bits((uint32_t)most);
}

static inline float finite_or_zero(float value) {
    uint32_t bits = lksi_float_bits(value);
    return lksi_float_of_bits((bits & 0x7f800000u) != 0x7f800000u ? bits : 0);
}

#define HALF_LOOPS(name)                                                                                               \
    static void encode_##name(uint16_t *restrict halves, float *restrict values, float scale, size_t count) {          \
        const float back = 1 / scale;                                                                                  \
        for (size_t i = 0; i < count; i++) {                                                                           \
            halves[i] = lksi_f32_to_##name(values[i] * scale);                                                         \
            values[i] = finite_or_zero(values[i] - lksi_##name##_to_f32(halves[i]) * back);                            \
        }                                                                                                              \
    }                                                                                                                  \
    static void decode_##name(float *restrict values, const uint16_t *restrict halves, float scale, size_t count) {    \
        for (size_t i = 0; i < count; i++) values[i] = lksi_##name##_to_f32(halves[i]) * scale;                        \
    }
HALF_LOOPS(bf16)
HALF_LOOPS(f16)

extern const lksi_compress_kernels LKSI_ISA_NAME(lksi_compress_loops);
const lksi_compress_kernels LKSI_ISA_NAME(lksi_compress_loops) = {
    .add = add,
    .sum = sum,
    .add_scaled = add_scaled,
    .dot = dot,
    .largest = largest,
    .encode_bf16 = encode_bf16,
    .encode_f16 = encode_f16,
    .decode_bf16 = decode_bf16,
    .decode_f16 = decode_f16,
};
