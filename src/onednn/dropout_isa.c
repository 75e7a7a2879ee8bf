/* Dropout's random draws, several Philox blocks in parallel. The rounds are those of base/philox.c. A word is in the
 * lower half of 64 bits. The upper half is arbitrary. One instruction multiplies the lower halves of a vector, and
 * leaves both halves of the products where they are needed. */
#include "onednn/loops.h"

#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { ROUNDS = 10, BLOCKS = 64 };

#if defined(__AVX512F__)
typedef uint64_t words __attribute__((vector_size(64)));
static words multiply(words a, words b) { return (words)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
typedef uint64_t words __attribute__((vector_size(32)));
static words multiply(words a, words b) { return (words)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
#elif defined(__SSE2__)
typedef uint64_t words __attribute__((vector_size(16)));
static words multiply(words a, words b) { return (words)_mm_mul_epu32((__m128i)a, (__m128i)b); }
#else
typedef uint64_t words __attribute__((vector_size(16)));
static words multiply(words a, words b) { return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu); }
#endif
enum { LANES = sizeof(words) / sizeof(uint64_t) };

/* 1 where the word is at least the threshold, else 0; `rest` is 2^32 - threshold. */
static words is_kept(words word, uint64_t rest) { return ((word & 0xFFFFFFFFu) + rest) >> 32; }

/* The shift to the byte of a 32-bit word that is byte i in memory. */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define SHIFT(i) (24 - 8 * (i))
#else
#define SHIFT(i) (8 * (i))
#endif

/* The elements that the blocks (first, sample, stream), (first + 1, sample, stream), ... keep: four bytes of 0 or 1 in
 * each lane. */
static words draw_lanes(const uint32_t key[2], uint32_t first, uint32_t sample, const uint32_t stream[2],
                        uint64_t rest) {
    const words zero = {0}, factor0 = zero + 0xD2511F53u, factor1 = zero + 0xCD9E8D57u;
    words c0 = zero + first, c1 = zero + sample, c2 = zero + stream[0], c3 = zero + stream[1];
    for (uint64_t i = 0; i < LANES; i++) c0[i] += i;
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        words product0 = multiply(c0, factor0), product1 = multiply(c2, factor1);
        c0 = (product1 >> 32) ^ c1 ^ k0;
        c1 = product1;
        c2 = (product0 >> 32) ^ c3 ^ k1;
        c3 = product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return is_kept(c0, rest) << SHIFT(0) | is_kept(c1, rest) << SHIFT(1) | is_kept(c2, rest) << SHIFT(2) |
           is_kept(c3, rest) << SHIFT(3);
}

static void draw(size_t count, const uint32_t key[2], uint32_t sample, const uint32_t stream[2], uint32_t threshold,
                 uint8_t *mask) {
    const uint64_t rest = (UINT64_C(1) << 32) - threshold;
    uint64_t drawn[BLOCKS];
    uint32_t kept[BLOCKS];
    for (size_t begin = 0; begin < count; begin += sizeof kept) {
        size_t n = count - begin < sizeof kept ? count - begin : sizeof kept;
        for (uint32_t i = 0; i < (n + 3) / 4; i += LANES) {
            words lanes = draw_lanes(key, (uint32_t)(begin / 4) + i, sample, stream, rest);
            memcpy(drawn + i, &lanes, sizeof lanes);
        }
        for (size_t i = 0; i < (n + 3) / 4; i++) kept[i] = (uint32_t)drawn[i];
        memcpy(mask + begin, kept, n);
    }
}

static void apply(size_t count, float factor, const float *restrict x, const uint8_t *restrict mask,
                  float *restrict y) {
    for (size_t i = 0; i < count; i++) {
        float scaled = x[i] * factor;
        y[i] = mask[i] != 0 ? scaled : 0;
    }
}

const lksi_dropout_loops LKSI_ISA_NAME(lksi_dropout_loops) = {.draw = draw, .apply = apply};
