/* Data sets in memory, and slices of them that share the memory. */
#include "data/data_internal.h"

#include <math.h>
#include <string.h>

static void release_samples(lksi_samples *samples) {
    if (atomic_fetch_sub(&samples->n_holders, 1) > 1) return;
    lksi_free(samples->bytes);
    lksi_free(samples->values);
    lksi_free(samples->labels);
    lksi_free(samples);
}

static lks_status create_samples(lksi_samples **samples, lks_type type, int64_t count, int64_t n_features) {
    lksi_samples *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    atomic_init(&created->n_holders, 1);
    void *elements = lksi_alloc_array((size_t)count, (size_t)n_features * lks_type_nbytes(type));
    if (type == LKS_U8)
        created->bytes = elements;
    else
        created->values = elements;
    created->labels = lksi_alloc_array((size_t)count, sizeof *created->labels);
    if (elements == NULL || created->labels == NULL) {
        release_samples(created);
        return LKS_ERR_MEMORY;
    }
    *samples = created;
    return LKS_OK;
}

lks_status lksi_dataset_create(lks_dataset **dataset, lks_type type, int64_t count, int64_t n_features,
                               int64_t n_classes) {
    lks_dataset *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    lks_status status = create_samples(&created->samples, type, count, n_features);
    if (status != LKS_OK) {
        lksi_free(created);
        return status;
    }
    created->count = count;
    created->n_features = n_features;
    created->n_classes = n_classes;
    created->scale = 1;
    *dataset = created;
    return LKS_OK;
}

lks_status lks_dataset_slice(lks_dataset **slice, lks_dataset *dataset, int64_t begin, int64_t end) {
    if (begin < 0 || end < begin || end > dataset->count)
        return lksi_error(LKS_ERR_ARGUMENT, "slice %lld..%lld of a data set of %lld samples", (long long)begin,
                          (long long)end, (long long)dataset->count);
    lks_dataset *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    *created = *dataset;
    created->begin += begin;
    created->count = end - begin;
    atomic_fetch_add(&created->samples->n_holders, 1);
    *slice = created;
    return LKS_OK;
}

void lks_dataset_destroy(lks_dataset *dataset) {
    if (dataset == NULL) return;
    release_samples(dataset->samples);
    lksi_free(dataset);
}

int64_t lks_dataset_count(const lks_dataset *dataset) { return dataset->count; }
int64_t lks_dataset_n_features(const lks_dataset *dataset) { return dataset->n_features; }
int64_t lks_dataset_n_classes(const lks_dataset *dataset) { return dataset->n_classes; }

/* Eight bytes at a time: FNV byte by byte would take longer than reading the files. The tail is hashed by itself. */
uint64_t lksi_hash_words(uint64_t hash, const void *data, size_t nbytes) {
    const unsigned char *bytes = data;
    size_t n_words = nbytes / sizeof(uint64_t);
    for (size_t i = 0; i < n_words; i++) {
        uint64_t word;
        memcpy(&word, bytes + i * sizeof word, sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29; /* the product alone never moves high bits down */
    }
    return lksi_hash64(hash, bytes + n_words * sizeof(uint64_t), nbytes % sizeof(uint64_t));
}

uint64_t lks_dataset_hash(const lks_dataset *dataset) {
    size_t first = (size_t)dataset->begin * (size_t)dataset->n_features;
    size_t n_elements = (size_t)dataset->count * (size_t)dataset->n_features;
    const lksi_samples *samples = dataset->samples;
    uint64_t hash = samples->bytes != NULL ? lksi_hash_words(LKSI_HASH_START, samples->bytes + first, n_elements)
                                           : lksi_hash_words(LKSI_HASH_START, samples->values + first,
                                                             n_elements * sizeof *samples->values);
    hash = lksi_hash_words(hash, samples->labels + dataset->begin, (size_t)dataset->count * sizeof *samples->labels);
    return lksi_hash_words(hash, &dataset->n_features, sizeof dataset->n_features);
}

lks_status lks_dataset_moments(const lks_dataset *dataset, double *mean, double *deviation) {
    size_t n_features = (size_t)dataset->n_features;
    if (dataset->count == 0) return lksi_error(LKS_ERR_ARGUMENT, "a data set without samples has no mean");
    float *row = lksi_alloc_array(n_features, sizeof *row);
    if (row == NULL) return LKS_ERR_MEMORY;
    double sum = 0, squares = 0, n = (double)dataset->count * (double)n_features;
    for (int64_t i = 0; i < dataset->count; i++) {
        int32_t label;
        double row_sum = 0, row_squares = 0; /* row by row: the long sums lose less */
        lksi_dataset_gather(dataset, &i, 1, row, &label);
        for (size_t j = 0; j < n_features; j++) {
            row_sum += (double)row[j];
            row_squares += (double)row[j] * (double)row[j];
        }
        sum += row_sum;
        squares += row_squares;
    }
    lksi_free(row);
    *mean = sum / n;
    *deviation = sqrt(fmax(squares / n - *mean * *mean, 0));
    return LKS_OK;
}

lks_status lks_dataset_normalize(lks_dataset *dataset, double mean, double deviation) {
    if (!isfinite(mean) || !(deviation > 0) || isinf(deviation))
        return lksi_error(LKS_ERR_ARGUMENT, "features cannot be normalised by mean %g and deviation %g", mean,
                          deviation);
    dataset->shift = (float)(((double)dataset->shift - mean) / deviation);
    dataset->scale = (float)((double)dataset->scale / deviation);
    return LKS_OK;
}

lks_status lks_dataset_get(const lks_dataset *dataset, int64_t index, float *features, int32_t *label) {
    if (index < 0 || index >= dataset->count)
        return lksi_error(LKS_ERR_ARGUMENT, "sample %lld of a data set of %lld samples", (long long)index,
                          (long long)dataset->count);
    lksi_dataset_gather(dataset, &index, 1, features, label);
    return LKS_OK;
}

/* Rows come in random order, so the hardware does not foresee the next one: it is asked for while this one is read. */
static void prefetch_row(const uint8_t *row, size_t nbytes) {
    for (size_t offset = 0; offset < nbytes; offset += 64) __builtin_prefetch(row + offset);
}

static void gather_bytes(const lks_dataset *dataset, const int64_t *indices, int64_t count, float *features) {
    const lksi_convert_kernels *kernels = LKSI_ISA_PICK(lksi_convert);
    size_t n_features = (size_t)dataset->n_features;
    const uint8_t *bytes = dataset->samples->bytes + (size_t)dataset->begin * n_features;
    for (int64_t i = 0; i < count; i++) {
        if (i + 1 < count) prefetch_row(bytes + (size_t)indices[i + 1] * n_features, n_features);
        kernels->bytes_to_floats(features + (size_t)i * n_features, bytes + (size_t)indices[i] * n_features, n_features,
                                 dataset->scale, dataset->shift);
    }
}

static void gather_values(const lks_dataset *dataset, const int64_t *indices, int64_t count, float *features) {
    size_t n_features = (size_t)dataset->n_features;
    const float *values = dataset->samples->values + (size_t)dataset->begin * n_features;
    const lksi_convert_kernels *kernels = LKSI_ISA_PICK(lksi_convert);
    bool is_plain = dataset->scale == 1 && dataset->shift == 0;
    for (int64_t i = 0; i < count; i++) {
        const float *from = values + (size_t)indices[i] * n_features;
        float *to = features + (size_t)i * n_features;
        if (is_plain)
            memcpy(to, from, n_features * sizeof *to);
        else
            kernels->normalize(to, from, n_features, dataset->scale, dataset->shift);
    }
}

void lksi_dataset_gather(const lks_dataset *dataset, const int64_t *indices, int64_t count, float *features,
                         int32_t *labels) {
    if (dataset->samples->bytes != NULL)
        gather_bytes(dataset, indices, count, features);
    else
        gather_values(dataset, indices, count, features);
    const int32_t *all_labels = dataset->samples->labels + dataset->begin;
    for (int64_t i = 0; i < count; i++) labels[i] = all_labels[indices[i]];
}
