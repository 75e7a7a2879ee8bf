/* Random orders and normal numbers from Philox. They are pure functions of seed, stream and position, so they are the
 * same for any threads, ranks and machines. */
#include "data/data_internal.h"

#include <math.h>
#include <string.h>

uint64_t lksi_data_stream(lksi_purpose purpose, int64_t detail) {
    return (uint64_t)(0xda7a0000u + (uint32_t)purpose) << 32 | (uint32_t)detail;
}

/* Fisher-Yates shuffle, from the end. */
void lksi_shuffle(int64_t *items, int64_t count, uint64_t seed, uint64_t stream) {
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t other = lksi_random_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        int64_t item = items[i];
        items[i] = items[other];
        items[other] = item;
    }
}

/* Computes -2 log(u) for u = (word + 1) / 2^32. The last bits of libm's log, sin and cos differ between versions and
 * CPUs. These functions use only +, -, *, / and are exact to 1e-12, so every machine makes the same data set. log(m
 * 2^e) = e log 2 + 2 atanh((m - 1) / (m + 1)), m between sqrt(1/2) and sqrt(2), atanh by its series. */
static double minus_2_log(uint32_t word) {
    double value = (double)word + 1.0; /* 2^32 u */
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double mantissa;
    memcpy(&mantissa, &bits, sizeof mantissa);
    if (mantissa > 1.4142135623730951) mantissa *= 0.5, exponent++;
    double s = (mantissa - 1.0) / (mantissa + 1.0), t = s * s;
    double series = 1.0 / 17;
    for (int odd = 15; odd >= 1; odd -= 2) series = series * t + 1.0 / odd;
    return -2.0 * ((double)(exponent - 32) * 0.6931471805599453 + 2.0 * s * series);
}

/* Cosine and sine of a uniformly random angle. The upper two bits of the word select a quarter turn. The others give an
 * angle of -45 to 45 degrees within it, for which short Taylor series suffice. */
static void random_direction(uint32_t word, double *cosine, double *sine) {
    double x = ((double)(word & 0x3fffffffu) * 0x1p-30 - 0.5) * 1.5707963267948966, t = x * x;
    double c = 1 - t / 2 * (1 - t / 12 * (1 - t / 30 * (1 - t / 56 * (1 - t / 90 * (1 - t / 132 * (1 - t / 182))))));
    double s = x * (1 - t / 6 * (1 - t / 20 * (1 - t / 42 * (1 - t / 72 * (1 - t / 110 * (1 - t / 156))))));
    bool is_swapped = (word & 0x40000000u) != 0, is_negated = (word & 0x80000000u) != 0;
    double a = is_swapped ? -s : c, b = is_swapped ? c : s;
    *cosine = is_negated ? -a : a;
    *sine = is_negated ? -b : b;
}

/* Two normal numbers from two uniform ones (Box and Muller, 1958). */
static void normal_pair(const uint32_t words[2], float out[2]) {
    double radius = sqrt(minus_2_log(words[0])), cosine, sine;
    random_direction(words[1], &cosine, &sine);
    out[0] = (float)(radius * cosine);
    out[1] = (float)(radius * sine);
}

void lksi_fill_normal(float *out, int64_t count, uint64_t seed, uint64_t stream, uint64_t first_block) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int64_t i = 0; i < count; i += 4) {
        uint64_t block = first_block + (uint64_t)i / 4;
        const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                                     (uint32_t)(stream >> 32)};
        uint32_t words[4];
        float normals[4];
        lks_philox(counter, key, words);
        normal_pair(words, normals);
        normal_pair(words + 2, normals + 2);
        memcpy(out + i, normals, (count - i < 4 ? (size_t)(count - i) : 4) * sizeof *out);
    }
}
