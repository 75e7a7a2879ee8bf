/* Functions of one float that compilers turn into vector code inside a loop: no branches, no calls, no tables. For
 * NAME_isa.c files; the same bits on every instruction set. */
#ifndef LKSI_VECTOR_MATH_H
#define LKSI_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

/* 2^n by its bits, n from -126 to 127. */
static inline float lksi_power_of_2(uint32_t n) {
    uint32_t bits = (n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* e^x to 2 units in the last place; 0 below -104, infinity above 89, NaN stays NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2, so that e^x = 2^n e^r; n comes out of adding 1.5 * 2^23, which leaves no bits
 * for a fraction, and stands in the sum's last bits. ln 2 in two parts, the first so short that n times it is exact.
 * e^r by its Taylor series: what is left out, r^8 / 8!, is a tenth of a unit in the last place.
 * Source: Cody, Waite, "Software manual for the elementary functions", 1980. */
static inline float lksi_exp(float x) {
    const float round = 12582912.0f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float sum = x * 1.44269504f + round, n = sum - round;
    float r = x - n * ln2_high - n * ln2_low;
    float y = 1.0f / 5040;
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 1.0f / 2;
    y = y * r + 1;
    y = y * r + 1;
    uint32_t bits, zero_bits;
    memcpy(&bits, &sum, sizeof bits);
    memcpy(&zero_bits, &round, sizeof zero_bits);
    uint32_t exponent = bits - zero_bits, half = (uint32_t)((int32_t)exponent >> 1);
    /* In two steps: 2^n alone may be too small or too large for a float. */
    return y * lksi_power_of_2(half) * lksi_power_of_2(exponent - half);
}

static inline float lksi_sigmoid(float x) { return 1.0f / (1.0f + lksi_exp(-x)); }

/* The normal distribution function at x, to 6 units in the last place; `decay` is e^(-x^2/2), which callers may need
 * too. In the middle an odd polynomial in x; outside, P(-a) = e^(-a^2/2) times a polynomial in t = 1 / (1 + a/2), the
 * form of Hastings, "Approximations for digital computers", 1955. Coefficients: fitted by iteratively weighted least
 * squares; relative errors below 1e-9 and 5e-8. */
static inline float lksi_normal_below(float x, float decay) {
    float square = x * x, middle = -7.65420828e-06f;
    middle = middle * square + 0.000113486371f;
    middle = middle * square - 0.00118632999f;
    middle = middle * square + 0.00997332297f;
    middle = middle * square - 0.0664903596f;
    middle = 0.5f + x * (middle * square + 0.398942292f);
    float magnitude = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.5f * magnitude), tail = -0.127559885f;
    tail = tail * t + 0.373605132f;
    tail = tail * t - 0.340606451f;
    tail = tail * t + 0.00545076048f;
    tail = tail * t + 0.0387385525f;
    tail = tail * t + 0.150517046f;
    tail = tail * t + 0.199448571f;
    tail = (tail * t + 0.199470416f) * t * decay;
    float outside = x < 0 ? tail : 1.0f - tail;
    return magnitude < 1.0f ? middle : outside;
}

#endif
