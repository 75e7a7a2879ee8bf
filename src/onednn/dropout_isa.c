/* Dropout's draws, many Philox blocks side by side. The rounds are those of base/philox.c. */
#include "onednn/loops.h"

#include <string.h>

enum { ROUNDS = 10, BLOCKS = 64 };

/* Where a 32-bit word's byte i stands in memory. */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define SHIFT(i) (24 - 8 * (i))
#else
#define SHIFT(i) (8 * (i))
#endif

/* Which elements the `n_blocks` blocks from the first on keep: four bytes of 0 or 1 per block. */
static void draw_blocks(uint32_t n_blocks, const uint32_t key[2], uint32_t first, uint32_t sample,
                        const uint32_t stream[2], uint32_t threshold, uint32_t *restrict kept) {
    const uint32_t stream0 = stream[0], stream1 = stream[1], key0 = key[0], key1 = key[1];
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t c0 = first + i, c1 = sample, c2 = stream0, c3 = stream1, k0 = key0, k1 = key1;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t product0 = (uint64_t)0xD2511F53u * c0;
            uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
            c1 = (uint32_t)product1;
            c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
            c3 = (uint32_t)product0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        kept[i] = (uint32_t)(c0 >= threshold) << SHIFT(0) | (uint32_t)(c1 >= threshold) << SHIFT(1) |
                  (uint32_t)(c2 >= threshold) << SHIFT(2) | (uint32_t)(c3 >= threshold) << SHIFT(3);
    }
}

static void draw(size_t count, const uint32_t key[2], uint32_t sample, const uint32_t stream[2], uint32_t threshold,
                 uint8_t *mask) {
    uint32_t kept[BLOCKS];
    for (size_t begin = 0; begin < count; begin += sizeof kept) {
        size_t n = count - begin < sizeof kept ? count - begin : sizeof kept;
        draw_blocks((uint32_t)(n + 3) / 4, key, (uint32_t)(begin / 4), sample, stream, threshold, kept);
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
