/* Philox4x32-10 and the draws made from it.
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#include "base/base.h"

#include <math.h>

enum { ROUNDS = 10 };
__extension__ typedef unsigned __int128 wide128;

static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

void lks_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    if (lksi_check_given("philox", "counter", counter) == LKS_OK && lksi_check_given("philox", "key", key) == LKS_OK &&
        lksi_check_given("philox", "out", out) == LKS_OK)
        philox(counter, key, out);
}

static void draw(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox(counter, key, out);
}

uint32_t lksi_random_u32(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    draw(seed, stream, index / 4, words);
    return words[index % 4];
}

float lksi_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (float)(lksi_random_u32(seed, stream, index) >> 8) * 0x1p-24f;
}

double lksi_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    draw(seed, stream, index / 2, words);
    double radius = sqrt(-2.0 * log(((double)words[0] + 1.0) * 0x1p-32));
    double angle = 6.283185307179586 * ((double)words[1] * 0x1p-32);
    return index % 2 == 0 ? radius * cos(angle) : radius * sin(angle);
}

uint64_t lksi_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound) {
    uint32_t words[4];
    draw(seed, stream, index, words);
    uint64_t wide = (uint64_t)words[0] << 32 | words[1];
    return (uint64_t)(((wide128)wide * bound) >> 64);
}
