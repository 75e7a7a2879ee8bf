/* Data sets, and slices of them that share the samples. */
#include "data/data_internal.h"
#include "data/set_batch.h"

#include <string.h>

static void release_samples(lksi_samples *samples) {
    if (atomic_fetch_sub(&samples->n_holders, 1) > 1) return;
    if (!samples->is_borrowed) {
        lksi_free(samples->bytes);
        lksi_free(samples->values);
        lksi_free(samples->labels);
        lksi_free(samples->targets);
    }
    lks_group_destroy(samples->host);
    lksi_free(samples);
}

/* Without arrays, which the caller fills in. */
static lksi_samples *create_empty(lks_type type, int64_t count) {
    lksi_samples *created = lksi_alloc(sizeof *created);
    if (created == NULL) return NULL;
    atomic_init(&created->n_holders, 1);
    created->type = type;
    created->count = count;
    return created;
}

static lks_status create_samples(lksi_samples **samples, lks_type type, int64_t count, int64_t n_features,
                                 int64_t n_targets) {
    lksi_samples *created = create_empty(type, count);
    if (created == NULL) return LKS_ERR_MEMORY;
    void *elements = lksi_alloc_array((size_t)count, (size_t)n_features * lks_type_nbytes(type));
    if (type == LKS_U8)
        created->bytes = elements;
    else
        created->values = elements;
    if (n_targets > 0)
        created->targets = lksi_alloc_array((size_t)count, (size_t)n_targets * sizeof *created->targets);
    else
        created->labels = lksi_alloc_array((size_t)count, sizeof *created->labels);
    if (elements == NULL || (created->labels == NULL && created->targets == NULL)) {
        release_samples(created);
        return LKS_ERR_MEMORY;
    }
    *samples = created;
    return LKS_OK;
}

/* The data set takes over `samples`, also after an error. */
static lks_status create_from(lks_dataset **dataset, lksi_samples *samples, int64_t count, int64_t n_features,
                              int64_t n_classes, int64_t n_targets) {
    lks_dataset *created = lksi_alloc(sizeof *created);
    if (created == NULL) {
        release_samples(samples);
        return LKS_ERR_MEMORY;
    }
    created->samples = samples;
    created->count = count;
    created->n_features = n_features;
    created->n_classes = n_classes;
    created->n_targets = n_targets;
    lksi_dataset_set_image(created, 1, 1, n_features);
    created->image.is_image = false;
    *dataset = created;
    return LKS_OK;
}

lks_status lksi_dataset_create(lks_dataset **dataset, lks_type type, int64_t count, int64_t n_features,
                               int64_t n_classes, int64_t n_targets) {
    lksi_samples *samples;
    LKS_TRY(create_samples(&samples, type, count, n_features, n_targets));
    return create_from(dataset, samples, count, n_features, n_classes, n_targets);
}

lks_status lksi_dataset_borrow(lks_dataset **dataset, const lks_dataset_options *options) {
    lksi_samples *samples = create_empty(options->type, options->count);
    if (samples == NULL) return LKS_ERR_MEMORY;
    samples->is_borrowed = true;
    void *features = (void *)(uintptr_t)options->features; /* samples are only read */
    if (options->type == LKS_U8)
        samples->bytes = features;
    else
        samples->values = features;
    samples->labels = (int32_t *)(uintptr_t)options->labels;
    samples->targets = (float *)(uintptr_t)options->targets;
    return create_from(dataset, samples, options->count, options->n_features, options->n_classes, options->n_targets);
}

lks_status lksi_dataset_create_read(lks_dataset **dataset, const lks_dataset_options *options) {
    lksi_samples *samples = create_empty(options->type, options->count);
    if (samples == NULL) return LKS_ERR_MEMORY;
    samples->read = options->read;
    samples->context = options->context;
    return create_from(dataset, samples, options->count, options->n_features, options->n_classes, options->n_targets);
}

void lksi_dataset_set_image(lks_dataset *dataset, int64_t n_channels, int64_t height, int64_t width) {
    dataset->image = (lksi_image_shape){n_channels, height, width, .is_image = true};
    for (int c = 0; c < LKSI_MAX_CHANNELS; c++) dataset->units[c] = (lksi_units){.scale = 1, .inverse = 1};
}

lks_status lks_dataset_slice(lks_dataset **slice, lks_dataset *dataset, int64_t begin, int64_t end) {
    LKS_TRY(lksi_check_given("dataset_slice", "slice", slice));
    LKS_TRY(lksi_check_given("dataset_slice", "dataset", dataset));
    if (begin < 0 || end < begin || end > dataset->count)
        return lksi_error(LKS_ERR_ARGUMENT, "slice %lld..%lld is outside a data set of %lld samples", (long long)begin,
                          (long long)end, (long long)dataset->count);
    lks_dataset *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    *created = (lks_dataset){.samples = dataset->samples,
                             .begin = dataset->begin + begin,
                             .count = end - begin,
                             .n_features = dataset->n_features,
                             .n_classes = dataset->n_classes,
                             .n_targets = dataset->n_targets,
                             .image = dataset->image};
    memcpy(created->units, dataset->units, sizeof created->units);
    atomic_fetch_add(&created->samples->n_holders, 1);
    *slice = created;
    return LKS_OK;
}

void lks_dataset_destroy(lks_dataset *dataset) {
    if (dataset == NULL) return;
    release_samples(dataset->samples);
    lksi_free(dataset);
}

int64_t lks_dataset_count(const lks_dataset *dataset) { return dataset != NULL ? dataset->count : 0; }
int64_t lks_dataset_n_features(const lks_dataset *dataset) { return dataset != NULL ? dataset->n_features : 0; }
int64_t lks_dataset_n_channels(const lks_dataset *dataset) { return dataset != NULL ? dataset->image.n_channels : 0; }
int64_t lks_dataset_n_classes(const lks_dataset *dataset) { return dataset != NULL ? dataset->n_classes : 0; }
int64_t lks_dataset_n_targets(const lks_dataset *dataset) { return dataset != NULL ? dataset->n_targets : 0; }

size_t lksi_dataset_label_nbytes(const lks_dataset *dataset) {
    return dataset->n_targets > 0 ? (size_t)dataset->n_targets * sizeof(float) : sizeof(int32_t);
}

static uint64_t hash_word(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29); /* a product alone never carries high bits to lower ones */
}

/* Hashes eight bytes at a time, in four independent chains, because FNV byte by byte would take longer than reading the
 * files. The tail is hashed separately. */
uint64_t lksi_hash_words(uint64_t hash, const void *data, size_t nbytes) {
    enum { N_CHAINS = 4 };
    const unsigned char *bytes = data, *end = bytes + nbytes / (N_CHAINS * sizeof hash) * (N_CHAINS * sizeof hash);
    uint64_t chains[N_CHAINS] = {hash, 1, 2, 3}, words[N_CHAINS];
    for (; bytes < end; bytes += sizeof words) {
        memcpy(words, bytes, sizeof words);
        for (int i = 0; i < N_CHAINS; i++) chains[i] = hash_word(chains[i], words[i]);
    }
    hash = chains[0];
    for (int i = 1; i < N_CHAINS; i++) hash = hash_word(hash, chains[i]);
    return lksi_hash64(hash, bytes, nbytes % sizeof words);
}

static uint64_t hash_arrays(const lks_dataset *dataset) {
    size_t first = (size_t)dataset->begin * (size_t)dataset->n_features;
    size_t n_elements = (size_t)dataset->count * (size_t)dataset->n_features;
    const lksi_samples *samples = dataset->samples;
    uint64_t hash = samples->bytes != NULL ? lksi_hash_words(LKSI_HASH_START, samples->bytes + first, n_elements)
                                           : lksi_hash_words(LKSI_HASH_START, samples->values + first,
                                                             n_elements * sizeof *samples->values);
    const void *labels = dataset->n_targets > 0 ? (void *)(samples->targets + dataset->begin * dataset->n_targets)
                                                : samples->labels + dataset->begin;
    hash = lksi_hash_words(hash, labels, (size_t)dataset->count * lksi_dataset_label_nbytes(dataset));
    return lksi_hash_words(hash, &dataset->n_features, sizeof dataset->n_features);
}

lks_status lksi_dataset_hash(const lks_dataset *dataset, uint64_t *hash) {
    _Atomic uint64_t *known = &((lks_dataset *)(uintptr_t)dataset)->hash;
    *hash = atomic_load_explicit(known, memory_order_relaxed);
    if (*hash != 0) return LKS_OK;
    if (dataset->samples->read != NULL)
        LKS_TRY(lksi_dataset_hash_read(dataset, hash));
    else
        *hash = hash_arrays(dataset);
    atomic_store_explicit(known, *hash, memory_order_relaxed);
    return LKS_OK;
}

uint64_t lks_dataset_hash(const lks_dataset *dataset) {
    uint64_t hash;
    if (lksi_check_given("dataset_hash", "dataset", dataset) != LKS_OK) return 0;
    return lksi_dataset_hash(dataset, &hash) == LKS_OK ? hash : 0;
}

static lks_status check_given(const char *call, const lks_dataset *dataset, const char *name, const void *sample,
                              const void *label) {
    LKS_TRY(lksi_check_given(call, "dataset", dataset));
    LKS_TRY(lksi_check_given(call, name, sample));
    return lksi_check_given(call, "label", label);
}

static lks_status check_index(const lks_dataset *dataset, int64_t index) {
    if (index >= 0 && index < dataset->count) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "sample %lld is outside a data set of %lld samples", (long long)index,
                      (long long)dataset->count);
}

lks_status lks_dataset_get(const lks_dataset *dataset, int64_t index, float *features, void *label) {
    LKS_TRY(check_given("dataset_get", dataset, "features", features, label));
    LKS_TRY(check_index(dataset, index));
    void *buffer;
    LKS_TRY(lksi_dataset_create_buffer(dataset, &buffer));
    lks_status status = lksi_dataset_gather(dataset, NULL, &index, 1, buffer, features, label);
    lksi_free(buffer);
    return status;
}

lks_status lks_dataset_get_bytes(const lks_dataset *dataset, int64_t index, uint8_t *row, void *label) {
    LKS_TRY(check_given("dataset_get_bytes", dataset, "row", row, label));
    LKS_TRY(check_index(dataset, index));
    LKS_TRY(lksi_dataset_check_bytes(dataset));
    void *buffer;
    LKS_TRY(lksi_dataset_create_buffer(dataset, &buffer));
    lks_status status = lksi_dataset_gather_bytes(dataset, NULL, &index, 1, buffer, row, label);
    lksi_free(buffer);
    return status;
}
