/* The loops of all reductions, compiled once per instruction set (base/isa.h). They are element-wise and without fused
 * multiply-add, so that all instruction sets give the same bits. X-macros generate one function per type and
 * operator. */
#include "comm/arithmetic/half.h"
#include "comm/arithmetic/kernels.h"

#include <stddef.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* --- operators on a pair of accumulators --- */

static inline uint64_t double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline double double_of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* min and max of floats. Equal values may be zeros of different sign: `or` and `and` of their bits order them. A NaN on
 * either side is propagated. */
#define FLOAT_OPERATORS(name, type, bits, of_bits)                                                                     \
    static inline type name##_sum(type a, type b) { return a + b; }                                                    \
    static inline type name##_product(type a, type b) { return a * b; }                                                \
    static inline type name##_min(type a, type b) {                                                                    \
        type least = a < b ? a : b;                                                                                    \
        least = a == b ? of_bits(bits(a) | bits(b)) : least;                                                           \
        return a != a || b != b ? a + b : least;                                                                       \
    }                                                                                                                  \
    static inline type name##_max(type a, type b) {                                                                    \
        type most = a > b ? a : b;                                                                                     \
        most = a == b ? of_bits(bits(a) & bits(b)) : most;                                                             \
        return a != a || b != b ? a + b : most;                                                                        \
    }
FLOAT_OPERATORS(f32, float, lksi_float_bits, lksi_float_of_bits)
FLOAT_OPERATORS(f64, double, double_bits, double_of_bits)

/* Sums and products wrap. They are computed in unsigned arithmetic, where that is defined, in a type that is wide
 * enough not to be promoted to int. */
#define INTEGER_OPERATORS(name, type, wide)                                                                            \
    static inline type name##_sum(type a, type b) { return (type)((wide)a + (wide)b); }                                \
    static inline type name##_product(type a, type b) { return (type)((wide)a * (wide)b); }                            \
    static inline type name##_min(type a, type b) { return a < b ? a : b; }                                            \
    static inline type name##_max(type a, type b) { return a > b ? a : b; }                                            \
    static inline type name##_band(type a, type b) { return (type)(a & b); }                                           \
    static inline type name##_bor(type a, type b) { return (type)(a | b); }                                            \
    static inline type name##_bxor(type a, type b) { return (type)(a ^ b); }
INTEGER_OPERATORS(i8, int8_t, uint32_t)
INTEGER_OPERATORS(u8, uint8_t, uint32_t)
INTEGER_OPERATORS(i32, int32_t, uint32_t)
INTEGER_OPERATORS(i64, int64_t, uint64_t)

/* --- conversion of element types to accumulators and back: load(value, scale), store(accumulator) --- */

#define F32_LOAD(value, scale) ((value) * (scale))
#define F16_LOAD(value, scale) (lksi_f16_to_f32(value) * (scale))
#define BF16_LOAD(value, scale) (lksi_bf16_to_f32(value) * (scale))
#define INTEGER_LOAD(value, scale) (value)
#define SAME(value) (value)

/* X(name, element type, accumulator type, type of the scale, load, operators' prefix) */
#define FLOAT_TYPES(X)                                                                                                 \
    X(f32, float, float, float, F32_LOAD, f32)                                                                         \
    X(f64, double, double, double, F32_LOAD, f64)                                                                      \
    X(f16, uint16_t, float, float, F16_LOAD, f32)                                                                      \
    X(bf16, uint16_t, float, float, BF16_LOAD, f32)
#define INTEGER_TYPES(X)                                                                                               \
    X(i8, int8_t, int8_t, double, INTEGER_LOAD, i8)                                                                    \
    X(u8, uint8_t, uint8_t, double, INTEGER_LOAD, u8)                                                                  \
    X(i32, int32_t, int32_t, double, INTEGER_LOAD, i32)                                                                \
    X(i64, int64_t, int64_t, double, INTEGER_LOAD, i64)

#define CONTRIBUTE(name, element, accumulator, factor, load, prefix)                                                   \
    static void contribute_##name(void *restrict acc_, const void *restrict in_, double scale_, size_t count) {        \
        accumulator *restrict acc = acc_;                                                                              \
        const element *restrict in = in_;                                                                              \
        const factor scale = (factor)scale_;                                                                           \
        (void)scale;                                                                                                   \
        for (size_t i = 0; i < count; i++) acc[i] = load(in[i], scale);                                                \
    }
FLOAT_TYPES(CONTRIBUTE)
INTEGER_TYPES(CONTRIBUTE)

#define PAIR(op, name, element, accumulator, factor, load, prefix)                                                     \
    static void pair_##op##_##name(void *restrict acc_, const void *a_, double scale_a_, const void *b_,               \
                                   double scale_b_, size_t count) {                                                    \
        accumulator *restrict acc = acc_;                                                                              \
        const element *a = a_, *b = b_;                                                                                \
        const factor scale_a = (factor)scale_a_, scale_b = (factor)scale_b_;                                           \
        (void)scale_a, (void)scale_b;                                                                                  \
        for (size_t i = 0; i < count; i++) acc[i] = prefix##_##op(load(a[i], scale_a), load(b[i], scale_b));           \
    }
#define PAIR_ANY(...) PAIR(sum, __VA_ARGS__) PAIR(product, __VA_ARGS__) PAIR(min, __VA_ARGS__) PAIR(max, __VA_ARGS__)
#define PAIR_BITS(...) PAIR(band, __VA_ARGS__) PAIR(bor, __VA_ARGS__) PAIR(bxor, __VA_ARGS__)
FLOAT_TYPES(PAIR_ANY)
INTEGER_TYPES(PAIR_ANY)
INTEGER_TYPES(PAIR_BITS)

/* A line is computed in registers and written at once. If a whole block were collected in L1 first, memory would have
 * nothing to read while it is written. Nothing here is `restrict`, because an output may be an input. The array ensures
 * that a line is read before it is written. */
enum { LINE_NBYTES = 64 };
static inline void put_past(void *to, const void *line) {
#if defined(__AVX512F__)
    _mm512_stream_si512(to, _mm512_loadu_si512(line));
#elif defined(__AVX2__)
    const __m256i *from = line;
    for (int k = 0; k < 2; k++) _mm256_stream_si256((__m256i *)to + k, _mm256_loadu_si256(from + k));
#elif defined(__SSE2__)
    const __m128i *from = line;
    for (int k = 0; k < 4; k++) _mm_stream_si128((__m128i *)to + k, _mm_loadu_si128(from + k));
#else
    memcpy(to, line, LINE_NBYTES);
#endif
}
/* Not memcpy, for which gcc stores the line on the stack first. That takes much longer. */
#define PUT(to, line)                                                                                                  \
    for (size_t k = 0; k < LINE; k++) (to)[k] = (line)[k]
#define ASK_AHEAD(in) __builtin_prefetch((const unsigned char *)(in) + LKSI_AHEAD_NBYTES)
#define ASK_NOTHING(in) (void)0

#define PAIR_TWICE_AS(way, ask, put, op, name, type, factor, load)                                                     \
    static void pair_##way##_##op##_##name(void *out_, void *twin_, const void *a_, double scale_a_, const void *b_,   \
                                           double scale_b_, size_t count) {                                            \
        enum { LINE = LINE_NBYTES / sizeof(type) };                                                                    \
        type *out = out_, *twin = twin_;                                                                               \
        const type *a = a_, *b = b_;                                                                                   \
        const factor scale_a = (factor)scale_a_, scale_b = (factor)scale_b_;                                           \
        (void)scale_a, (void)scale_b;                                                                                  \
        size_t i = 0;                                                                                                  \
        for (; i + LINE <= count; i += LINE) {                                                                         \
            type line[LINE];                                                                                           \
            ask(a + i), ask(b + i);                                                                                    \
            for (size_t k = 0; k < LINE; k++) line[k] = name##_##op(load(a[i + k], scale_a), load(b[i + k], scale_b)); \
            put(out + i, line);                                                                                        \
            put(twin + i, line);                                                                                       \
        }                                                                                                              \
        for (; i < count; i++) out[i] = twin[i] = name##_##op(load(a[i], scale_a), load(b[i], scale_b));               \
    }
#define PAIR_TWICE(...)                                                                                                \
    PAIR_TWICE_AS(twice, ASK_NOTHING, PUT, __VA_ARGS__) PAIR_TWICE_AS(twice_past, ASK_AHEAD, put_past, __VA_ARGS__)
#define PAIR_TWICE_ANY(...)                                                                                            \
    PAIR_TWICE(sum, __VA_ARGS__)                                                                                       \
    PAIR_TWICE(product, __VA_ARGS__) PAIR_TWICE(min, __VA_ARGS__) PAIR_TWICE(max, __VA_ARGS__)
#define PAIR_TWICE_BITS(...) PAIR_TWICE(band, __VA_ARGS__) PAIR_TWICE(bor, __VA_ARGS__) PAIR_TWICE(bxor, __VA_ARGS__)
#define PAIR_TWICE_INTEGER(name, type)                                                                                 \
    PAIR_TWICE_ANY(name, type, double, INTEGER_LOAD) PAIR_TWICE_BITS(name, type, double, INTEGER_LOAD)
PAIR_TWICE_ANY(f32, float, float, F32_LOAD)
PAIR_TWICE_ANY(f64, double, double, F32_LOAD)
PAIR_TWICE_INTEGER(i8, int8_t)
PAIR_TWICE_INTEGER(u8, uint8_t)
PAIR_TWICE_INTEGER(i32, int32_t)
PAIR_TWICE_INTEGER(i64, int64_t)

#define COMBINE(op, name, type)                                                                                        \
    static void combine_##op##_##name(void *restrict acc_, const void *restrict b_, size_t count) {                    \
        type *restrict acc = acc_;                                                                                     \
        const type *restrict b = b_;                                                                                   \
        for (size_t i = 0; i < count; i++) acc[i] = name##_##op(acc[i], b[i]);                                         \
    }
#define COMBINE_ANY(name, type)                                                                                        \
    COMBINE(sum, name, type) COMBINE(product, name, type) COMBINE(min, name, type) COMBINE(max, name, type)
#define COMBINE_BITS(name, type) COMBINE(band, name, type) COMBINE(bor, name, type) COMBINE(bxor, name, type)
COMBINE_ANY(f32, float)
COMBINE_ANY(f64, double)
#define COMBINE_INTEGER(name, type) COMBINE_ANY(name, type) COMBINE_BITS(name, type)
COMBINE_INTEGER(i8, int8_t)
COMBINE_INTEGER(u8, uint8_t)
COMBINE_INTEGER(i32, int32_t)
COMBINE_INTEGER(i64, int64_t)

#define QUAD(name, type)                                                                                               \
    static void quad_sum_##name(void *restrict acc_, const void *const *inputs, const double *scales, size_t count) {  \
        type *restrict acc = acc_;                                                                                     \
        const type *a = inputs[0], *b = inputs[1], *c = inputs[2], *d = inputs[3];                                     \
        const type s = (type)scales[0], t = (type)scales[1], u = (type)scales[2], v = (type)scales[3];                 \
        for (size_t i = 0; i < count; i++) acc[i] = (a[i] * s + b[i] * t) + (c[i] * u + d[i] * v);                     \
    }
QUAD(f32, float)
QUAD(f64, double)

#define QUAD_EACH_PAST(name, type)                                                                                     \
    static void quad_sum_each_past_##name(void *const *outputs, const void *const *inputs, const double *scales,       \
                                          size_t count) {                                                              \
        enum { LINE = LINE_NBYTES / sizeof(type) };                                                                    \
        const type *a = inputs[0], *b = inputs[1], *c = inputs[2], *d = inputs[3];                                     \
        const type s = (type)scales[0], t = (type)scales[1], u = (type)scales[2], v = (type)scales[3];                 \
        size_t i = 0;                                                                                                  \
        for (; i + LINE <= count; i += LINE) {                                                                         \
            type line[LINE];                                                                                           \
            ASK_AHEAD(a + i), ASK_AHEAD(b + i), ASK_AHEAD(c + i), ASK_AHEAD(d + i);                                    \
            for (size_t k = 0; k < LINE; k++) line[k] = (a[i + k] * s + b[i + k] * t) + (c[i + k] * u + d[i + k] * v); \
            for (int k = 0; k < 4; k++) put_past((type *)outputs[k] + i, line);                                        \
        }                                                                                                              \
        for (; i < count; i++)                                                                                         \
            for (int k = 0; k < 4; k++) ((type *)outputs[k])[i] = (a[i] * s + b[i] * t) + (c[i] * u + d[i] * v);       \
    }
QUAD_EACH_PAST(f32, float)
QUAD_EACH_PAST(f64, double)

/* --- the result: one division, one rounding --- */

#define CONCLUDE(name, element, accumulator, store)                                                                    \
    static void conclude_##name(void *restrict out_, const void *restrict acc_, double divisor_, size_t count) {       \
        element *restrict out = out_;                                                                                  \
        const accumulator *restrict acc = acc_;                                                                        \
        const accumulator divisor = (accumulator)divisor_;                                                             \
        for (size_t i = 0; i < count; i++) out[i] = store(acc[i] / divisor);                                           \
    }
CONCLUDE(f32, float, float, SAME)
CONCLUDE(f64, double, double, SAME)
CONCLUDE(f16, uint16_t, float, lksi_f32_to_f16)
CONCLUDE(bf16, uint16_t, float, lksi_f32_to_bf16)

/* --- the table --- */

#define FLOAT_ROW(kind, name)                                                                                          \
    {                                                                                                                  \
        [LKS_SUM] = kind##_sum_##name, [LKS_PRODUCT] = kind##_product_##name, [LKS_MIN] = kind##_min_##name,           \
        [LKS_MAX] = kind##_max_##name, [LKS_AVG] = kind##_sum_##name                                                   \
    }
#define INTEGER_ROW(kind, name)                                                                                        \
    {                                                                                                                  \
        [LKS_SUM] = kind##_sum_##name, [LKS_PRODUCT] = kind##_product_##name, [LKS_MIN] = kind##_min_##name,           \
        [LKS_MAX] = kind##_max_##name, [LKS_BAND] = kind##_band_##name, [LKS_BOR] = kind##_bor_##name,                 \
        [LKS_BXOR] = kind##_bxor_##name                                                                                \
    }

#define TWICE_ROWS(kind)                                                                                               \
    {                                                                                                                  \
        [LKS_F32] = FLOAT_ROW(kind, f32), [LKS_F64] = FLOAT_ROW(kind, f64), [LKS_I8] = INTEGER_ROW(kind, i8),          \
        [LKS_U8] = INTEGER_ROW(kind, u8), [LKS_I32] = INTEGER_ROW(kind, i32), [LKS_I64] = INTEGER_ROW(kind, i64)       \
    }

const lksi_reduce_kernels LKSI_ISA_NAME(lksi_reduce_loops) = {
    .contribute = {[LKS_F32] = contribute_f32,
                   [LKS_F64] = contribute_f64,
                   [LKS_F16] = contribute_f16,
                   [LKS_BF16] = contribute_bf16,
                   [LKS_I8] = contribute_i8,
                   [LKS_U8] = contribute_u8,
                   [LKS_I32] = contribute_i32,
                   [LKS_I64] = contribute_i64},
    .pair = {[LKS_F32] = FLOAT_ROW(pair, f32),
             [LKS_F64] = FLOAT_ROW(pair, f64),
             [LKS_F16] = FLOAT_ROW(pair, f16),
             [LKS_BF16] = FLOAT_ROW(pair, bf16),
             [LKS_I8] = INTEGER_ROW(pair, i8),
             [LKS_U8] = INTEGER_ROW(pair, u8),
             [LKS_I32] = INTEGER_ROW(pair, i32),
             [LKS_I64] = INTEGER_ROW(pair, i64)},
    .pair_twice = TWICE_ROWS(pair_twice),
    .pair_twice_past = TWICE_ROWS(pair_twice_past),
    .combine = {[LKS_F32] = FLOAT_ROW(combine, f32),
                [LKS_F64] = FLOAT_ROW(combine, f64),
                [LKS_F16] = FLOAT_ROW(combine, f32),
                [LKS_BF16] = FLOAT_ROW(combine, f32),
                [LKS_I8] = INTEGER_ROW(combine, i8),
                [LKS_U8] = INTEGER_ROW(combine, u8),
                [LKS_I32] = INTEGER_ROW(combine, i32),
                [LKS_I64] = INTEGER_ROW(combine, i64)},
    .quad_sum = {[LKS_F32] = quad_sum_f32, [LKS_F64] = quad_sum_f64},
    .quad_sum_each_past = {[LKS_F32] = quad_sum_each_past_f32, [LKS_F64] = quad_sum_each_past_f64},
    .conclude =
        {[LKS_F32] = conclude_f32, [LKS_F64] = conclude_f64, [LKS_F16] = conclude_f16, [LKS_BF16] = conclude_bf16},
};
