/* Normal numbers from uniform words (Box and Muller, 1958). The last bits of libm's log, sin and cos differ between
 * versions and CPUs. These functions use only +, -, *, / and the square root and are exact to 1e-12, so every machine
 * makes the same data set. Compiled once per instruction set, because a data set of such numbers is made at each start.
 */
#include "data/data_internal.h"

#include <math.h>
#include <string.h>

/* Converts 0..2^32-1 through signed words, for which AVX2 has an instruction. */
static double to_double(uint32_t word) { return (double)(int32_t)(word ^ 0x80000000u) + 0x1p31; }

/* Computes -2 log(u) for u = (word + 1) / 2^32. log(m 2^e) = e log 2 + 2 atanh((m - 1) / (m + 1)), m between sqrt(1/2)
 * and sqrt(2), atanh by its series. */
static double minus_2_log(uint32_t word) {
    double value = to_double(word) + 1.0; /* 2^32 u */
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bool is_upper = (bits & 0x000fffffffffffffu) > 0x0006a09e667f3bcdu; /* the mantissa is over sqrt(2) */
    int exponent = (int)(uint32_t)(bits >> 52) - 1023 + (is_upper ? 1 : 0);
    bits = (bits & 0x000fffffffffffffu) | (is_upper ? 0x3fe0000000000000u : 0x3ff0000000000000u);
    double mantissa;
    memcpy(&mantissa, &bits, sizeof mantissa);
    double s = (mantissa - 1.0) / (mantissa + 1.0), t = s * s;
    double series = 1.0 / 17;
    series = series * t + 1.0 / 15;
    series = series * t + 1.0 / 13;
    series = series * t + 1.0 / 11;
    series = series * t + 1.0 / 9;
    series = series * t + 1.0 / 7;
    series = series * t + 1.0 / 5;
    series = series * t + 1.0 / 3;
    series = series * t + 1.0;
    return -2.0 * ((double)(exponent - 32) * 0.6931471805599453 + 2.0 * s * series);
}

/* out[2 i] and out[2 i + 1] from radii[i] and angles[i]. The upper two bits of an angle's word select a quarter turn.
 * The others give an angle of -45 to 45 degrees within it, for which short Taylor series suffice. */
static void box_muller(float *restrict out, const uint32_t *restrict radii, const uint32_t *restrict angles,
                       size_t n_pairs) {
    for (size_t i = 0; i < n_pairs; i++) {
        double radius = sqrt(minus_2_log(radii[i]));
        uint32_t word = angles[i];
        double x = ((double)(int32_t)(word & 0x3fffffffu) * 0x1p-30 - 0.5) * 1.5707963267948966, t = x * x;
        double c =
            1 - t / 2 * (1 - t / 12 * (1 - t / 30 * (1 - t / 56 * (1 - t / 90 * (1 - t / 132 * (1 - t / 182))))));
        double s = x * (1 - t / 6 * (1 - t / 20 * (1 - t / 42 * (1 - t / 72 * (1 - t / 110 * (1 - t / 156))))));
        bool is_swapped = (word & 0x40000000u) != 0, is_negated = (word & 0x80000000u) != 0;
        double cosine = is_swapped ? -s : c, sine = is_swapped ? c : s;
        out[2 * i] = (float)(radius * (is_negated ? -cosine : cosine));
        out[2 * i + 1] = (float)(radius * (is_negated ? -sine : sine));
    }
}

const lksi_normal_kernels LKSI_ISA_NAME(lksi_normal) = {box_muller};
