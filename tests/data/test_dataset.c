/* Data sets from samples in the caller's memory. */
#include "test.h"

#include <lockstep/data.h>
#include <lockstep/operators.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { COUNT = 10, C = 2, H = 3, W = 4, N_FEATURES = C * H * W, N_CLASSES = 5 };

static uint8_t byte_of(int64_t sample, int feature) { return (uint8_t)(sample * 20 + feature); }

/* `features` and `labels` are overwritten and out of scope when the data set is used. */
static lks_dataset *make(lks_type type, bool are_images) {
    float values[COUNT * N_FEATURES];
    uint8_t bytes[COUNT * N_FEATURES];
    int32_t labels[COUNT];
    for (int64_t i = 0; i < COUNT; i++) {
        labels[i] = (int32_t)(i % N_CLASSES);
        for (int j = 0; j < N_FEATURES; j++) {
            bytes[i * N_FEATURES + j] = byte_of(i, j);
            values[i * N_FEATURES + j] = (float)byte_of(i, j) / 255.0f;
        }
    }
    lks_dataset *dataset;
    lks_dataset_options options = {.features = type == LKS_U8 ? (void *)bytes : values,
                                   .type = type,
                                   .labels = labels,
                                   .count = COUNT,
                                   .n_features = N_FEATURES,
                                   .n_classes = N_CLASSES};
    if (are_images) options.n_channels = C, options.height = H, options.width = W;
    assert_ok(lks_dataset_create(&dataset, &options));
    memset(bytes, 0xff, sizeof bytes);
    memset(values, 0xff, sizeof values);
    memset(labels, 0xff, sizeof labels);
    return dataset;
}

static void assert_sample(const lks_dataset *dataset, int64_t index, int64_t expected) {
    float features[N_FEATURES];
    int32_t label;
    assert_ok(lks_dataset_get(dataset, index, features, &label));
    assert_int_equal(label, expected % N_CLASSES);
    for (int j = 0; j < N_FEATURES; j++) assert_true(features[j] == (float)byte_of(expected, j) / 255.0f);
}

static void samples_are_copied_and_read_as_they_were_given(void **state) {
    (void)state;
    static const lks_type types[] = {LKS_F32, LKS_U8};
    for (int t = 0; t < 2; t++) {
        lks_dataset *dataset = make(types[t], true), *plain = make(types[t], false), *slice;
        assert_int_equal(lks_dataset_count(dataset), COUNT);
        assert_int_equal(lks_dataset_n_features(dataset), N_FEATURES);
        assert_int_equal(lks_dataset_n_classes(dataset), N_CLASSES);
        assert_int_equal(lks_dataset_n_channels(dataset), C);
        assert_int_equal(lks_dataset_n_channels(plain), 1);
        assert_ok(lks_dataset_slice(&slice, dataset, 3, 7));
        lks_dataset_destroy(dataset); /* the slice keeps the memory alive */
        for (int64_t i = 0; i < COUNT; i++) assert_sample(plain, i, i);
        for (int64_t i = 0; i < 4; i++) assert_sample(slice, i, 3 + i);
        lks_dataset_destroy(slice);
        lks_dataset_destroy(plain);
    }
}

/* A read-only mapping: a write would end the test. */
static void borrowed_samples_are_used_where_they_are(void **state) {
    (void)state;
    static const lks_type types[] = {LKS_F32, LKS_U8};
    enum { NBYTES = COUNT * N_FEATURES * sizeof(float) };
    for (int t = 0; t < 2; t++)
        for (int has_targets = 0; has_targets < 2; has_targets++) {
            void *memory = mmap(NULL, NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            int32_t labels[COUNT] = {0};
            float targets[COUNT] = {0}, features[N_FEATURES];
            assert_true(memory != MAP_FAILED);
            lks_dataset_options options = {.features = memory,
                                           .type = types[t],
                                           .count = COUNT,
                                           .n_features = N_FEATURES,
                                           .n_channels = C,
                                           .height = H,
                                           .width = W,
                                           .is_borrowed = 1};
            if (has_targets)
                options.targets = targets, options.n_targets = 1;
            else
                options.labels = labels, options.n_classes = N_CLASSES;
            int64_t before = lks_memory_nbytes();
            lks_dataset *dataset, *slice;
            assert_ok(lks_dataset_create(&dataset, &options));
            assert_true(lks_memory_nbytes() - before < NBYTES / 2);
            if (types[t] == LKS_U8)
                ((uint8_t *)memory)[8 * N_FEATURES] = 255;
            else
                ((float *)memory)[8 * N_FEATURES] = 1;
            targets[8] = 3, labels[8] = 4;
            assert_true(mprotect(memory, NBYTES, PROT_READ) == 0);
            assert_ok(lks_dataset_normalize(dataset, 0, 2));
            assert_ok(lks_dataset_slice(&slice, dataset, 7, COUNT));
            lks_dataset_destroy(dataset);
            union {
                int32_t label;
                float target;
            } is;
            assert_ok(lks_dataset_get(slice, 1, features, &is));
            assert_true(features[0] == 0.5f && features[1] == 0);
            assert_true(has_targets ? is.target == 3 : is.label == 4);
            assert_true(lks_dataset_hash(slice) != 0);
            lks_dataset_destroy(slice);
            assert_true(munmap(memory, NBYTES) == 0);
        }
}

static void moments_and_normalisation_go_by_the_shape_that_was_given(void **state) {
    (void)state;
    lks_dataset *images = make(LKS_U8, true), *plain = make(LKS_F32, false);
    double means[C], deviations[C], mean, deviation;
    assert_ok(lks_dataset_channel_moments(images, means, deviations));
    assert_true(fabs(means[1] - means[0] - H * W / 255.0) < 1e-6); /* feature j is larger than feature 0 by j */
    assert_ok(lks_dataset_normalize_channels(images, means, deviations));
    assert_ok(lks_dataset_channel_moments(images, means, deviations));
    for (int c = 0; c < C; c++) assert_true(fabs(means[c]) < 1e-6 && fabs(deviations[c] - 1) < 1e-6);
    assert_ok(lks_dataset_moments(plain, &mean, &deviation));
    assert_ok(lks_dataset_normalize(plain, mean, deviation));
    assert_ok(lks_dataset_moments(plain, &mean, &deviation));
    assert_true(fabs(mean) < 1e-6 && fabs(deviation - 1) < 1e-6);
    lks_dataset_destroy(images);
    lks_dataset_destroy(plain);
}

static void its_hash_tells_samples_and_labels_apart(void **state) {
    (void)state;
    static const float features[2][3] = {{1, 2, 3}, {1, 2, 4}};
    static const int32_t labels[2][3] = {{0, 1, 1}, {0, 1, 0}};
    uint64_t hashes[2][2], again = 0;
    for (int i = 0; i < 5; i++) {
        lks_dataset *dataset;
        lks_dataset_options options = {
            .features = features[i / 2 % 2], .labels = labels[i % 2], .count = 3, .n_features = 1, .n_classes = 2};
        assert_ok(lks_dataset_create(&dataset, &options));
        *(i < 4 ? &hashes[i / 2][i % 2] : &again) = lks_dataset_hash(dataset);
        lks_dataset_destroy(dataset);
    }
    assert_true(again == hashes[0][0]);
    assert_true(hashes[0][1] != again && hashes[1][0] != again && hashes[1][1] != again);
}

/* Images with random changes. The labels identify the samples. */
static void loaders_take_it(void **state) {
    (void)state;
    lks_dataset *dataset = make(LKS_U8, true);
    for (int gives_bytes = 0; gives_bytes < 2; gives_bytes++) {
        lks_loader *loader;
        lks_batch batch;
        assert_ok(lks_loader_create(
            &loader, dataset,
            &(lks_loader_options){
                .batch = 4, .gives_bytes = gives_bytes, .augment = {.crop_padding = 1, .flip = 1}, .n_workers = -1}));
        int64_t n_seen = 0;
        while (lks_loader_next(loader, &batch)) {
            assert_int_equal(batch.sample_nbytes,
                             gives_bytes ? N_FEATURES + LKS_DRAW_NBYTES : N_FEATURES * sizeof(float));
            for (int64_t i = 0; i < batch.count; i++, n_seen++)
                assert_int_equal(batch.labels[i], batch.indices[i] % N_CLASSES);
        }
        assert_int_equal(n_seen, COUNT);
        lks_loader_destroy(loader);
    }
    lks_dataset_destroy(dataset);
}

static void moments_are_of_features_whatever_the_targets(void **state) {
    (void)state;
    enum { N_TARGETS = 64 };
    static const float x[4] = {1, 2, 3, 4}, y[4][N_TARGETS] = {{7}};
    lks_dataset *dataset;
    double mean, deviation;
    assert_ok(lks_dataset_create(
        &dataset,
        &(lks_dataset_options){.features = x, .targets = y[0], .count = 4, .n_features = 1, .n_targets = N_TARGETS}));
    assert_ok(lks_dataset_moments(dataset, &mean, &deviation));
    assert_true(mean == 2.5 && deviation == sqrt(1.25));
    lks_dataset_destroy(dataset);
}

static lks_dataset *make_column(const void *features, lks_type type, int64_t count, int64_t n_features) {
    static const int32_t labels[10000];
    lks_dataset *dataset;
    assert_ok(lks_dataset_create(&dataset, &(lks_dataset_options){.features = features,
                                                                  .type = type,
                                                                  .labels = labels,
                                                                  .count = count,
                                                                  .n_features = n_features,
                                                                  .n_classes = 1}));
    return dataset;
}

/* The deviations are denormal in f32. */
static void what_cannot_be_normalised_is_refused_and_nothing_else(void **state) {
    (void)state;
    static const struct {
        double mean, deviation;
    } bad_for_bytes[] = {{-1, 3e-39}, {0, 1e-39}, {1e39, 1}, {0, INFINITY}},
      bad_for_floats[] = {{0, 1e-320}, {0, INFINITY}, {NAN, 1}, {0, NAN}};
    const uint8_t bytes[2] = {0, 255};
    const float floats[2] = {1e-39f, 3e-39f};
    lks_dataset *of_bytes = make_column(bytes, LKS_U8, 2, 1), *of_floats = make_column(floats, LKS_F32, 2, 1);
    float x;
    int32_t label;
    double mean, deviation;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(lks_dataset_normalize(of_bytes, bad_for_bytes[i].mean, bad_for_bytes[i].deviation),
                         LKS_ERR_ARGUMENT);
        assert_int_equal(lks_dataset_normalize(of_floats, bad_for_floats[i].mean, bad_for_floats[i].deviation),
                         LKS_ERR_ARGUMENT);
    }
    assert_int_equal(lks_dataset_normalize(of_bytes, 0, 1e-39), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "mean 0 and deviation 1e-39"));
    assert_ok(lks_dataset_normalize(of_bytes, 0, 3e-39));
    assert_ok(lks_dataset_get(of_bytes, 1, &x, &label));
    assert_true(isfinite(x));
    assert_ok(lks_dataset_moments(of_floats, &mean, &deviation));
    assert_ok(lks_dataset_normalize(of_floats, mean, deviation));
    assert_ok(lks_dataset_get(of_floats, 1, &x, &label));
    assert_true(fabsf(x - 1) < 1e-5f);
    lks_dataset_destroy(of_bytes);
    lks_dataset_destroy(of_floats);
}

static void moments_keep_their_digits_far_from_0(void **state) {
    (void)state;
    enum { N = 10000 };
    static const struct { float mean, deviation; } cases[] = {{0, 1}, {1e6f, 1}, {-1e7f, 1}, {1.6e9f, 128}};
    static float values[N];
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        for (int i = 0; i < N; i++) values[i] = cases[k].mean + (i % 2 == 0 ? 1.0f : -1.0f) * cases[k].deviation;
        lks_dataset *dataset = make_column(values, LKS_F32, N, 1);
        double mean, deviation;
        assert_ok(lks_dataset_moments(dataset, &mean, &deviation));
        assert_true(mean == (double)cases[k].mean && deviation == (double)cases[k].deviation);
        lks_dataset_destroy(dataset);
    }
}

static void assert_constant(const void *features, lks_type type, double expected) {
    lks_dataset *dataset = make_column(features, type, 1000, 10);
    double mean, deviation;
    assert_ok(lks_dataset_moments(dataset, &mean, &deviation));
    assert_true(mean == expected && deviation == 0);
    assert_int_equal(lks_dataset_normalize(dataset, mean, deviation), LKS_ERR_ARGUMENT);
    lks_dataset_destroy(dataset);
}

/* Against sums of the samples as they read. */
static void moments_of_bytes_are_those_of_what_they_read_as(void **state) {
    (void)state;
    enum { COUNT_OF_LONG = 3, PLANE = 70000 };
    uint8_t *bytes = malloc((size_t)COUNT_OF_LONG * C * PLANE);
    static const int32_t labels[COUNT_OF_LONG];
    double expected[C], squares[C], mean, deviation, means[C], deviations[C], all = 0, all_squares = 0;
    for (int c = 0; c < C; c++) {
        expected[c] = squares[c] = 0;
        for (int i = 0; i < COUNT_OF_LONG; i++)
            for (int j = 0; j < PLANE; j++) {
                uint8_t byte = c == 0 ? 255 : (uint8_t)(j % 200 + c * 10 + i);
                bytes[((size_t)i * C + (size_t)c) * PLANE + (size_t)j] = byte;
                double value = (double)((float)byte / 255.0f);
                expected[c] += value, squares[c] += value * value;
            }
        expected[c] /= (double)COUNT_OF_LONG * PLANE, squares[c] /= (double)COUNT_OF_LONG * PLANE;
        all += expected[c] / C, all_squares += squares[c] / C;
    }
    lks_dataset *dataset;
    assert_ok(lks_dataset_create(&dataset, &(lks_dataset_options){.features = bytes,
                                                                  .type = LKS_U8,
                                                                  .labels = labels,
                                                                  .count = COUNT_OF_LONG,
                                                                  .n_features = C * PLANE,
                                                                  .n_channels = C,
                                                                  .height = PLANE,
                                                                  .width = 1,
                                                                  .n_classes = 1}));
    assert_ok(lks_dataset_channel_moments(dataset, means, deviations));
    for (int c = 0; c < C; c++) {
        assert_true(fabs(means[c] - expected[c]) < 1e-10);
        assert_true(fabs(deviations[c] - sqrt(squares[c] - expected[c] * expected[c])) < 1e-6);
    }
    assert_true(deviations[0] == 0);
    assert_ok(lks_dataset_moments(dataset, &mean, &deviation));
    assert_true(fabs(mean - all) < 1e-10);
    assert_true(fabs(deviation - sqrt(all_squares - all * all)) < 1e-10);
    assert_ok(lks_dataset_normalize_channels(dataset, (double[]){0, 0.5}, (double[]){1, 2}));
    assert_ok(lks_dataset_moments(dataset, &mean, &deviation)); /* of channels in units of their own */
    assert_true(fabs(mean - (expected[0] + (expected[1] - 0.5) / 2) / 2) < 1e-6);
    lks_dataset_destroy(dataset);
    free(bytes);
}

static void what_is_constant_has_a_deviation_of_0(void **state) {
    (void)state;
    enum { N = 1000 * 10 };
    static const float constants[] = {1234.567f, 0.1f, -3e30f};
    static float values[N];
    static uint8_t bytes[N];
    for (int byte = 0; byte < 256; byte++) {
        memset(bytes, byte, sizeof bytes);
        assert_constant(bytes, LKS_U8, (double)((float)byte / 255.0f));
    }
    for (size_t k = 0; k < sizeof constants / sizeof constants[0]; k++) {
        for (int i = 0; i < N; i++) values[i] = constants[k];
        assert_constant(values, LKS_F32, (double)constants[k]);
    }
}

static void assert_reads(const lks_dataset *dataset, int64_t index, float expected) {
    float feature;
    int32_t label;
    assert_ok(lks_dataset_get(dataset, index, &feature, &label));
    assert_true(feature == expected);
}

/* Floats of one feature, a few units in the last place apart, are normalised in their own units. Then they are
 * normalised again. */
static void normalised_floats_keep_their_digits_far_from_0(void **state) {
    (void)state;
    static const float pairs[][2] = {{16777216, 16777218}, {1, 1.0000001f}, {100, 100.00001f}};
    for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
        lks_dataset *dataset = make_column(pairs[k], LKS_F32, 2, 1);
        double mean, deviation;
        assert_ok(lks_dataset_moments(dataset, &mean, &deviation));
        assert_ok(lks_dataset_normalize(dataset, mean, deviation));
        for (int i = 0; i < 2; i++) assert_reads(dataset, i, i == 0 ? -1 : 1);
        assert_ok(lks_dataset_normalize(dataset, 1, 2));
        for (int i = 0; i < 2; i++) assert_reads(dataset, i, i == 0 ? -1 : 0);
        lks_dataset_destroy(dataset);
    }
    float row[8];
    for (int i = 0; i < 8; i++) row[i] = 1e6f + (float)i;
    lks_dataset *dataset = make_column(row, LKS_F32, 8, 1);
    assert_ok(lks_dataset_normalize(dataset, 1e6 + 3.5, sqrt(5.25)));
    for (int i = 0; i < 8; i++) assert_reads(dataset, i, (float)((i - 3.5) / sqrt(5.25)));
    lks_dataset_destroy(dataset);
}

/* Features are floats or bytes. A slice, a loader and a single sample give the same targets. */
static void samples_may_have_targets(void **state) {
    (void)state;
    static const float x[4] = {1, 2, 3, 4}, y[4][2] = {{0.5f, -1}, {NAN, 7}, {1e30f, 0}, {-3, 2}};
    static const uint8_t bytes[4] = {1, 2, 3, 4};
    uint64_t hashes[2];
    for (int is_bytes = 0; is_bytes < 2; is_bytes++) {
        lks_dataset *dataset, *slice;
        lks_loader *loader;
        lks_batch batch;
        float features[1], targets[2];
        assert_ok(lks_dataset_create(&dataset, &(lks_dataset_options){.features = is_bytes ? (void *)bytes : (void *)x,
                                                                      .type = is_bytes ? LKS_U8 : LKS_F32,
                                                                      .targets = y[0],
                                                                      .count = 4,
                                                                      .n_features = 1,
                                                                      .n_targets = 2}));
        assert_ok(lks_dataset_slice(&slice, dataset, 1, 4));
        hashes[is_bytes] = lks_dataset_hash(dataset);
        assert_true(lks_dataset_hash(slice) != hashes[is_bytes]);
        lks_dataset_destroy(dataset);
        assert_int_equal(lks_dataset_n_targets(slice), 2);
        assert_int_equal(lks_dataset_n_classes(slice), 0);
        assert_ok(lks_dataset_get(slice, 2, features, targets));
        assert_memory_equal(targets, y[3], sizeof targets);
        assert_ok(lks_loader_create(&loader, slice, &(lks_loader_options){.batch = 2, .gives_bytes = is_bytes}));
        while (lks_loader_next(loader, &batch)) {
            assert_true(batch.n_targets == 2 && batch.labels == NULL && batch.n_labels == batch.count);
            for (int64_t i = 0; i < batch.count; i++)
                assert_memory_equal(batch.targets + 2 * i, y[1 + batch.indices[i]], sizeof y[0]);
        }
        lks_loader_destroy(loader);
        lks_dataset_destroy(slice);
    }
    lks_dataset *other;
    float changed[4][2];
    memcpy(changed, y, sizeof changed);
    changed[3][1] = 3;
    assert_ok(lks_dataset_create(
        &other,
        &(lks_dataset_options){.features = x, .targets = changed[0], .count = 4, .n_features = 1, .n_targets = 2}));
    assert_true(lks_dataset_hash(other) != hashes[0]);
    lks_dataset_destroy(other);
}

static void what_cannot_be_meant_is_refused_by_name(void **state) {
    (void)state;
    static const float x[6];
    static const int32_t y[3] = {0, 1, 2}, high[3] = {0, 1, 3}, low[3] = {0, -1, 2};
    static const struct {
        lks_dataset_options options;
        const char *text;
    } cases[] = {
        {{NULL, LKS_F32, y, 3, 2, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "features are NULL"},
        {{x, LKS_F32, NULL, 3, 2, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "labels and targets are both NULL"},
        {{x, LKS_F32, y, 3, 2, 3, 0, 0, 0, x, 2, 0, NULL, NULL}, "labels and targets"},
        {{x, LKS_F32, y, 3, 2, 3, 0, 0, 0, NULL, 2, 0, NULL, NULL}, "n_targets is 2, but the data set has labels"},
        {{x, LKS_F32, NULL, 3, 2, 3, 0, 0, 0, x, 2, 0, NULL, NULL}, "n_classes is 3, but the data set has targets"},
        {{x, LKS_F32, NULL, 3, 2, 0, 0, 0, 0, x, 0, 0, NULL, NULL}, "n_targets of a data set is 0"},
        {{x, LKS_F32, NULL, 3, 2, 0, 0, 0, 0, x, INT64_MAX, 0, NULL, NULL}, "targets are larger than any memory"},
        {{x, LKS_F32, y, 0, 2, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "count of a data set is 0"},
        {{x, LKS_F32, y, 3, -2, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "n_features of a data set is -2"},
        {{x, LKS_F32, y, 3, 2, 0, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "n_classes of a data set is 0"},
        {{x, LKS_F64, y, 3, 2, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "f32 or u8, not f64"},
        {{x, LKS_F32, high, 3, 2, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "label 2 is 3, outside 0..2"},
        {{x, LKS_F32, low, 3, 2, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "label 1 is -1, outside 0..2"},
        {{x, LKS_F32, y, 3, 2, 3, 1, 2, 2, NULL, 0, 0, NULL, NULL},
         "images of 1 channels, 2 x 2, do not have 2 features"},
        {{x, LKS_F32, y, 3, 2, 3, 1, 2, 0, NULL, 0, 0, NULL, NULL}, "images of 1 channels, 2 x 0, do not"},
        {{x, LKS_F32, y, 3, 2, 3, 1, INT64_MAX, INT64_MAX, NULL, 0, 0, NULL, NULL}, "do not have 2 features"},
        {{x, LKS_F32, y, 3, 2, 3, 0, 1, 2, NULL, 0, 0, NULL, NULL}, "images of 0 channels; the number must be in 1..4"},
        {{x, LKS_F32, y, 3, 5, 3, 5, 1, 1, NULL, 0, 0, NULL, NULL}, "images of 5 channels; the number must be in 1..4"},
        {{x, LKS_F32, y, INT64_MAX, 2, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "larger than any memory"},
        {{x, LKS_U8, y, 3, INT64_MAX, 3, 0, 0, 0, NULL, 0, 0, NULL, NULL}, "larger than any memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_dataset *dataset = NULL;
        assert_int_equal(lks_dataset_create(&dataset, &cases[i].options), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), cases[i].text));
        assert_null(dataset);
    }
    lks_dataset *dataset;
    assert_int_equal(lks_dataset_create(&dataset, NULL), LKS_ERR_ARGUMENT);
}

static void assert_null_is_named(lks_status status, const char *text) {
    assert_int_equal(status, LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), text);
}

static void what_is_not_given_is_named(void **state) {
    (void)state;
    lks_dataset *dataset = make(LKS_U8, true);
    float features[64];
    uint8_t row[64];
    double means[4], deviations[4];
    int32_t label;
    assert_null_is_named(lks_dataset_create(NULL, NULL), "dataset_create: `dataset` is NULL");
    assert_null_is_named(lks_dataset_mnist(NULL, "/nowhere", 1), "dataset_mnist: `dataset` is NULL");
    assert_null_is_named(lks_dataset_cifar10(NULL, "/nowhere", 1), "dataset_cifar10: `dataset` is NULL");
    assert_null_is_named(lks_dataset_get(NULL, 0, features, &label), "dataset_get: `dataset` is NULL");
    assert_null_is_named(lks_dataset_get(dataset, 0, NULL, &label), "dataset_get: `features` is NULL");
    assert_null_is_named(lks_dataset_get(dataset, 0, features, NULL), "dataset_get: `label` is NULL");
    assert_null_is_named(lks_dataset_get_bytes(dataset, 0, NULL, &label), "dataset_get_bytes: `row` is NULL");
    assert_null_is_named(lks_dataset_get_bytes(dataset, 0, row, NULL), "dataset_get_bytes: `label` is NULL");
    assert_null_is_named(lks_dataset_moments(NULL, means, deviations), "dataset_moments: `dataset` is NULL");
    assert_null_is_named(lks_dataset_moments(dataset, NULL, deviations), "dataset_moments: `mean` is NULL");
    assert_null_is_named(lks_dataset_moments(dataset, means, NULL), "dataset_moments: `deviation` is NULL");
    assert_null_is_named(lks_dataset_channel_moments(dataset, NULL, NULL), "dataset_channel_moments: `means` is NULL");
    assert_null_is_named(lks_dataset_normalize(NULL, 0, 1), "dataset_normalize: `dataset` is NULL");
    assert_null_is_named(lks_dataset_normalize_channels(dataset, means, NULL),
                         "dataset_normalize_channels: `deviations` is NULL");
    lks_dataset_destroy(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples_are_copied_and_read_as_they_were_given),
                                       cmocka_unit_test(borrowed_samples_are_used_where_they_are),
                                       cmocka_unit_test(what_cannot_be_normalised_is_refused_and_nothing_else),
                                       cmocka_unit_test(moments_and_normalisation_go_by_the_shape_that_was_given),
                                       cmocka_unit_test(its_hash_tells_samples_and_labels_apart),
                                       cmocka_unit_test(loaders_take_it),
                                       cmocka_unit_test(moments_are_of_features_whatever_the_targets),
                                       cmocka_unit_test(moments_keep_their_digits_far_from_0),
                                       cmocka_unit_test(moments_of_bytes_are_those_of_what_they_read_as),
                                       cmocka_unit_test(what_is_constant_has_a_deviation_of_0),
                                       cmocka_unit_test(normalised_floats_keep_their_digits_far_from_0),
                                       cmocka_unit_test(samples_may_have_targets),
                                       cmocka_unit_test(what_cannot_be_meant_is_refused_by_name),
                                       cmocka_unit_test(what_is_not_given_is_named)};
    return run_group(tests);
}
