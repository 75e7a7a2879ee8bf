/* Means and deviations of a data set's features, and normalisation by them. */
#include "data/data_internal.h"
#include "op/image.h"

#include <math.h>
#include <string.h>

/* Sums of the distances from `center`. For features far from 0 the rounding of squares would otherwise hide the
 * deviation, and constants would get one. */
typedef struct sums {
    double center, sum, squares;
    bool has_center;
} sums;

static void finish(const sums *total, double n, double *mean, double *deviation) {
    double distance = total->sum / n, variance = total->squares / n - distance * distance;
    *mean = total->center + distance;
    *deviation = sqrt(variance < 0 ? 0 : variance); /* NaN if a feature is NaN */
}

/* Adds a whole row at once, because that loses less precision in the long sums. */
static void add_row(sums *total, const float *row, size_t count) {
    double sum = 0, squares = 0;
    for (size_t j = 0; j < count; j++) {
        double distance = (double)row[j] - total->center;
        sum += distance;
        squares += distance * distance;
    }
    total->sum += sum;
    total->squares += squares;
}

/* Cuts each sample into n_parts equal parts and adds up separate sums for each. `row` has room for one sample. */
static lks_status add_floats(const lks_dataset *dataset, int64_t n_parts, void *buffer, void *row, sums *totals) {
    size_t part = (size_t)(dataset->n_features / n_parts);
    for (int64_t i = 0; i < dataset->count; i++) {
        LKS_TRY(lksi_dataset_gather(dataset, NULL, &i, 1, buffer, row, NULL));
        for (int64_t p = 0; p < n_parts; p++) {
            const float *features = (const float *)row + (size_t)p * part;
            if (i == 0 && isfinite(features[0])) totals[p].center = (double)features[0];
            add_row(&totals[p], features, part);
        }
    }
    return LKS_OK;
}

/* How often each byte occurs in a channel. Neighbours are often equal, so they are counted in turn in several arrays:
 * an addition that needs the result of the one before would wait for it. */
enum { N_VALUES = 256, N_IN_TURN = 4 };
typedef uint64_t counts[N_IN_TURN][N_VALUES];

static void count_bytes(counts c, const uint8_t *bytes, size_t n) {
    size_t j = 0;
    for (; j + N_IN_TURN <= n; j += N_IN_TURN)
        for (size_t k = 0; k < N_IN_TURN; k++) c[k][bytes[j + k]]++;
    for (; j < n; j++) c[0][bytes[j]]++;
}

/* Adds the values of all bytes, as they read in the channel's units, each times its count. */
static void add_counts(const lksi_units *units, counts c, sums *total) {
    uint8_t bytes[N_VALUES];
    float values[N_VALUES];
    for (int byte = 0; byte < N_VALUES; byte++) bytes[byte] = (uint8_t)byte;
    LKSI_ISA_PICK(lksi_convert)->bytes_to_floats(values, bytes, N_VALUES, units->scale, units->shift);
    for (int byte = 0; byte < N_VALUES; byte++) {
        uint64_t n = 0;
        for (int k = 0; k < N_IN_TURN; k++) n += c[k][byte];
        if (n == 0) continue;
        if (!total->has_center) total->center = (double)values[byte], total->has_center = true;
        double distance = (double)values[byte] - total->center;
        total->sum += (double)n * distance;
        total->squares += (double)n * distance * distance;
    }
}

/* Parts are channels, or one part is all of them. */
static lks_status add_bytes(const lks_dataset *dataset, int64_t n_parts, void *buffer, void *row, sums *totals) {
    const int64_t n_channels = dataset->image.n_channels;
    size_t plane = (size_t)(dataset->n_features / n_channels);
    counts of_channel[LKSI_MAX_CHANNELS] = {{{0}}};
    for (int64_t i = 0; i < dataset->count; i++) {
        LKS_TRY(lksi_dataset_gather_bytes(dataset, NULL, &i, 1, buffer, row, NULL));
        for (int64_t c = 0; c < n_channels; c++)
            count_bytes(of_channel[c], (const uint8_t *)row + (size_t)c * plane, plane);
    }
    for (int64_t c = 0; c < n_channels; c++) add_counts(&dataset->units[c], of_channel[c], &totals[c % n_parts]);
    return LKS_OK;
}

static lks_status measure(const lks_dataset *dataset, int64_t n_parts, double *means, double *deviations) {
    if (dataset->count == 0) return lksi_error(LKS_ERR_ARGUMENT, "a data set without samples has no mean");
    sums totals[LKSI_MAX_CHANNELS] = {{0}};
    void *buffer;
    LKS_TRY(lksi_dataset_create_buffer(dataset, &buffer));
    float *row = lksi_alloc_array((size_t)dataset->n_features + LKSI_DRAW_NBYTES, sizeof *row);
    lks_status status = LKS_ERR_MEMORY;
    if (row != NULL)
        status = (dataset->samples->type == LKS_U8 ? add_bytes : add_floats)(dataset, n_parts, buffer, row, totals);
    lksi_free(row);
    lksi_free(buffer);
    LKS_TRY(status);
    int64_t part = dataset->n_features / n_parts;
    double n = (double)dataset->count * (double)part;
    for (int64_t p = 0; p < n_parts; p++) finish(&totals[p], n, &means[p], &deviations[p]);
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
    return lksi_error(LKS_ERR_STATE, "a data set must be normalised before its loaders are created; it has %d",
                      n_loaders);
}

/* Combines a normalisation with the present one. Mean and deviation are in the present units. */
static lksi_units units_within(const lksi_units *units, double mean, double deviation) {
    return (lksi_units){.scale = (float)((double)units->scale / deviation),
                        .shift = (float)(((double)units->shift - mean) / deviation),
                        .mean = units->mean + mean / units->inverse,
                        .inverse = units->inverse / deviation};
}

/* Bytes read as values between those of 0 and 255. Of floats only the formula is checked, as any may occur. */
static bool are_finite(const lksi_units *units, lks_type type) {
    if (type != LKS_U8) return isfinite(units->mean) && isfinite(units->inverse);
    static const uint8_t ends[2] = {0, 255};
    float values[2];
    LKSI_ISA_PICK(lksi_convert)->bytes_to_floats(values, ends, 2, units->scale, units->shift);
    return isfinite(values[0]) && isfinite(values[1]);
}

/* Normalises all channels or none. `step` is the distance between the means of two channels. 0: all have the same. */
static lks_status normalize(lks_dataset *dataset, const double *means, const double *deviations, int64_t step) {
    lksi_units units[LKSI_MAX_CHANNELS];
    const int64_t n_channels = dataset->image.n_channels;
    LKS_TRY(refuse_loaders(dataset));
    for (int64_t c = 0; c < n_channels; c++) {
        double mean = means[c * step], deviation = deviations[c * step];
        units[c] = units_within(&dataset->units[c], mean, deviation);
        if (!(deviation > 0) || isinf(deviation) || !are_finite(&units[c], dataset->samples->type))
            return lksi_error(LKS_ERR_ARGUMENT, "features cannot be normalised by mean %g and deviation %g", mean,
                              deviation);
    }
    memcpy(dataset->units, units, (size_t)n_channels * sizeof *units);
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
