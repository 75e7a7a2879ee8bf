/* Samples that a function of the caller reads, for data that is in no array: files to decode, data larger than memory,
 * samples made by a formula. */
#include "data/data_internal.h"

#include <string.h>

static size_t sample_nbytes(const lks_dataset *dataset) {
    return (size_t)dataset->n_features * lks_type_nbytes(dataset->samples->type);
}

/* The label follows the features in the buffer, aligned for any type. */
static size_t label_offset(const lks_dataset *dataset) {
    enum { ALIGNMENT = 64 };
    return (sample_nbytes(dataset) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *label_in(const lks_dataset *dataset, void *buffer) { return (char *)buffer + label_offset(dataset); }

lks_status lksi_dataset_create_buffer(const lks_dataset *dataset, void **buffer) {
    *buffer = NULL;
    if (dataset->samples->read == NULL) return LKS_OK;
    *buffer = lksi_alloc(label_offset(dataset) + lksi_dataset_label_nbytes(dataset));
    return *buffer != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

/* The caller counts the samples of the whole set, so an error shows that index. A library function that the caller's
 * function called may have left a text, which does not name the sample. */
static lks_status name_sample(const lks_dataset *dataset, int64_t index, lks_status status) {
    return lksi_error(status, "sample %lld of a data set of %lld: %s", (long long)(dataset->begin + index),
                      (long long)dataset->samples->count, lksi_error_text());
}

static lks_status check_label(const lks_dataset *dataset, const void *label) {
    int32_t class;
    if (dataset->n_targets > 0) return LKS_OK;
    memcpy(&class, label, sizeof class);
    if (class >= 0 && class < dataset->n_classes) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "its label is %d, outside 0..%lld", class, (long long)dataset->n_classes - 1);
}

/* The label is -1 before the call. A function that writes none is then found, and does not give the label of the sample
 * before. */
static lks_status call(const lks_dataset *dataset, int64_t index, void *buffer) {
    const lksi_samples *samples = dataset->samples;
    uint64_t n_errors = lksi_n_errors();
    if (dataset->n_targets == 0) memcpy(label_in(dataset, buffer), &(int32_t){-1}, sizeof(int32_t));
    lks_status status = samples->read(samples->context, dataset->begin + index, buffer, label_in(dataset, buffer));
    if (status == LKS_OK) return check_label(dataset, label_in(dataset, buffer));
    return lksi_error_of_user(status, n_errors, "the read function");
}

lks_status lksi_dataset_read(const lks_dataset *dataset, int64_t index, void *buffer, void *label) {
    lks_status status = call(dataset, index, buffer);
    if (status != LKS_OK) return name_sample(dataset, index, status);
    if (label != NULL) memcpy(label, label_in(dataset, buffer), lksi_dataset_label_nbytes(dataset));
    return LKS_OK;
}

/* --- the hash --- */

enum { N_HASHED = 64 };

/* Sample k of those that are hashed: they are spread evenly, and the first and the last are among them. The order of
 * operations avoids overflow. */
static int64_t hashed_index(const lks_dataset *dataset, int64_t k) {
    int64_t last = dataset->count - 1;
    if (dataset->count <= N_HASHED) return k;
    return last / (N_HASHED - 1) * k + last % (N_HASHED - 1) * k / (N_HASHED - 1);
}

static lks_status hash_samples(const lks_dataset *dataset, void *buffer, uint64_t *hash) {
    for (int64_t k = 0; k < N_HASHED && k < dataset->count; k++) {
        LKS_TRY(lksi_dataset_read(dataset, hashed_index(dataset, k), buffer, NULL));
        *hash = lksi_hash_words(*hash, buffer, sample_nbytes(dataset));
        *hash = lksi_hash_words(*hash, label_in(dataset, buffer), lksi_dataset_label_nbytes(dataset));
    }
    return LKS_OK;
}

lks_status lksi_dataset_hash_read(const lks_dataset *dataset, uint64_t *hash) {
    const int64_t sizes[] = {dataset->samples->type, dataset->count, dataset->n_features, dataset->n_classes,
                             dataset->n_targets};
    void *buffer;
    LKS_TRY(lksi_dataset_create_buffer(dataset, &buffer));
    uint64_t mine = lksi_hash_words(LKSI_HASH_START, sizes, sizeof sizes);
    lks_status status = hash_samples(dataset, buffer, &mine);
    if (status == LKS_OK) *hash = mine;
    lksi_free(buffer);
    return status;
}
