/* The statistics that follow from the sums of a synchronised batch norm, shared by all devices. */
#ifndef LKSI_OP_BATCH_NORM_H
#define LKSI_OP_BATCH_NORM_H

#include <stdint.h>

typedef struct lksi_norm_moments {
    double mean, variance, unbiased_variance;
} lksi_norm_moments;

/* The moments of channel `c`, from BATCH_NORM_SUMS around `shift`. The variance is a difference of two numbers. It
 * loses as many digits as (mean - shift)^2 exceeds it. In f64 and around the running mean the loss is negligible. If no
 * rank has a sample, the result is meaningless but finite. The unbiased variance of one element counts as 0. */
static inline lksi_norm_moments lksi_norm_moments_of(const double *sums, int64_t n_channels, int64_t c, double shift) {
    double n = sums[0];
    if (!(n > 0)) return (lksi_norm_moments){.mean = shift};
    double distance = sums[1 + c] / n, variance = sums[1 + n_channels + c] / n - distance * distance;
    if (variance < 0) variance = 0; /* may be negative by rounding; NaN stays NaN */
    return (lksi_norm_moments){shift + distance, variance, n > 1 ? variance * n / (n - 1) : variance};
}

/* The factor that makes the variance of n elements unbiased. For one element it is 1, so the variance stays 0. */
static inline double lksi_norm_correction(int64_t n) { return n > 1 ? (double)n / (double)(n - 1) : 1; }

/* sum / n, or 0 if n is 0. */
static inline double lksi_norm_mean_of(double sum, double n) { return n > 0 ? sum / n : 0; }

#endif
