/* Files in MNIST's IDX format: what is read, and the errors of invalid files. */
#include "data/idx_files.h"

#include "data/data_internal.h"

#include <math.h>

#define IMAGES "train-images-idx3-ubyte"
#define LABELS "train-labels-idx1-ubyte"

static void assert_is_the_set(lks_dataset *dataset) {
    assert_int_equal(lks_dataset_count(dataset), N_IMAGES);
    assert_int_equal(lks_dataset_n_features(dataset), N_PIXELS);
    assert_int_equal(lks_dataset_n_classes(dataset), 10);
    for (int i = 0; i < N_IMAGES; i++) {
        float features[N_PIXELS];
        int32_t label;
        assert_ok(lks_dataset_get(dataset, i, features, &label));
        assert_int_equal(label, 9 - i);
        for (int j = 0; j < N_PIXELS; j++) assert_true(features[j] == (float)pixel_of(i, j) / 255.0f);
    }
}

/* Reading must fail with `status` and a message that contains all given parts. */
static void assert_refused(lks_status status, const char *part1, const char *part2) {
    lks_dataset *dataset;
    assert_int_equal(lks_dataset_mnist(&dataset, directory, 1), status);
    if (strstr(lks_error_text(), part1) == NULL || strstr(lks_error_text(), part2) == NULL)
        fail_msg("'%s' does not name '%s' and '%s'", lks_error_text(), part1, part2);
}

static void write_both(idx_bytes images, idx_bytes labels) {
    write_plain(IMAGES, images);
    write_plain(LABELS, labels);
}

static void plain_files_are_read(void **state) {
    (void)state;
    write_both(image_file(), label_file());
    lks_dataset *dataset;
    assert_ok(lks_dataset_mnist(&dataset, directory, 1));
    assert_is_the_set(dataset);
    float features[N_PIXELS];
    int32_t label;
    assert_int_equal(lks_dataset_get(dataset, N_IMAGES, features, &label), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_dataset_get(dataset, -1, features, &label), LKS_ERR_ARGUMENT);
    lks_dataset_destroy(dataset);
}

static void gz_files_are_read_and_plain_ones_come_first(void **state) {
    (void)state;
    write_gz("t10k-images-idx3-ubyte.gz", image_file());
    write_gz("t10k-labels-idx1-ubyte", label_file()); /* compressed, without the suffix .gz */
    idx_bytes spoilt = label_file();
    spoilt.nbytes = 3;
    write_gz("t10k-labels-idx1-ubyte.gz", spoilt);
    lks_dataset *dataset;
    assert_ok(lks_dataset_mnist(&dataset, directory, 0));
    assert_is_the_set(dataset);
    lks_dataset_destroy(dataset);
}

static void a_missing_directory_and_a_missing_file_are_told_apart(void **state) {
    (void)state;
    lks_dataset *dataset;
    assert_int_equal(lks_dataset_mnist(&dataset, "/nonexistent/mnist", 1), LKS_ERR_FILE);
    assert_string_equal(lks_error_text(),
                        "/nonexistent/mnist: no such directory (`lockstep data get` fetches data sets)");
    assert_int_equal(lks_dataset_mnist(&dataset, "/dev/null", 1), LKS_ERR_FILE);
    assert_string_equal(lks_error_text(), "/dev/null: not a directory");
    assert_int_equal(lks_dataset_mnist(&dataset, NULL, 1), LKS_ERR_ARGUMENT);
    assert_refused(LKS_ERR_FILE, LABELS, "no such file");
    char loop[sizeof directory + 32];
    snprintf(loop, sizeof loop, "%s/%s", directory, LABELS); /* is there, but cannot be opened */
    assert_int_equal(symlink(loop, loop), 0);
    assert_refused(LKS_ERR_FILE, LABELS, "Too many levels of symbolic links");
    unlink(loop);
    write_plain(LABELS, label_file());
    assert_refused(LKS_ERR_FILE, IMAGES, "no such file");
}

static void truncated_and_too_long_files_are_refused(void **state) {
    (void)state;
    write_both(image_file(), label_file());
    cut_file(IMAGES, 75);
    assert_refused(LKS_ERR_FORMAT, IMAGES, "truncated: 75 bytes, 76 expected");
    cut_file(IMAGES, 10);
    assert_refused(LKS_ERR_FORMAT, IMAGES, "truncated: 10 bytes, 16 expected");
    cut_file(IMAGES, 2);
    assert_refused(LKS_ERR_FORMAT, IMAGES, "only 2 bytes");
    cut_file(IMAGES, 0);
    assert_refused(LKS_ERR_FORMAT, IMAGES, "only 0 bytes");
    idx_bytes labels = label_file();
    labels.nbytes++;
    write_both(image_file(), labels);
    assert_refused(LKS_ERR_FORMAT, LABELS, "too long: 14 bytes, 13 expected");
}

static void a_truncated_gz_file_is_refused(void **state) {
    (void)state;
    write_plain(LABELS, label_file());
    write_gz(IMAGES ".gz", image_file());
    cut_file(IMAGES ".gz", 60);
    assert_refused(LKS_ERR_FORMAT, IMAGES ".gz", "truncated gzip");
    cut_file(IMAGES ".gz", 15);
    assert_refused(LKS_ERR_FORMAT, IMAGES ".gz", "truncated gzip");
}

static void what_is_not_idx_is_refused(void **state) {
    (void)state;
    idx_bytes file = image_file();
    memcpy(file.bytes, "PNG!", 4);
    write_both(file, label_file());
    assert_refused(LKS_ERR_FORMAT, IMAGES, "not an IDX file: begins with 50 4e 47 21");
    file = image_file();
    file.bytes[2] = 0x0d;
    write_both(file, label_file());
    assert_refused(LKS_ERR_FORMAT, IMAGES, "type 0x0d, 0x08");
    write_both(label_file(), label_file());
    assert_refused(LKS_ERR_FORMAT, IMAGES, "1 dimensions, 3 expected");
    write_both(image_file(), image_file());
    assert_refused(LKS_ERR_FORMAT, LABELS, "3 dimensions, 1 expected");
}

static void sizes_that_overflow_or_are_zero_are_refused(void **state) {
    (void)state;
    idx_bytes file = image_file();
    memset(file.bytes + 4, 0xff, 12);
    write_both(file, label_file());
    assert_refused(LKS_ERR_FORMAT, IMAGES, "too large");
    memset(file.bytes + 4, 0, 4); /* 0 images of 2^32 - 1 rows and columns */
    file.nbytes = 16;
    idx_bytes labels = label_file();
    labels.bytes[7] = 0;
    labels.nbytes = 8;
    write_both(file, labels);
    assert_refused(LKS_ERR_FORMAT, IMAGES, "no images");
    file = image_file();
    file.bytes[15] = 0;
    file.nbytes = 16;
    write_both(file, label_file());
    assert_refused(LKS_ERR_FORMAT, IMAGES, "3 rows and 0 columns");
}

static void images_and_labels_must_be_equally_many(void **state) {
    (void)state;
    idx_bytes labels = label_file();
    labels.bytes[7]--;
    labels.nbytes--;
    write_both(image_file(), labels);
    assert_refused(LKS_ERR_FORMAT, IMAGES ": 5 images", LABELS ": 4 labels");
}

static void a_label_over_9_is_refused_with_its_index(void **state) {
    (void)state;
    idx_bytes labels = label_file();
    labels.bytes[8 + 3] = 10;
    write_both(image_file(), labels);
    assert_refused(LKS_ERR_FORMAT, LABELS, "label 3 is 10");
}

static void an_allocation_that_fails_leaves_nothing(void **state) {
    (void)state;
    write_gz(IMAGES ".gz", image_file());
    write_plain(LABELS, label_file());
    lks_dataset *dataset = NULL;
    int n_failed = 0;
    for (;; n_failed++) {
        lksi_alloc_fail_after(n_failed + 1);
        if (lks_dataset_mnist(&dataset, directory, 1) == LKS_OK) break;
        assert_int_equal(lks_memory_nbytes(), 0);
        assert_null(dataset);
    }
    lksi_alloc_fail_after(0);
    assert_true(n_failed >= 5);
    assert_is_the_set(dataset);
    lks_dataset_destroy(dataset);
}

#if defined(__x86_64__)
static const lksi_convert_kernels *const kernels[] = {&lksi_convert_base, &lksi_convert_avx2, &lksi_convert_avx512};
#else
static const lksi_convert_kernels *const kernels[] = {&lksi_convert_base};
#endif

static void bytes_become_the_floats_that_division_gives(void **state) {
    (void)state;
    uint8_t bytes[256];
    float values[256];
    for (int i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
    for (int level = 0; level <= lksi_isa_level(); level++) {
        kernels[level]->bytes_to_floats(values, bytes, 256, 1, 0);
        for (int i = 0; i < 256; i++) assert_true(values[i] == (float)i / 255.0f);
    }
}

/* The count is no multiple of a vector. */
static void normalised_floats_have_the_same_bits_on_every_instruction_set(void **state) {
    (void)state;
    enum { N = 1021 };
    static float values[N], found[N];
    const double mean = 1e6 + 1.0 / 3, inverse = 1 / 7.1;
    for (int i = 0; i < N; i++) values[i] = 1e6f + (float)(i % 64) / 16;
    for (int level = 0; level <= lksi_isa_level(); level++) {
        kernels[level]->normalize(found, values, N, mean, inverse);
        for (int i = 0; i < N; i++) assert_true(found[i] == (float)(((double)values[i] - mean) * inverse));
    }
}

static void a_normalised_set_has_mean_0_and_deviation_1(void **state) {
    (void)state;
    write_both(image_file(), label_file());
    double mean, deviation;
    lks_dataset *sets[2]; /* of bytes and of floats */
    assert_ok(lks_dataset_mnist(&sets[0], directory, 1));
    assert_ok(lks_dataset_classification(
        &sets[1], &(lks_classification_options){
                      .n_samples = 100, .n_features = 8, .n_classes = 2, .clusters_per_class = 2, .seed = 1}));
    for (int i = 0; i < 2; i++) {
        assert_ok(lks_dataset_moments(sets[i], &mean, &deviation));
        assert_int_equal(lks_dataset_normalize(sets[i], mean, 0), LKS_ERR_ARGUMENT);
        assert_ok(lks_dataset_normalize(sets[i], mean, deviation));
        assert_ok(lks_dataset_moments(sets[i], &mean, &deviation));
        assert_true(fabs(mean) < 1e-6 && fabs(deviation - 1) < 1e-6);
        lks_dataset_destroy(sets[i]);
    }
}

static void a_slice_shares_memory_and_outlives_its_set(void **state) {
    (void)state;
    write_both(image_file(), label_file());
    lks_dataset *dataset, *slice, *inner;
    assert_ok(lks_dataset_mnist(&dataset, directory, 1));
    assert_int_equal(lks_dataset_slice(&slice, dataset, 1, N_IMAGES + 1), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_dataset_slice(&slice, dataset, -1, 2), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_dataset_slice(&slice, dataset, 3, 2), LKS_ERR_ARGUMENT);
    int64_t held = lks_memory_nbytes();
    assert_ok(lks_dataset_slice(&slice, dataset, 1, 4));
    assert_ok(lks_dataset_slice(&inner, slice, 1, 3));
    assert_true(lks_memory_nbytes() - held == 2 * (int64_t)sizeof(lks_dataset));
    lks_dataset_destroy(dataset);
    lks_dataset_destroy(slice);
    assert_int_equal(lks_dataset_count(inner), 2);
    float features[N_PIXELS];
    int32_t label;
    assert_ok(lks_dataset_get(inner, 1, features, &label));
    assert_int_equal(label, 9 - 3);
    assert_true(features[0] == (float)pixel_of(3, 0) / 255.0f);
    assert_int_equal(lks_dataset_get(inner, 2, features, &label), LKS_ERR_ARGUMENT);
    lks_dataset_destroy(inner);
}

int main(void) {
#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(plain_files_are_read),
        IN_DIRECTORY(gz_files_are_read_and_plain_ones_come_first),
        IN_DIRECTORY(a_missing_directory_and_a_missing_file_are_told_apart),
        IN_DIRECTORY(truncated_and_too_long_files_are_refused),
        IN_DIRECTORY(a_truncated_gz_file_is_refused),
        IN_DIRECTORY(what_is_not_idx_is_refused),
        IN_DIRECTORY(sizes_that_overflow_or_are_zero_are_refused),
        IN_DIRECTORY(images_and_labels_must_be_equally_many),
        IN_DIRECTORY(a_label_over_9_is_refused_with_its_index),
        IN_DIRECTORY(an_allocation_that_fails_leaves_nothing),
        IN_DIRECTORY(a_normalised_set_has_mean_0_and_deviation_1),
        IN_DIRECTORY(a_slice_shares_memory_and_outlives_its_set),
        cmocka_unit_test(bytes_become_the_floats_that_division_gives),
        cmocka_unit_test(normalised_floats_have_the_same_bits_on_every_instruction_set),
    };
    return run_group(tests);
}
