/* Dropout's draws, many Philox blocks side by side. The rounds are those of base/philox.c. */
#include "onednn/loops.h"

enum { ROUNDS = 10, BLOCKS = 64 };

/* The four words of `n_blocks` blocks from the first on, word by word. */
static void philox(uint32_t n_blocks, const uint32_t key[2], uint32_t first, uint32_t sample, const uint32_t stream[2],
                   uint32_t words[restrict 4][BLOCKS]) {
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t c0 = first + i, c1 = sample, c2 = stream[0], c3 = stream[1], k0 = key[0], k1 = key[1];
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
        words[0][i] = c0;
        words[1][i] = c1;
        words[2][i] = c2;
        words[3][i] = c3;
    }
}

static void draw(size_t count, const uint32_t key[2], uint32_t sample, const uint32_t stream[2], uint32_t threshold,
                 uint8_t *mask) {
    uint32_t words[4][BLOCKS];
    for (size_t begin = 0; begin < count; begin += 4 * BLOCKS) {
        size_t n = count - begin < 4 * BLOCKS ? count - begin : 4 * BLOCKS;
        philox((uint32_t)(n + 3) / 4, key, (uint32_t)(begin / 4), sample, stream, words);
        for (size_t i = 0; i < n; i++) mask[begin + i] = words[i % 4][i / 4] >= threshold;
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
