/* An independent implementation of all reductions: one element at a time, in double or integers, by recursion over the
 * ranks in the order that the header defines. It shares only the conversions of halves with the library, and checks
 * these itself. */
#ifndef LKSI_ORACLE_H
#define LKSI_ORACLE_H

#include "comm/arithmetic/arithmetic.h"
#include "comm/arithmetic/half.h"

#include <math.h>

typedef union oracle_value {
    float f32;
    double f64;
    int64_t integer;
} oracle_value;

static inline bool oracle_is_f32(lks_type type) { return type == LKS_F32 || type == LKS_F16 || type == LKS_BF16; }

static inline oracle_value oracle_load(const void *data, size_t i, lks_type type, double scale) {
    oracle_value v = {.integer = 0};
    switch (type) {
    case LKS_F32:
        v.f32 = ((const float *)data)[i] * (float)scale;
        break;
    case LKS_F64:
        v.f64 = ((const double *)data)[i] * scale;
        break;
    case LKS_F16:
        v.f32 = lksi_f16_to_f32(((const uint16_t *)data)[i]) * (float)scale;
        break;
    case LKS_BF16:
        v.f32 = lksi_bf16_to_f32(((const uint16_t *)data)[i]) * (float)scale;
        break;
    case LKS_I8:
        v.integer = ((const int8_t *)data)[i];
        break;
    case LKS_U8:
        v.integer = ((const uint8_t *)data)[i];
        break;
    case LKS_I32:
        v.integer = ((const int32_t *)data)[i];
        break;
    case LKS_I64:
        v.integer = ((const int64_t *)data)[i];
        break;
    }
    return v;
}

static inline double oracle_extreme(double a, double b, bool is_min) {
    if (isnan(a) || isnan(b)) return NAN;
    if (a == b) return signbit(a) == (is_min ? 1 : 0) ? a : b;
    return (a < b) == is_min ? a : b;
}

static inline int64_t oracle_integer(int64_t a, int64_t b, lks_type type, lks_operator op) {
    uint64_t x = (uint64_t)a, y = (uint64_t)b, z = 0;
    switch (op) {
    case LKS_SUM:
        z = x + y;
        break;
    case LKS_PRODUCT:
        z = x * y;
        break;
    case LKS_MIN:
        return a < b ? a : b;
    case LKS_MAX:
        return a > b ? a : b;
    case LKS_BAND:
        z = x & y;
        break;
    case LKS_BOR:
        z = x | y;
        break;
    case LKS_BXOR:
        z = x ^ y;
        break;
    case LKS_AVG:
        break;
    }
    return type == LKS_I8 ? (int8_t)z : type == LKS_U8 ? (uint8_t)z : type == LKS_I32 ? (int32_t)z : (int64_t)z;
}

static inline oracle_value oracle_combine(oracle_value a, oracle_value b, lks_type type, lks_operator op) {
    bool is_extreme = op == LKS_MIN || op == LKS_MAX;
    oracle_value v = {.integer = 0};
    if (type >= LKS_I8) {
        v.integer = oracle_integer(a.integer, b.integer, type, op);
    } else if (oracle_is_f32(type)) {
        v.f32 = is_extreme          ? (float)oracle_extreme(a.f32, b.f32, op == LKS_MIN)
                : op == LKS_PRODUCT ? a.f32 * b.f32
                                    : a.f32 + b.f32;
    } else {
        v.f64 = is_extreme          ? oracle_extreme(a.f64, b.f64, op == LKS_MIN)
                : op == LKS_PRODUCT ? a.f64 * b.f64
                                    : a.f64 + b.f64;
    }
    return v;
}

static inline oracle_value oracle_tree(const void *const *inputs, const double *scales, int n, size_t i, lks_type type,
                                       lks_operator op) {
    if (n == 1) return oracle_load(inputs[0], i, type, scales[0]);
    int half = 1;
    while (half * 2 < n) half *= 2;
    return oracle_combine(oracle_tree(inputs, scales, half, i, type, op),
                          oracle_tree(inputs + half, scales + half, n - half, i, type, op), type, op);
}

/* Whether element i of `out` has exactly the expected bits. All NaNs are equal. */
static inline bool oracle_agrees(const void *out, const void *const *inputs, const double *scales, int n, size_t i,
                                 lks_type type, lks_operator op) {
    oracle_value v = oracle_tree(inputs, scales, n, i, type, op);
    if (op == LKS_AVG) {
        if (oracle_is_f32(type))
            v.f32 /= (float)n;
        else
            v.f64 /= n;
    }
    if (type == LKS_F64) {
        double got = ((const double *)out)[i];
        return memcmp(&got, &v.f64, sizeof got) == 0 || (isnan(got) && isnan(v.f64));
    }
    if (oracle_is_f32(type)) {
        if (type == LKS_F32) {
            float got = ((const float *)out)[i];
            return memcmp(&got, &v.f32, sizeof got) == 0 || (isnan(got) && isnan(v.f32));
        }
        uint16_t got = ((const uint16_t *)out)[i];
        uint16_t wanted = type == LKS_F16 ? lksi_f32_to_f16(v.f32) : lksi_f32_to_bf16(v.f32);
        float back = type == LKS_F16 ? lksi_f16_to_f32(got) : lksi_bf16_to_f32(got);
        return got == wanted || (isnan(back) && isnan(v.f32));
    }
    return oracle_load(out, i, type, 1).integer == v.integer;
}

/* Writes element `i` of the input of rank `rank` to `data`. Integers get any bits. Floats get numbers of mixed
 * magnitude and sign, and with `with_specials` also zeros, infinities and NaNs. Every rank computes the same. */
static inline void oracle_element(void *data, size_t i, lks_type type, int rank, uint64_t seed, bool with_specials) {
    static const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 65520.0f};
    uint64_t mixed = (i + 1 + seed * 1000003 + (uint64_t)rank * 7919) * 0x9e3779b97f4a7c15u;
    uint32_t bits = (uint32_t)((mixed ^ mixed >> 31) * 0xbf58476d1ce4e5b9u >> 32);
    double x = ((double)(bits & 0xffff) / 4096 - 8) * (bits & 0x10000 ? 1 : 0.001);
    if (with_specials && bits >> 28 == 0) x = (double)specials[bits >> 24 & 7];
    switch (type) {
    case LKS_F32:
        *(float *)data = (float)x;
        break;
    case LKS_F64:
        *(double *)data = x * 1.000000001;
        break;
    case LKS_F16:
        *(uint16_t *)data = lksi_f32_to_f16((float)x);
        break;
    case LKS_BF16:
        *(uint16_t *)data = lksi_f32_to_bf16((float)x);
        break;
    case LKS_I8:
        *(int8_t *)data = (int8_t)bits;
        break;
    case LKS_U8:
        *(uint8_t *)data = (uint8_t)bits;
        break;
    case LKS_I32:
        *(int32_t *)data = (int32_t)bits;
        break;
    case LKS_I64:
        *(int64_t *)data = (int64_t)((uint64_t)bits << 32 | (bits ^ 0x5555));
        break;
    }
}

static inline void oracle_fill(void *data, size_t count, lks_type type, int rank, uint64_t seed, bool with_specials) {
    for (size_t i = 0; i < count; i++)
        oracle_element((char *)data + i * lks_type_nbytes(type), i, type, rank, seed, with_specials);
}

static inline double oracle_number(const void *data, size_t i, lks_type type, double scale) {
    oracle_value v = oracle_load(data, i, type, scale);
    return type == LKS_F64 ? v.f64 : oracle_is_f32(type) ? (double)v.f32 : (double)v.integer;
}

/* Whether element `got` may be the result of a sum, product or average of floats in some order. The tolerance is n
 * roundings of the accumulator at the magnitude of all inputs together (for a product: of the product), and one
 * rounding to the type. */
static inline bool oracle_is_close(const void *got, const void *const *inputs, const double *scales, int n,
                                   lks_type type, lks_operator op) {
    double exact = op == LKS_PRODUCT ? 1 : 0, magnitude = 0;
    for (int k = 0; k < n; k++) {
        double x = oracle_number(inputs[k], 0, type, scales[k]);
        exact = op == LKS_PRODUCT ? exact * x : exact + x;
        magnitude += fabs(x);
    }
    if (op == LKS_PRODUCT) magnitude = fabs(exact);
    if (op == LKS_AVG) exact /= n, magnitude /= n;
    double accumulator = type == LKS_F64 ? 0x1p-52 : 0x1p-23;
    double rounding = type == LKS_F16 ? 0x1p-10 : type == LKS_BF16 ? 0x1p-7 : accumulator;
    double least = type == LKS_F16 ? 0x1p-24 : 0x1p-126, most = type == LKS_F16 ? 65000 : 1e37;
    double value = oracle_number(got, 0, type, 1);
    if (fabs(exact) > most) return !isnan(value);
    return fabs(value - exact) <= 2 * n * accumulator * magnitude + rounding * fabs(exact) + least;
}

static inline bool oracle_is_defined(lks_type type, lks_operator op) {
    return op == LKS_AVG ? type < LKS_I8 : op < LKS_BAND || type >= LKS_I8;
}

#endif
