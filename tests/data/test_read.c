/* Data sets whose samples a function of the caller reads: the same batches as arrays, and errors of the function. */
#include "ranks.h"

#include "base/base.h"
#include "comm/clock.h"

#include <lockstep/train.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { COUNT = 75, C = 2, H = 3, W = 4, N_FEATURES = C * H * W, N_CLASSES = 5, N_TARGETS = 2 };

/* Samples in arrays, and what the function that copies them shall do wrong. */
typedef struct source {
    lks_type type;
    bool has_targets;
    float values[COUNT * N_FEATURES];
    uint8_t bytes[COUNT * N_FEATURES];
    int32_t labels[COUNT];
    float targets[COUNT * N_TARGETS];
    _Atomic int64_t bad_sample;            /* that cannot be read; -1: none */
    lks_status status;                     /* of the bad sample; LKS_OK: its label is N_CLASSES */
    bool fails_in_library;                 /* the function's error is that of a function of the library */
    atomic_int n_calls, n_calls_elsewhere; /* the second: in other threads than the one that made the source */
    pthread_t thread;
    atomic_bool is_read[COUNT];
} source;

static lks_status read_sample(void *context, int64_t index, void *sample, void *label) {
    source *s = context;
    atomic_fetch_add(&s->n_calls, 1);
    if (!pthread_equal(s->thread, pthread_self())) atomic_fetch_add(&s->n_calls_elsewhere, 1);
    if (index < 0 || index >= COUNT) return LKS_ERR_STATE;
    atomic_store(&s->is_read[index], true);
    bool is_bad = index == atomic_load(&s->bad_sample);
    if (is_bad && s->fails_in_library) return lks_dataset_get(NULL, 0, sample, label);
    if (is_bad && s->status == LKS_ERR_FORMAT) return lks_error_set(s->status, "%d.jpg is not a JPEG", (int)index);
    if (is_bad && s->status != LKS_OK) return s->status;
    if (s->type == LKS_U8)
        memcpy(sample, s->bytes + index * N_FEATURES, N_FEATURES);
    else
        memcpy(sample, s->values + index * N_FEATURES, N_FEATURES * sizeof(float));
    if (s->has_targets)
        memcpy(label, s->targets + index * N_TARGETS, N_TARGETS * sizeof(float));
    else
        memcpy(label, is_bad ? &(int32_t){N_CLASSES} : &s->labels[index], sizeof(int32_t));
    return LKS_OK;
}

static source *create_source(lks_type type, bool has_targets) {
    source *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    s->type = type;
    s->has_targets = has_targets;
    s->thread = pthread_self();
    atomic_store(&s->bad_sample, -1);
    for (int i = 0; i < COUNT; i++) {
        s->labels[i] = i % N_CLASSES;
        for (int j = 0; j < N_TARGETS; j++) s->targets[i * N_TARGETS + j] = (float)i + 0.5f * (float)j;
        for (int j = 0; j < N_FEATURES; j++) {
            s->bytes[i * N_FEATURES + j] = (uint8_t)(i * 7 + j * 3);
            s->values[i * N_FEATURES + j] = (float)i - 0.1f * (float)j;
        }
    }
    return s;
}

static lks_dataset_options options_of(source *s, bool is_read) {
    lks_dataset_options options = {
        .type = s->type, .count = COUNT, .n_features = N_FEATURES, .n_channels = C, .height = H, .width = W};
    if (s->has_targets)
        options.n_targets = N_TARGETS;
    else
        options.n_classes = N_CLASSES;
    if (is_read) {
        options.read = read_sample;
        options.context = s;
        return options;
    }
    options.features = s->type == LKS_U8 ? (void *)s->bytes : s->values;
    if (s->has_targets)
        options.targets = s->targets;
    else
        options.labels = s->labels;
    return options;
}

static lks_dataset *create_set(source *s, bool is_read) {
    lks_dataset *dataset;
    lks_dataset_options options = options_of(s, is_read);
    assert_ok(lks_dataset_create(&dataset, &options));
    return dataset;
}

/* --- the same as arrays --- */

static void assert_same_batch(const lks_batch *a, const lks_batch *b) {
    size_t count = (size_t)a->count, n_each = a->n_targets > 0 ? (size_t)a->n_targets : 1;
    assert_int_equal(b->status, LKS_OK);
    assert_null(b->error);
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->global_count, b->global_count);
    assert_int_equal(a->global_offset, b->global_offset);
    assert_int_equal(a->n_targets, b->n_targets);
    assert_int_equal(a->sample_nbytes, b->sample_nbytes);
    assert_int_equal(a->sample_type, b->sample_type);
    if (count == 0) return;
    assert_memory_equal(a->features, b->features, count * a->sample_nbytes);
    assert_memory_equal(a->indices, b->indices, count * sizeof *a->indices);
    if (a->n_targets > 0)
        assert_memory_equal(a->targets, b->targets, count * n_each * sizeof(float));
    else
        assert_memory_equal(a->labels, b->labels, count * sizeof(int32_t));
}

/* Two epochs. The loader of arrays has no threads. */
static void assert_same_batches(lks_dataset *arrays, lks_dataset *read, lks_loader_options options) {
    lks_loader *a, *b;
    lks_batch from_arrays, from_read;
    int n_workers = options.n_workers;
    options.n_workers = -1;
    assert_ok(lks_loader_create(&a, arrays, &options));
    options.n_workers = n_workers;
    assert_ok(lks_loader_create(&b, read, &options));
    for (int epoch = 0; epoch < 2; epoch++) {
        while (lks_loader_next(a, &from_arrays)) {
            assert_true(lks_loader_next(b, &from_read));
            assert_same_batch(&from_arrays, &from_read);
        }
        assert_false(lks_loader_next(b, &from_read));
    }
    lks_loader_destroy(a);
    lks_loader_destroy(b);
}

static void assert_same_loaders(lks_dataset *arrays, lks_dataset *read, bool can_give_bytes) {
    static const int workers[] = {-1, 0, 1, 3};
    for (int n_ranks = 1; n_ranks <= 3; n_ranks++)
        for (int rank = 0; rank < n_ranks; rank++)
            for (size_t k = 0; k < sizeof workers / sizeof *workers; k++)
                for (int variant = 0; variant < 16; variant++) {
                    lks_loader_options options = {.batch = 10,
                                                  .seed = 3,
                                                  .rank = rank,
                                                  .n_ranks = n_ranks,
                                                  .n_workers = workers[k],
                                                  .no_shuffle = variant & 1,
                                                  .grains = (variant & 2) != 0 && n_ranks < 3 ? 4 : 0,
                                                  .shard = (variant & 2) != 0 ? LKS_SHARD_BATCHES : LKS_SHARD_BLOCKS};
                    if ((variant & 4) != 0) options.augment = (lks_augment_options){.crop_padding = 1, .flip = 1};
                    options.gives_bytes = (variant & 8) != 0;
                    if (options.gives_bytes && !can_give_bytes) continue;
                    assert_same_batches(arrays, read, options);
                }
}

static void assert_same_samples(lks_dataset *arrays, lks_dataset *read, bool can_give_bytes) {
    float features[2][N_FEATURES];
    uint8_t rows[2][N_FEATURES + 64];
    char labels[2][N_TARGETS * sizeof(float)] = {{0}};
    memset(rows, 0, sizeof rows);
    assert_int_equal(lks_dataset_count(arrays), lks_dataset_count(read));
    for (int64_t i = 0; i < lks_dataset_count(arrays); i++) {
        assert_ok(lks_dataset_get(arrays, i, features[0], labels[0]));
        assert_ok(lks_dataset_get(read, i, features[1], labels[1]));
        assert_memory_equal(features[0], features[1], sizeof features[0]);
        assert_memory_equal(labels[0], labels[1], sizeof labels[0]);
        if (!can_give_bytes) continue;
        assert_ok(lks_dataset_get_bytes(arrays, i, rows[0], labels[0]));
        assert_ok(lks_dataset_get_bytes(read, i, rows[1], labels[1]));
        assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
        assert_memory_equal(labels[0], labels[1], sizeof labels[0]);
    }
}

static void normalise_alike(lks_dataset *arrays, lks_dataset *read) {
    double means[2][C], deviations[2][C];
    assert_ok(lks_dataset_moments(arrays, means[0], deviations[0]));
    assert_ok(lks_dataset_moments(read, means[1], deviations[1]));
    assert_true(means[0][0] == means[1][0] && deviations[0][0] == deviations[1][0]);
    assert_ok(lks_dataset_channel_moments(arrays, means[0], deviations[0]));
    assert_ok(lks_dataset_channel_moments(read, means[1], deviations[1]));
    assert_memory_equal(means[0], means[1], sizeof means[0]);
    assert_memory_equal(deviations[0], deviations[1], sizeof deviations[0]);
    assert_ok(lks_dataset_normalize_channels(arrays, means[0], deviations[0]));
    assert_ok(lks_dataset_normalize_channels(read, means[1], deviations[1]));
}

/* As they are, normalised, and slices. */
static void a_read_set_gives_what_arrays_give(void **state) {
    (void)state;
    static const lks_type types[] = {LKS_F32, LKS_U8};
    for (int t = 0; t < 2; t++)
        for (int has_targets = 0; has_targets < 2; has_targets++) {
            bool is_bytes = types[t] == LKS_U8;
            source *s = create_source(types[t], has_targets != 0);
            lks_dataset *arrays = create_set(s, false), *read = create_set(s, true), *slices[2];
            assert_int_equal(lks_dataset_n_targets(read), has_targets ? N_TARGETS : 0);
            assert_int_equal(lks_dataset_n_channels(read), C);
            assert_int_equal(atomic_load(&s->n_calls), 0); /* nothing is read before it is needed */
            assert_same_samples(arrays, read, is_bytes);
            assert_same_loaders(arrays, read, is_bytes);
            normalise_alike(arrays, read);
            assert_ok(lks_dataset_slice(&slices[0], arrays, 11, 60));
            assert_ok(lks_dataset_slice(&slices[1], read, 11, 60));
            assert_same_samples(slices[0], slices[1], is_bytes);
            lks_dataset_destroy(arrays);
            lks_dataset_destroy(read);
            assert_same_loaders(slices[0], slices[1], is_bytes);
            for (int i = 0; i < 2; i++) lks_dataset_destroy(slices[i]);
            free(s);
        }
}

/* A loader allocates everything when it is created. */
static void batches_are_read_without_allocations(void **state) {
    (void)state;
    for (int n_workers = -1; n_workers < 3; n_workers++) {
        source *s = create_source(LKS_U8, false);
        lks_dataset *read = create_set(s, true);
        lks_loader *loader;
        lks_batch batch;
        assert_ok(lks_loader_create(
            &loader, read, &(lks_loader_options){.batch = 10, .n_workers = n_workers, .augment = {.flip = 1}}));
        int64_t before = lks_memory_allocation_count();
        while (lks_loader_next(loader, &batch)) assert_int_equal(batch.status, LKS_OK);
        assert_int_equal(lks_memory_allocation_count(), before);
        lks_loader_destroy(loader);
        lks_dataset_destroy(read);
        free(s);
    }
}

/* By default if a CPU is free, although this function is fast: it is not called for a measurement. */
static void a_thread_reads_ahead_unless_there_shall_be_none(void **state) {
    (void)state;
    for (int n_workers = -1; n_workers < 2; n_workers++) {
        source *s = create_source(LKS_U8, false);
        lks_dataset *read = create_set(s, true);
        lks_loader *loader;
        lks_batch batch;
        assert_ok(lks_loader_create(&loader, read, &(lks_loader_options){.batch = 10, .n_workers = n_workers}));
        while (lks_loader_next(loader, &batch)) assert_int_equal(batch.status, LKS_OK);
        lks_loader_destroy(loader);
        bool is_ahead = n_workers == 1 || (n_workers == 0 && lksi_cpu_count() > 1);
        assert_int_equal(atomic_load(&s->n_calls_elsewhere), is_ahead ? atomic_load(&s->n_calls) : 0);
        lks_dataset_destroy(read);
        free(s);
    }
}

/* --- the hash --- */

static void its_hash_reads_64_samples_from_the_first_to_the_last(void **state) {
    (void)state;
    source *s = create_source(LKS_U8, false);
    lks_dataset *read = create_set(s, true), *again = create_set(s, true), *changed = create_set(s, true), *few;
    uint64_t hash = lks_dataset_hash(read);
    assert_int_equal(atomic_load(&s->n_calls), 64);
    int n_read = 0;
    for (int i = 0; i < COUNT; i++) n_read += atomic_load(&s->is_read[i]);
    assert_int_equal(n_read, 64); /* 64 different ones */
    assert_true(atomic_load(&s->is_read[0]) && atomic_load(&s->is_read[COUNT - 1]));
    assert_true(lks_dataset_hash(read) == hash);
    assert_int_equal(atomic_load(&s->n_calls), 64); /* computed once */
    assert_true(hash != 0 && lks_dataset_hash(again) == hash);
    s->bytes[COUNT * N_FEATURES - 1] ^= 1;
    assert_true(lks_dataset_hash(changed) != hash);
    lks_dataset_destroy(changed);
    s->bytes[COUNT * N_FEATURES - 1] ^= 1;
    s->labels[0]++;
    changed = create_set(s, true);
    assert_true(lks_dataset_hash(changed) != hash);
    atomic_store(&s->n_calls, 0);
    assert_ok(lks_dataset_slice(&few, read, 1, 8));
    assert_true(lks_dataset_hash(few) != hash);
    assert_int_equal(atomic_load(&s->n_calls), 7);
    lks_dataset_destroy(few);
    lks_dataset_destroy(changed);
    lks_dataset_destroy(again);
    lks_dataset_destroy(read);
    free(s);
}

/* --- errors --- */

static const struct {
    lks_status status, expected;
    bool fails_in_library;
    const char *text;
} failures[] = {
    {LKS_ERR_FILE, LKS_ERR_FILE, false,
     "sample 17 of a data set of 75: the read function returned 5 (file cannot be read or written)"},
    {LKS_OK, LKS_ERR_ARGUMENT, false, "sample 17 of a data set of 75: its label is 5, outside 0..4"},
    {LKS_ERR_FORMAT, LKS_ERR_FORMAT, false, "sample 17 of a data set of 75: 17.jpg is not a JPEG"},
    {(lks_status)99, LKS_ERR_STATE, false,
     "sample 17 of a data set of 75: the read function returned 99 (unknown status)"},
    {LKS_ERR_ARGUMENT, LKS_ERR_ARGUMENT, true, "sample 17 of a data set of 75: dataset_get: `dataset` is NULL"},
};
enum { N_FAILURES = sizeof failures / sizeof failures[0], BAD = 17 };

static void break_sample(source *s, int failure) {
    s->status = failures[failure].status;
    s->fails_in_library = failures[failure].fails_in_library;
    atomic_store(&s->bad_sample, BAD);
}

static void assert_fails(lks_status status, int failure) {
    assert_int_equal(status, failures[failure].expected);
    assert_string_equal(lks_error_text(), failures[failure].text);
}

/* All other batches of the epoch come, with their samples. */
static void assert_one_batch_fails(lks_dataset *arrays, lks_dataset *read, int n_workers, int failure) {
    lks_loader *a, *b;
    lks_batch good, batch;
    int n_bad = 0;
    assert_ok(lks_loader_create(&a, arrays, &(lks_loader_options){.batch = 10, .n_workers = -1}));
    assert_ok(lks_loader_create(&b, read, &(lks_loader_options){.batch = 10, .n_workers = n_workers}));
    while (lks_loader_next(a, &good)) {
        assert_true(lks_loader_next(b, &batch));
        bool is_bad = false;
        for (int64_t i = 0; i < good.count; i++) is_bad = is_bad || good.indices[i] == BAD;
        if (!is_bad) {
            assert_same_batch(&good, &batch);
            continue;
        }
        assert_fails(batch.status, failure);
        assert_string_equal(batch.error, failures[failure].text);
        n_bad++;
    }
    assert_false(lks_loader_next(b, &batch));
    assert_int_equal(n_bad, 1);
    lks_loader_destroy(a);
    lks_loader_destroy(b);
}

static void a_sample_that_cannot_be_read_is_named_in_its_batch(void **state) {
    (void)state;
    for (int f = 0; f < N_FAILURES; f++) {
        source *s = create_source(LKS_F32, false);
        break_sample(s, f);
        lks_dataset *arrays = create_set(s, false), *read = create_set(s, true);
        for (int n_workers = -1; n_workers < 4; n_workers++) assert_one_batch_fails(arrays, read, n_workers, f);
        lks_dataset_destroy(arrays);
        lks_dataset_destroy(read);
        free(s);
    }
}

static void what_reads_samples_returns_the_error_of_one(void **state) {
    (void)state;
    for (int f = 0; f < N_FAILURES; f++) {
        source *s = create_source(LKS_U8, false);
        break_sample(s, f);
        lks_dataset *read = create_set(s, true), *slice;
        float features[N_FEATURES] = {-1};
        uint8_t row[N_FEATURES + 64] = {77};
        int32_t label = -1;
        double means[C] = {-1}, deviations[C] = {-1};
        assert_fails(lks_dataset_get(read, BAD, features, &label), f);
        assert_fails(lks_dataset_get_bytes(read, BAD, row, &label), f);
        assert_fails(lks_dataset_moments(read, means, deviations), f);
        assert_fails(lks_dataset_channel_moments(read, means, deviations), f);
        assert_true(features[0] == -1 && row[0] == 77 && label == -1 && means[0] == -1 && deviations[0] == -1);
        assert_ok(lks_dataset_slice(&slice, read, 10, 20)); /* an error shows the index in the whole set */
        assert_int_equal(lks_dataset_hash(slice), 0);
        assert_string_equal(lks_error_text(), failures[f].text);
        lks_loader *loader = NULL;
        assert_fails(lks_loader_create(&loader, slice, &(lks_loader_options){.batch = 2, .n_ranks = 2}), f);
        assert_null(loader);
        atomic_store(&s->bad_sample, -1); /* the error is not kept */
        assert_true(lks_dataset_hash(slice) != 0);
        assert_ok(lks_dataset_get(read, BAD, features, &label));
        assert_int_equal(label, BAD % N_CLASSES);
        lks_dataset_destroy(slice);
        lks_dataset_destroy(read);
        free(s);
    }
}

static void without_memory_nothing_is_left(void **state) {
    (void)state;
    source *s = create_source(LKS_U8, false);
    lks_dataset *read = create_set(s, true);
    float features[N_FEATURES];
    int32_t label;
    lksi_alloc_fail_after(1);
    assert_int_equal(lks_dataset_get(read, 0, features, &label), LKS_ERR_MEMORY);
    lksi_alloc_fail_after(1);
    assert_int_equal(lks_dataset_hash(read), 0);
    double mean, deviation;
    for (int n = 1; n <= 2; n++) {
        lksi_alloc_fail_after(n);
        assert_int_equal(lks_dataset_moments(read, &mean, &deviation), LKS_ERR_MEMORY);
    }
    lksi_alloc_fail_after(0);
    assert_int_equal(atomic_load(&s->n_calls), 0);
    lks_loader *loader = NULL;
    lks_loader_options options = {.batch = 10, .n_ranks = 2, .n_workers = 1, .augment = {.flip = 1}};
    for (int64_t n = 1; loader == NULL; n++) {
        lksi_alloc_fail_after(n);
        lks_status status = lks_loader_create(&loader, read, &options);
        assert_int_equal(status, loader == NULL ? LKS_ERR_MEMORY : LKS_OK);
    }
    lksi_alloc_fail_after(0);
    lks_loader_destroy(loader);
    lks_dataset_destroy(read);
    free(s);
}

static void a_read_function_stands_instead_of_arrays(void **state) {
    (void)state;
    source *s = create_source(LKS_F32, false);
    const struct {
        lks_dataset_options options;
        const char *text;
    } cases[] = {
        {{.features = s->values, .n_classes = 2}, "has a read function and features"},
        {{.labels = s->labels, .n_classes = 2}, "has a read function and labels"},
        {{.targets = s->targets, .n_targets = 2}, "has a read function and targets"},
        {{.is_borrowed = 1, .n_classes = 2}, "has a read function and is_borrowed"},
        {{.n_classes = 0}, "n_classes is 0 and n_targets 0: a data set with a read function has one of them"},
        {{.n_classes = 3, .n_targets = 2}, "n_classes is 3 and n_targets 2"},
        {{.n_targets = -1}, "n_targets of a data set is -1"},
        {{.n_classes = -1}, "n_classes of a data set is -1"},
        {{.n_targets = INT64_MAX}, "1 samples of 9223372036854775807 targets are larger than any memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_dataset *dataset = NULL;
        lks_dataset_options options = cases[i].options;
        options.count = COUNT, options.n_features = N_FEATURES, options.read = read_sample;
        assert_int_equal(lks_dataset_create(&dataset, &options), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), cases[i].text));
        assert_null(dataset);
    }
    free(s);
}

/* A function that writes a label for even samples only. */
static lks_status write_half_of_the_labels(void *context, int64_t index, void *sample, void *label) {
    (void)context;
    memset(sample, 0, N_FEATURES);
    if (index % 2 == 0) memcpy(label, &(int32_t){1}, sizeof(int32_t));
    return LKS_OK;
}

static void a_label_that_is_not_written_is_refused(void **state) {
    (void)state;
    lks_dataset *read;
    float features[N_FEATURES];
    int32_t label;
    lks_loader *loader;
    lks_batch batch;
    assert_ok(lks_dataset_create(&read, &(lks_dataset_options){.type = LKS_U8,
                                                               .count = COUNT,
                                                               .n_features = N_FEATURES,
                                                               .n_classes = N_CLASSES,
                                                               .read = write_half_of_the_labels}));
    assert_ok(lks_dataset_get(read, 2, features, &label));
    assert_int_equal(lks_dataset_get(read, 3, features, &label), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "sample 3 of a data set of 75: its label is -1, outside 0..4");
    assert_ok(lks_loader_create(&loader, read, &(lks_loader_options){.batch = 2, .no_shuffle = 1, .n_workers = 1}));
    assert_true(lks_loader_next(loader, &batch));
    assert_int_equal(batch.status, LKS_ERR_ARGUMENT);
    assert_string_equal(batch.error, "sample 1 of a data set of 75: its label is -1, outside 0..4");
    lks_loader_destroy(loader);
    lks_dataset_destroy(read);
}

/* --- the end of a loader --- */

enum { N_SLOW = 2000 };

typedef enum pace { HELD, SLOW, FAST } pace;

typedef struct slow_source {
    atomic_int n_calls;
    _Atomic pace pace; /* HELD: a call waits for another pace. SLOW: it takes 5 ms, and N_SLOW calls take 10 s. */
} slow_source;

/* Sample i is i. */
static lks_status read_slowly(void *context, int64_t index, void *sample, void *label) {
    slow_source *s = context;
    atomic_fetch_add(&s->n_calls, 1);
    while (atomic_load(&s->pace) == HELD) lksi_doze(1000000);
    if (atomic_load(&s->pace) == SLOW) lksi_doze(5000000);
    memcpy(sample, &(float){(float)index}, sizeof(float));
    memcpy(label, &(int32_t){0}, sizeof(int32_t));
    return LKS_OK;
}

/* A worker is then reading the N_SLOW samples of the first batch. */
static void start_slow(slow_source *s, lks_dataset **dataset, lks_loader **loader) {
    assert_ok(lks_dataset_create(
        dataset,
        &(lks_dataset_options){.count = N_SLOW, .n_features = 1, .n_classes = 1, .read = read_slowly, .context = s}));
    assert_ok(
        lks_loader_create(loader, *dataset, &(lks_loader_options){.batch = N_SLOW, .no_shuffle = 1, .n_workers = 1}));
    while (atomic_load(&s->n_calls) == 0) lksi_doze(1000000);
    atomic_store(&s->pace, SLOW);
}

static void the_end_of_a_loader_does_not_wait_for_a_whole_batch(void **state) {
    (void)state;
    slow_source s = {.pace = HELD};
    lks_dataset *dataset;
    lks_loader *loader;
    start_slow(&s, &dataset, &loader);
    lks_loader_destroy(loader);
    assert_in_range(atomic_load(&s.n_calls), 1, N_SLOW - 1);
    lks_dataset_destroy(dataset);
}

/* The next batch is whole. */
static void a_seek_does_not_wait_for_a_whole_batch(void **state) {
    (void)state;
    slow_source s = {.pace = HELD};
    lks_dataset *dataset;
    lks_loader *loader;
    lks_batch batch;
    start_slow(&s, &dataset, &loader);
    lks_loader_seek(loader, 3, 0);
    assert_in_range(atomic_load(&s.n_calls), 1, N_SLOW - 1);
    atomic_store(&s.pace, FAST);
    assert_true(lks_loader_next(loader, &batch));
    assert_int_equal(batch.status, LKS_OK);
    assert_int_equal(batch.epoch, 3);
    for (int64_t i = 0; i < N_SLOW; i++) assert_true(((const float *)batch.features)[i] == (float)i);
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
}

/* --- ranks --- */

typedef struct model {
    lks_group *group;
    lks_graph *graph;
    source *source;
    lks_dataset *data;
    lks_loader *loader;
    lks_node *x, *y, *logits, *loss;
    lks_trainer *trainer;
} model;

static int create_model(model *m, bool is_read, int n_workers) {
    RANK_OK(lks_init(&m->group, NULL));
    m->source = create_source(LKS_F32, false);
    lks_dataset_options options = options_of(m->source, is_read);
    RANK_OK(lks_dataset_create(&m->data, &options));
    RANK_OK(lks_dataset_normalize(m->data, 37, 20));
    RANK_OK(lks_loader_create(&m->loader, m->data,
                              &(lks_loader_options){.batch = 12,
                                                    .n_workers = n_workers,
                                                    .rank = lks_group_rank(m->group),
                                                    .n_ranks = lks_group_size(m->group)}));
    m->graph = lks_graph_create(lks_device_default(m->group));
    m->x = lks_input(m->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    m->y = lks_input(m->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    m->logits = lks_linear(m->x, N_CLASSES, "fc");
    m->loss = lks_cross_entropy(m->logits, m->y);
    return 0;
}

static int create_trainer(model *m) {
    RANK_OK(lks_trainer_create(&m->trainer, m->loss,
                               &(lks_trainer_options){.group = m->group,
                                                      .logits = m->logits,
                                                      .features = m->x,
                                                      .labels = m->y,
                                                      .optimizer = lks_adam(&(lks_adam_options){.lr = 1e-2})}));
    return 0;
}

static void destroy_model(model *m) {
    lks_trainer_destroy(m->trainer);
    lks_graph_destroy(m->graph);
    lks_loader_destroy(m->loader);
    lks_dataset_destroy(m->data);
    lks_group_destroy(m->group);
    free(m->source);
}

typedef struct result {
    bool is_read;
    char hex[65];
    lks_metrics evaluated;
} result;

static int train(void *argument) {
    result *r = argument;
    model m = {0};
    lks_batch batch;
    lks_metrics evaluated;
    char hex[65];
    RANK_CHECK(create_model(&m, r->is_read, r->is_read ? 2 : -1) == 0 && create_trainer(&m) == 0);
    for (int epoch = 0; epoch < 3; epoch++)
        while (lks_loader_next(m.loader, &batch)) RANK_OK(lks_trainer_step(m.trainer, &batch, NULL));
    RANK_OK(lks_trainer_evaluate(m.trainer, m.data, &evaluated));
    RANK_OK(lks_store_sha256(lks_trainer_store(m.trainer), hex));
    if (lks_group_rank(m.group) == 0) {
        memcpy(r->hex, hex, sizeof hex);
        r->evaluated = evaluated;
    }
    RANK_OK(lks_barrier(m.group, NULL));
    destroy_model(&m);
    return 0;
}

static void training_on_a_read_set_ends_with_the_bits_of_arrays(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++) {
        result arrays = {.is_read = false}, read = {.is_read = true};
        run_ranks(size, train, &arrays);
        run_ranks(size, train, &read);
        assert_string_equal(arrays.hex, read.hex);
        assert_true(arrays.evaluated.loss == read.evaluated.loss);
        assert_int_equal(read.evaluated.n_samples, COUNT);
    }
}

/* A hash, which compares ranks, would read samples again. */
static int evaluate_alone(void *argument) {
    (void)argument;
    model m = {0};
    lks_metrics metrics;
    RANK_CHECK(create_model(&m, true, -1) == 0 && create_trainer(&m) == 0);
    RANK_OK(lks_trainer_evaluate(m.trainer, m.data, &metrics));
    RANK_CHECK(metrics.n_samples == COUNT && atomic_load(&m.source->n_calls) == COUNT);
    destroy_model(&m);
    return 0;
}

static void an_evaluation_on_one_rank_reads_each_sample_once(void **state) {
    (void)state;
    run_ranks(1, evaluate_alone, NULL);
}

/* Sample BAD belongs to each rank in one of so many epochs. */
enum { N_TRIED = 20 };

typedef enum taker { BY_STEP, BY_EVALUATION, BY_OWN_LOOP } taker;

/* `bad_rank` cannot read a sample. */
typedef struct trial {
    int failure, bad_rank, n_workers;
    taker taker;
} trial;

/* The failing rank gets its own error. The others get its text. */
static int check_error(const trial *t, const model *m, lks_status status) {
    if (lks_group_rank(m->group) == t->bad_rank) {
        RANK_CHECK(status == failures[t->failure].expected);
        RANK_CHECK(strcmp(lks_error_text(), failures[t->failure].text) == 0);
        return 0;
    }
    RANK_CHECK(status == LKS_ERR_PEER);
    if (t->taker == BY_OWN_LOOP) return 0; /* the rank has only left */
    RANK_CHECK(strstr(lks_error_text(), failures[t->failure].text) != NULL);
    char who[32];
    snprintf(who, sizeof who, "rank %d gave up: ", t->bad_rank);
    RANK_CHECK(strstr(lks_error_text(), who) != NULL);
    return 0;
}

static lks_status step_until_error(model *m) {
    lks_batch batch;
    for (int epoch = 0; epoch < N_TRIED; epoch++)
        while (lks_loader_next(m->loader, &batch)) {
            lks_status status = lks_trainer_step(m->trainer, &batch, NULL);
            if (status != LKS_OK) return status;
        }
    return LKS_OK;
}

static int fail_in_trainer(void *argument) {
    const trial *t = argument;
    model m = {0};
    lks_metrics metrics;
    lks_dataset *slice; /* not hashed by a loader before */
    RANK_CHECK(create_model(&m, true, t->n_workers) == 0 && create_trainer(&m) == 0);
    RANK_OK(lks_dataset_slice(&slice, m.data, 10, 30));
    RANK_OK(lks_barrier(m.group, NULL));
    bool is_bad = lks_group_rank(m.group) == t->bad_rank;
    if (is_bad) break_sample(m.source, t->failure);
    lks_status status = t->taker == BY_STEP ? step_until_error(&m) : lks_trainer_evaluate(m.trainer, slice, &metrics);
    lks_dataset_destroy(slice);
    int failed = check_error(t, &m, status);
    destroy_model(&m);
    return failed;
}

static void a_trainers_ranks_all_learn_of_a_sample_that_cannot_be_read(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++)
        for (int bad_rank = 0; bad_rank < size; bad_rank++)
            for (int f = 0; f < N_FAILURES; f++)
                for (int n_workers = -1; n_workers < 2; n_workers += 2) {
                    trial t = {.failure = f, .bad_rank = bad_rank, .n_workers = n_workers, .taker = BY_STEP};
                    run_ranks(size, fail_in_trainer, &t);
                }
}

/* All samples are in the first chunk of the evaluation. Rank 0 reads that, and the others read samples for the hash. */
static void an_evaluations_ranks_all_learn_of_a_sample_that_cannot_be_read(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++)
        for (int bad_rank = 0; bad_rank < size; bad_rank++)
            for (int f = 0; f < N_FAILURES; f++) {
                trial t = {.failure = f, .bad_rank = bad_rank, .n_workers = -1, .taker = BY_EVALUATION};
                run_ranks(size, fail_in_trainer, &t);
            }
}

static lks_status own_step(const model *m, lks_distributed_optimizer *optimizer, lks_program *program,
                           const lks_batch *batch) {
    lks_status status = lks_program_set_batch(program, m->x, m->y, batch);
    if (status == LKS_OK) status = lks_program_forward(program);
    if (status == LKS_OK) status = lks_program_backward(program, (double)batch->count);
    lks_step_sums sums = {.n_samples = (double)batch->count};
    return status == LKS_OK ? lks_distributed_optimizer_step(optimizer, &sums, &sums) : status;
}

static int fail_in_own_loop(void *argument) {
    const trial *t = argument;
    enum { LARGEST = 12 };
    model m = {0};
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_program *programs[LARGEST + 1] = {NULL};
    lks_batch batch;
    lks_optimizer sgd = lks_sgd(&(lks_sgd_options){.lr = 1e-2});
    RANK_CHECK(create_model(&m, true, t->n_workers) == 0);
    RANK_OK(lks_store_create(&store, m.loss, NULL));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, m.group, store, &sgd));
    for (int64_t n = 1; n <= LARGEST; n++)
        RANK_OK(lks_program_create(&programs[n], store,
                                   &(lks_program_options){.batch = n, .is_training = 1, .loss = m.loss}));
    RANK_OK(lks_barrier(m.group, NULL));
    if (lks_group_rank(m.group) == t->bad_rank) break_sample(m.source, t->failure);
    lks_status status = LKS_OK;
    for (int epoch = 0; epoch < N_TRIED && status == LKS_OK; epoch++)
        while (status == LKS_OK && lks_loader_next(m.loader, &batch))
            status = own_step(&m, optimizer, programs[batch.count], &batch);
    int failed = check_error(t, &m, status);
    lks_distributed_optimizer_destroy(optimizer);
    for (int n = 0; n <= LARGEST; n++) lks_program_destroy(programs[n]);
    lks_store_destroy(store);
    destroy_model(&m);
    return failed;
}

static void a_loop_of_ones_own_gets_the_error_from_set_batch(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++)
        for (int n_workers = -1; n_workers < 2; n_workers += 2) {
            trial t = {.bad_rank = size - 1, .n_workers = n_workers, .taker = BY_OWN_LOOP};
            run_ranks(size, fail_in_own_loop, &t);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_set_gives_what_arrays_give),
        cmocka_unit_test(batches_are_read_without_allocations),
        cmocka_unit_test(a_thread_reads_ahead_unless_there_shall_be_none),
        cmocka_unit_test(its_hash_reads_64_samples_from_the_first_to_the_last),
        cmocka_unit_test(a_sample_that_cannot_be_read_is_named_in_its_batch),
        cmocka_unit_test(what_reads_samples_returns_the_error_of_one),
        cmocka_unit_test(without_memory_nothing_is_left),
        cmocka_unit_test(a_read_function_stands_instead_of_arrays),
        cmocka_unit_test(a_label_that_is_not_written_is_refused),
        cmocka_unit_test(the_end_of_a_loader_does_not_wait_for_a_whole_batch),
        cmocka_unit_test(a_seek_does_not_wait_for_a_whole_batch),
        cmocka_unit_test(training_on_a_read_set_ends_with_the_bits_of_arrays),
        cmocka_unit_test(an_evaluation_on_one_rank_reads_each_sample_once),
        cmocka_unit_test(a_trainers_ranks_all_learn_of_a_sample_that_cannot_be_read),
        cmocka_unit_test(an_evaluations_ranks_all_learn_of_a_sample_that_cannot_be_read),
        cmocka_unit_test(a_loop_of_ones_own_gets_the_error_from_set_batch),
    };
    return run_group(tests);
}
