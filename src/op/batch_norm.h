/* What the sums of batch norm tell, for whoever takes them. */
#ifndef LKSI_OP_BATCH_NORM_H
#define LKSI_OP_BATCH_NORM_H

#include <stdint.h>

typedef struct lksi_norm_moments {
    double mean, variance, unbiased_variance;
} lksi_norm_moments;

/* Of channel `c`, by BATCH_NORM_SUMS around `shift`. The variance is a difference that loses what (mean - shift)^2 is
 * larger than it: in f64, and around the running mean, next to nothing. Where no rank has a sample, what comes out is
 * of no use, but finite; of one element there is no unbiased variance, it counts as 0. */
static inline lksi_norm_moments lksi_norm_moments_of(const double *sums, int64_t n_channels, int64_t c, double shift) {
    double n = sums[0];
    if (!(n > 0)) return (lksi_norm_moments){.mean = shift};
    double distance = sums[1 + c] / n, variance = sums[1 + n_channels + c] / n - distance * distance;
    if (variance < 0) variance = 0; /* rounding; NaN stays */
    return (lksi_norm_moments){shift + distance, variance, n > 1 ? variance * n / (n - 1) : variance};
}

/* By which the variance of n elements is multiplied to be unbiased; of one element it stays 0. */
static inline double lksi_norm_correction(int64_t n) { return n > 1 ? (double)n / (double)(n - 1) : 1; }

/* sum / n, 0 where there is nothing. */
static inline double lksi_norm_mean_of(double sum, double n) { return n > 0 ? sum / n : 0; }

#endif
