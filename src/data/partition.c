/* Partitions a data set into lists of samples by fractions. */
#include "data/data_internal.h"

#include <string.h>

/* Fractions such as 0.7 + 0.2 + 0.1 may sum to slightly more than 1 in floating point. */
static const double ROUNDING = 1e-9;

static lks_status check_fractions(const double *fractions, int n_parts) {
    double sum = 0;
    for (int i = 0; i < n_parts; i++) {
        if (!(fractions[i] >= 0))
            return lksi_error(LKS_ERR_ARGUMENT, "fraction %d of the partition is %g", i, fractions[i]);
        sum += fractions[i];
    }
    if (sum > 1 + ROUNDING) return lksi_error(LKS_ERR_ARGUMENT, "the partition's fractions add up to %g", sum);
    return LKS_OK;
}

lks_status lks_partition(int64_t count, const double *fractions, int n_parts, uint64_t seed, int part, int64_t *indices,
                         int64_t *n_indices) {
    LKS_TRY(lksi_check_given("partition", "fractions", fractions));
    LKS_TRY(lksi_check_given("partition", "n_indices", n_indices));
    if (count > 0) LKS_TRY(lksi_check_given("partition", "indices", indices));
    if (count < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "a partition of %lld samples: the count is negative", (long long)count);
    if (part < 0 || part >= n_parts)
        return lksi_error(LKS_ERR_ARGUMENT, "part %d is outside a partition into %d", part, n_parts);
    LKS_TRY(check_fractions(fractions, n_parts));
    int64_t begin = 0, length = 0;
    for (int i = 0; i <= part; i++) {
        begin += length;
        length = (int64_t)(fractions[i] * (double)count);
        if (length > count - begin) length = count - begin;
    }
    for (int64_t i = 0; i < count; i++) indices[i] = i;
    lksi_shuffle(indices, count, seed, lksi_data_stream(LKSI_FOR_PARTITION, 0));
    memmove(indices, indices + begin, (size_t)length * sizeof *indices);
    *n_indices = length;
    return LKS_OK;
}
