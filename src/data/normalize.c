/* Means and deviations of a data set's features, and reading them in these units. */
#include "data/data_internal.h"

#include <math.h>

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
        int32_t label;
        lksi_dataset_gather(dataset, NULL, &i, 1, row, &label);
        for (int64_t c = 0; c < n_parts; c++) add_row(&totals[c], row + (size_t)c * part, part);
    }
    lksi_free(row);
    double n = (double)dataset->count * (double)part;
    for (int64_t c = 0; c < n_parts; c++) {
        means[c] = totals[c].sum / n;
        deviations[c] = sqrt(fmax(totals[c].squares / n - means[c] * means[c], 0));
    }
    return LKS_OK;
}

lks_status lks_dataset_moments(const lks_dataset *dataset, double *mean, double *deviation) {
    return measure(dataset, 1, mean, deviation);
}

lks_status lks_dataset_channel_moments(const lks_dataset *dataset, double *means, double *deviations) {
    return measure(dataset, dataset->image.n_channels, means, deviations);
}

static lks_status check_units(double mean, double deviation) {
    if (!isfinite(mean) || !(deviation > 0) || isinf(deviation))
        return lksi_error(LKS_ERR_ARGUMENT, "features cannot be normalised by mean %g and deviation %g", mean,
                          deviation);
    return LKS_OK;
}

static void normalize(lks_dataset *dataset, int64_t channel, double mean, double deviation) {
    dataset->shift[channel] = (float)(((double)dataset->shift[channel] - mean) / deviation);
    dataset->scale[channel] = (float)((double)dataset->scale[channel] / deviation);
}

lks_status lks_dataset_normalize(lks_dataset *dataset, double mean, double deviation) {
    LKS_TRY(check_units(mean, deviation));
    for (int64_t c = 0; c < dataset->image.n_channels; c++) normalize(dataset, c, mean, deviation);
    return LKS_OK;
}

lks_status lks_dataset_normalize_channels(lks_dataset *dataset, const double *means, const double *deviations) {
    for (int64_t c = 0; c < dataset->image.n_channels; c++) LKS_TRY(check_units(means[c], deviations[c]));
    for (int64_t c = 0; c < dataset->image.n_channels; c++) normalize(dataset, c, means[c], deviations[c]);
    return LKS_OK;
}
