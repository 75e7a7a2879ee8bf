/* Functions of one float that compilers vectorise inside a loop: no branches, no calls, no tables. For NAME_isa.c
 * files. The bits are the same on every instruction set. */
#ifndef LKSI_VECTOR_MATH_H
#define LKSI_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

/* e^x to 2 units in the last place for x up to 88. 0 below -87, where the result would be subnormal. NaN stays NaN. x =
 * n ln 2 + r with |r| <= ln 2 / 2, so that e^x = 2^n e^r. Adding 1.5 * 2^23 rounds to n, because no bits are left for a
 * fraction. n is then in the last bits of the sum, and is added to the exponent of e^r from there. ln 2 is split into
 * two parts, of which the first is so short that its product with n is exact. e^r is a polynomial, fitted by
 * iteratively weighted least squares, with a relative error below 4e-9. Source: Cody, Waite, "Software manual for the
 * elementary functions", 1980. */
static inline float lksi_exp(float x) {
    const float round = 12582912.0f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    float sum = x * 1.44269504f + round, n = sum - round;
    float r = x - n * ln2_high - n * ln2_low, y = 0.00138143206f;
    y = y * r + 0.00836885069f;
    y = y * r + 0.0416684002f;
    y = y * r + 0.166665196f;
    y = y * r + 0.49999994f;
    y = y * r + 1;
    y = y * r + 1;
    uint32_t bits, n_bits;
    memcpy(&bits, &y, sizeof bits);
    memcpy(&n_bits, &sum, sizeof n_bits);
    bits += n_bits << 23;
    memcpy(&y, &bits, sizeof y);
    return x < -87 ? 0 : x == x ? y : x;
}

/* 1 / (1 + e^-x), from e^-|x|, which cannot overflow. */
static inline float lksi_sigmoid(float x) {
    float decay = lksi_exp(x < 0 ? x : -x), above = x < 0 ? decay : 1;
    return above / (1 + decay);
}

/* The normal distribution function at x, to 6 units in the last place. `decay` is e^(-x^2/2), which callers may need,
 * too. For |x| < 1 an odd polynomial in x. Outside, P(-a) = e^(-a^2/2) times a polynomial in t = 1 / (1 + a/2), the
 * form of Hastings, "Approximations for digital computers", 1955. The coefficients are fitted by iteratively weighted
 * least squares, with relative errors below 1e-9 and 5e-8. */
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
