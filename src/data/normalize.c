/* Means and deviations of a data set's features, and reading them in these units. */
#include "data/data_internal.h"

#include <math.h>
#include <string.h>

typedef struct sums {
    double sum, squares;
} sums;

/* Row by row: the long sums lose less. */
static void add_row(sums *total, const float *row, size_t count) {
    sums mine = {0};
    for (size_t j = 0; j < count; j++) {
        mine.sum += (double)row[j];
        mine.squares += (double)row[j] * (double)row[j];
    }
    total->sum += mine.sum;
    total->squares += mine.squares;
}

/* Each sample in n_parts equal stretches, with sums of its own for each. */
static lks_status measure(const lks_dataset *dataset, int64_t n_parts, double *means, double *deviations) {
    if (dataset->count == 0) return lksi_error(LKS_ERR_ARGUMENT, "a data set without samples has no mean");
    size_t n_features = (size_t)dataset->n_features, part = n_features / (size_t)n_parts;
    float *row = lksi_alloc_array(n_features, sizeof *row);
    if (row == NULL) return LKS_ERR_MEMORY;
    sums totals[LKSI_MAX_CHANNELS] = {{0}};
    for (int64_t i = 0; i < dataset->count; i++) {
        lksi_dataset_gather(dataset, NULL, &i, 1, row, NULL);
        for (int64_t c = 0; c < n_parts; c++) add_row(&totals[c], row + (size_t)c * part, part);
    }
    lksi_free(row);
    double n = (double)dataset->count * (double)part;
    for (int64_t c = 0; c < n_parts; c++) {
        means[c] = totals[c].sum / n;
        double variance = totals[c].squares / n - means[c] * means[c];
        deviations[c] = sqrt(variance < 0 ? 0 : variance); /* NaN where a feature is */
    }
    return LKS_OK;
}

static lks_status check_given(const char *call, const lks_dataset *dataset, const double *means,
                              const double *deviations) {
    LKS_TRY(lksi_check_given(call, "dataset", dataset));
    LKS_TRY(lksi_check_given(call, "means", means));
    return lksi_check_given(call, "deviations", deviations);
}

lks_status lks_dataset_moments(const lks_dataset *dataset, double *mean, double *deviation) {
    LKS_TRY(lksi_check_given("dataset_moments", "dataset", dataset));
    LKS_TRY(lksi_check_given("dataset_moments", "mean", mean));
    LKS_TRY(lksi_check_given("dataset_moments", "deviation", deviation));
    return measure(dataset, 1, mean, deviation);
}

lks_status lks_dataset_channel_moments(const lks_dataset *dataset, double *means, double *deviations) {
    LKS_TRY(check_given("dataset_channel_moments", dataset, means, deviations));
    return measure(dataset, dataset->image.n_channels, means, deviations);
}

static lks_status refuse_loaders(const lks_dataset *dataset) {
    int n_loaders = atomic_load(&dataset->n_loaders);
    if (n_loaders == 0) return LKS_OK;
    return lksi_error(LKS_ERR_STATE, "a data set is normalised before its loaders are made: it has %d", n_loaders);
}

/* All channels or none. `step`: from one channel's mean to the next one's; 0: all have the same. */
static lks_status normalize(lks_dataset *dataset, const double *means, const double *deviations, int64_t step) {
    float scale[LKSI_MAX_CHANNELS], shift[LKSI_MAX_CHANNELS];
    const int64_t n_channels = dataset->image.n_channels;
    LKS_TRY(refuse_loaders(dataset));
    for (int64_t c = 0; c < n_channels; c++) {
        double mean = means[c * step], deviation = deviations[c * step];
        scale[c] = (float)((double)dataset->scale[c] / deviation);
        shift[c] = (float)(((double)dataset->shift[c] - mean) / deviation);
        if (!(deviation > 0) || isinf(deviation) || !isfinite(scale[c]) || !isfinite(shift[c]))
            return lksi_error(LKS_ERR_ARGUMENT, "features cannot be normalised by mean %g and deviation %g", mean,
                              deviation);
    }
    memcpy(dataset->scale, scale, (size_t)n_channels * sizeof *scale);
    memcpy(dataset->shift, shift, (size_t)n_channels * sizeof *shift);
    return LKS_OK;
}

lks_status lks_dataset_normalize(lks_dataset *dataset, double mean, double deviation) {
    LKS_TRY(lksi_check_given("dataset_normalize", "dataset", dataset));
    return normalize(dataset, &mean, &deviation, 0);
}

lks_status lks_dataset_normalize_channels(lks_dataset *dataset, const double *means, const double *deviations) {
    LKS_TRY(check_given("dataset_normalize_channels", dataset, means, deviations));
    return normalize(dataset, means, deviations, 1);
}
