/* Augmentation: the result is a crop or mirror image of the sample. The draw depends only on seed, epoch and sample. */
#include "test.h"

#include "data/data_internal.h"

#include <math.h>
#include <string.h>

enum { COUNT = 60, N_CHANNELS = 3, HEIGHT = 6, WIDTH = 9, N_PIXELS = N_CHANNELS * HEIGHT * WIDTH };

static const lks_augment_options crop_and_flip = {.crop_padding = 2, .flip = 1};

/* All pixels of a sample differ, and none is 0, so that a value identifies its position. */
static int value_of(int64_t sample, int pixel) { return 1 + (pixel + (int)sample) % 254; }

static lks_dataset *make_images(lks_type type) {
    lks_dataset *dataset;
    assert_ok(lksi_dataset_create(&dataset, type, COUNT, N_PIXELS, COUNT, 0));
    lksi_dataset_set_image(dataset, N_CHANNELS, HEIGHT, WIDTH);
    for (int64_t i = 0; i < COUNT; i++) {
        dataset->samples->labels[i] = (int32_t)i;
        for (int j = 0; j < N_PIXELS; j++)
            if (type == LKS_U8)
                dataset->samples->bytes[i * N_PIXELS + j] = (uint8_t)value_of(i, j);
            else
                dataset->samples->values[i * N_PIXELS + j] = (float)value_of(i, j) / 255.0f;
    }
    return dataset;
}

static lks_loader *make_loader(lks_dataset *dataset, lks_loader_options options) {
    lks_loader *loader;
    assert_ok(lks_loader_create(&loader, dataset, &options));
    return loader;
}

/* The pixel that a crop shows at (y, x), computed from the definition; 0 outside. */
static int expected_value(int64_t sample, const lksi_crop *crop, int channel, int y, int x) {
    int64_t from_y = y + crop->down, from_x = (crop->is_flipped ? WIDTH - 1 - x : x) + crop->right;
    if (from_y < 0 || from_y >= HEIGHT || from_x < 0 || from_x >= WIDTH) return 0;
    return value_of(sample, (int)((channel * HEIGHT + from_y) * WIDTH + from_x));
}

static void assert_is_crop(const float *features, int64_t sample, const lksi_crop *crop) {
    for (int c = 0; c < N_CHANNELS; c++)
        for (int y = 0; y < HEIGHT; y++)
            for (int x = 0; x < WIDTH; x++) {
                float expected = (float)expected_value(sample, crop, c, y, x) / 255.0f;
                assert_true(features[(c * HEIGHT + y) * WIDTH + x] == expected);
            }
}

/* All possible crops, on every instruction set, of bytes and of floats. */
static void crops_show_what_the_definition_says(void **state) {
    (void)state;
#if defined(__x86_64__)
    const lksi_augment_kernels *kernels[] = {&lksi_augment_base, &lksi_augment_avx2, &lksi_augment_avx512};
#else
    const lksi_augment_kernels *kernels[] = {&lksi_augment_base};
#endif
    const lksi_image_shape image = {N_CHANNELS, HEIGHT, WIDTH, .is_image = true};
    lks_dataset *dataset = make_images(LKS_U8), *values = make_images(LKS_F32);
    uint8_t bytes[N_PIXELS];
    float features[N_PIXELS];
    for (int level = 0; level <= lksi_isa_level(); level++)
        for (int64_t down = -HEIGHT; down <= HEIGHT; down++)
            for (int64_t right = -WIDTH; right <= WIDTH; right++)
                for (int is_flipped = 0; is_flipped < 2; is_flipped++) {
                    const lksi_crop crop = {down, right, is_flipped != 0};
                    kernels[level]->crop(bytes, dataset->samples->bytes + 5 * N_PIXELS, 1, &image, &crop);
                    LKSI_ISA_PICK(lksi_convert)->bytes_to_floats(features, bytes, N_PIXELS, 1, 0);
                    assert_is_crop(features, 5, &crop);
                    kernels[level]->crop(features, values->samples->values + 7 * N_PIXELS, 4, &image, &crop);
                    assert_is_crop(features, 7, &crop);
                }
    lks_dataset_destroy(dataset);
    lks_dataset_destroy(values);
}

/* Runs one epoch of a world. Each sample's features go to its place in `all` (COUNT, N_PIXELS). */
static void collect_epoch(lks_dataset *dataset, int n_ranks, int64_t batch, int n_workers, int64_t epoch, float *all) {
    for (int rank = 0; rank < n_ranks; rank++) {
        lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = batch,
                                                                       .seed = 3,
                                                                       .rank = rank,
                                                                       .n_ranks = n_ranks,
                                                                       .n_workers = n_workers,
                                                                       .augment = crop_and_flip});
        lks_batch part;
        lks_loader_seek(loader, epoch, 0);
        while (lks_loader_next(loader, &part))
            for (int64_t i = 0; i < part.count; i++)
                memcpy(all + part.indices[i] * N_PIXELS, (const float *)part.features + i * N_PIXELS,
                       N_PIXELS * sizeof *all);
        lks_loader_destroy(loader);
    }
}

static void neither_ranks_nor_batches_nor_threads_change_a_sample(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 8}, workers[] = {-1, 1, 3};
    static const int64_t batches[] = {8, 17, COUNT};
    static float expected[2][COUNT * N_PIXELS], found[COUNT * N_PIXELS];
    for (int type = 0; type < 2; type++) {
        lks_dataset *dataset = make_images(type == 0 ? LKS_U8 : LKS_F32);
        for (int epoch = 0; epoch < 2; epoch++) {
            if (type == 0) collect_epoch(dataset, 1, COUNT, -1, epoch, expected[epoch]);
            for (size_t w = 0; w < 4; w++)
                for (size_t b = 0; b < 3; b++)
                    for (size_t k = 0; k < 3; k++) {
                        memset(found, 0, sizeof found);
                        collect_epoch(dataset, worlds[w], batches[b], workers[k], epoch, found);
                        assert_memory_equal(found, expected[epoch], sizeof found);
                    }
        }
        lks_dataset_destroy(dataset);
    }
    assert_memory_not_equal(expected[0], expected[1], sizeof found);
}

static void every_sample_is_the_crop_that_was_drawn_for_it(void **state) {
    (void)state;
    static float all[COUNT * N_PIXELS];
    lks_dataset *dataset = make_images(LKS_U8);
    collect_epoch(dataset, 1, 7, 2, 4, all);
    const lksi_augmentation augmentation = {.options = crop_and_flip, .seed = 3, .epoch = 4};
    for (int64_t i = 0; i < COUNT; i++) {
        lksi_crop crop = lksi_augment_draw(&augmentation, i);
        assert_is_crop(all + i * N_PIXELS, i, &crop);
    }
    lks_dataset_destroy(dataset);
}

/* Checks a count of n draws with probability p to five standard deviations. */
static void assert_count(int count, int n, double p) {
    double expected = n * p, deviation = sqrt(n * p * (1 - p));
    assert_true(fabs(count - expected) < 5 * deviation);
}

static void draws_are_even_and_depend_on_seed_and_epoch(void **state) {
    (void)state;
    enum { N_DRAWS = 50000, N_PLACES = 9 };
    int down[N_PLACES] = {0}, right[N_PLACES] = {0}, n_flipped = 0, n_equal[2] = {0};
    const lks_augment_options options = {.crop_padding = 4, .flip = 1};
    const lksi_augmentation first = {.options = options, .seed = 1, .epoch = 0};
    const lksi_augmentation others[2] = {{.options = options, .seed = 2}, {.options = options, .seed = 1, .epoch = 1}};
    for (int64_t i = 0; i < N_DRAWS; i++) {
        lksi_crop crop = lksi_augment_draw(&first, i);
        assert_in_range(crop.down + 4, 0, N_PLACES - 1);
        assert_in_range(crop.right + 4, 0, N_PLACES - 1);
        down[crop.down + 4]++;
        right[crop.right + 4]++;
        n_flipped += crop.is_flipped;
        for (int k = 0; k < 2; k++) {
            lksi_crop other = lksi_augment_draw(&others[k], i);
            n_equal[k] += crop.down == other.down && crop.right == other.right && crop.is_flipped == other.is_flipped;
        }
    }
    assert_count(n_flipped, N_DRAWS, 0.5);
    for (int place = 0; place < N_PLACES; place++) {
        assert_count(down[place], N_DRAWS, 1.0 / N_PLACES);
        assert_count(right[place], N_DRAWS, 1.0 / N_PLACES);
    }
    for (int k = 0; k < 2; k++) assert_count(n_equal[k], N_DRAWS, 1.0 / (N_PLACES * N_PLACES * 2));
}

static void only_what_was_asked_for_happens(void **state) {
    (void)state;
    for (int64_t i = 0; i < 200; i++) {
        const lksi_augmentation crops = {.options = {.crop_padding = 2}, .seed = 1};
        const lksi_augmentation flips = {.options = {.flip = 1}, .seed = 1};
        lksi_crop crop = lksi_augment_draw(&crops, i), flip = lksi_augment_draw(&flips, i);
        assert_false(crop.is_flipped);
        assert_true(flip.down == 0 && flip.right == 0);
    }
    lks_dataset *dataset = make_images(LKS_U8);
    lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = COUNT, .n_workers = -1});
    const lksi_crop whole = {0};
    lks_batch batch;
    assert_int_equal(lks_loader_next(loader, &batch), 1);
    for (int64_t i = 0; i < COUNT; i++)
        assert_is_crop((const float *)batch.features + i * N_PIXELS, batch.indices[i], &whole);
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
}

/* As in torchvision: the padding is black, and normalised like other black pixels. */
static void padding_is_normalised_like_black_pixels(void **state) {
    (void)state;
    static const double means[] = {0.5, 0.25, 0.125}, deviations[] = {0.25, 0.5, 2};
    lks_dataset *dataset = make_images(LKS_U8);
    assert_ok(lks_dataset_normalize_channels(dataset, means, deviations));
    lks_loader *loader =
        make_loader(dataset, (lks_loader_options){.batch = COUNT, .seed = 3, .augment = crop_and_flip});
    lks_batch batch;
    assert_int_equal(lks_loader_next(loader, &batch), 1);
    const lksi_augmentation augmentation = {.options = crop_and_flip, .seed = 3};
    int n_black = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        lksi_crop crop = lksi_augment_draw(&augmentation, batch.indices[i]);
        const float *features = (const float *)batch.features + i * N_PIXELS;
        for (int j = 0; j < N_PIXELS; j++) {
            int c = j / (HEIGHT * WIDTH),
                value = expected_value(batch.indices[i], &crop, c, j / WIDTH % HEIGHT, j % WIDTH);
            assert_true(fabs(features[j] - (value / 255.0 - means[c]) / deviations[c]) < 1e-6);
            n_black += value == 0;
        }
    }
    assert_true(n_black > COUNT);
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
}

static void channels_have_moments_of_their_own(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        lks_dataset *dataset = make_images(type == 0 ? LKS_U8 : LKS_F32);
        double means[3], deviations[3], expected = 0;
        assert_ok(lks_dataset_channel_moments(dataset, means, deviations));
        for (int64_t i = 0; i < COUNT; i++)
            for (int j = 0; j < HEIGHT * WIDTH; j++) expected += value_of(i, HEIGHT * WIDTH + j) / 255.0;
        assert_true(fabs(means[1] - expected / (COUNT * HEIGHT * WIDTH)) < 1e-6);
        assert_true(means[0] != means[1]);
        deviations[2] = 0;
        assert_int_equal(lks_dataset_normalize_channels(dataset, means, deviations), LKS_ERR_ARGUMENT);
        assert_ok(lks_dataset_channel_moments(dataset, means, deviations));
        assert_ok(lks_dataset_normalize_channels(dataset, means, deviations));
        assert_ok(lks_dataset_channel_moments(dataset, means, deviations));
        for (int c = 0; c < 3; c++) assert_true(fabs(means[c]) < 1e-6 && fabs(deviations[c] - 1) < 1e-6);
        lks_dataset_destroy(dataset);
    }
    lks_dataset *unknown;
    assert_ok(lks_dataset_create(
        &unknown,
        &(lks_dataset_options){
            .features = (float[]){1, NAN}, .labels = (int32_t[]){0, 0}, .count = 2, .n_features = 1, .n_classes = 1}));
    double mean, deviation;
    assert_ok(lks_dataset_moments(unknown, &mean, &deviation));
    assert_true(isnan(mean) && isnan(deviation));
    lks_dataset_destroy(unknown);
}

static void nothing_is_allocated_after_creation(void **state) {
    (void)state;
    lks_dataset *dataset = make_images(LKS_U8);
    for (int n_workers = -1; n_workers <= 2; n_workers++) {
        lks_loader *loader =
            make_loader(dataset, (lks_loader_options){.batch = 10, .n_workers = n_workers, .augment = crop_and_flip});
        int64_t count = lks_memory_allocation_count();
        lks_batch batch;
        for (int i = 0; i < 30; i++) (void)lks_loader_next(loader, &batch);
        assert_int_equal(lks_memory_allocation_count(), count);
        lks_loader_destroy(loader);
    }
    lks_dataset_destroy(dataset);
}

static void what_cannot_be_augmented_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        lks_augment_options options;
        const char *part;
    } cases[] = {{{.crop_padding = -1}, "crop_padding -1 is negative or larger than the images of 6 x 9"},
                 {{.crop_padding = 7, .flip = 1}, "crop_padding 7 is negative or larger than the images of 6 x 9"}};
    lks_dataset *images = make_images(LKS_U8), *others;
    lks_loader *loader = NULL;
    for (size_t i = 0; i < 2; i++) {
        const lks_loader_options options = {.batch = 4, .augment = cases[i].options};
        assert_int_equal(lks_loader_create(&loader, images, &options), LKS_ERR_ARGUMENT);
        if (strstr(lks_error_text(), cases[i].part) == NULL)
            fail_msg("'%s' does not say '%s'", lks_error_text(), cases[i].part);
    }
    assert_ok(lks_dataset_classification(
        &others,
        &(lks_classification_options){.n_samples = 10, .n_features = 8, .n_classes = 2, .clusters_per_class = 2}));
    const lks_loader_options flip = {.batch = 4, .augment = {.flip = 1}};
    assert_int_equal(lks_loader_create(&loader, others, &flip), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "samples of 8 features are not images and cannot be augmented");
    assert_null(loader);
    lks_dataset_destroy(others);
    lks_dataset_destroy(images);
}

static void images_of_one_row_are_images(void **state) {
    (void)state;
    const uint8_t bytes[3] = {0, 51, 255};
    const int32_t label = 0;
    bool is_mirrored = false;
    lks_dataset *dataset;
    lks_batch batch;
    assert_ok(lks_dataset_create(&dataset, &(lks_dataset_options){.features = bytes,
                                                                  .type = LKS_U8,
                                                                  .labels = &label,
                                                                  .count = 1,
                                                                  .n_features = 3,
                                                                  .n_classes = 1,
                                                                  .n_channels = 1,
                                                                  .height = 1,
                                                                  .width = 3}));
    lks_loader *loader = make_loader(dataset, (lks_loader_options){.batch = 1, .augment = {.flip = 1}});
    for (int epoch = 0; epoch < 20; epoch++) {
        assert_int_equal(lks_loader_next(loader, &batch), 1);
        is_mirrored |= ((const float *)batch.features)[0] == 1;
        assert_int_equal(lks_loader_next(loader, &batch), 0);
    }
    assert_true(is_mirrored);
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
}

/* A draw has 16 bits per direction. A refused call does not read the image. */
static void bytes_are_not_cropped_farther_than_a_draw_can_say(void **state) {
    (void)state;
    lks_dataset *dataset;
    lks_loader *loader = NULL;
    lks_loader_options options = {.batch = 1, .n_workers = -1, .gives_bytes = 1, .augment = {.crop_padding = 32768}};
    assert_ok(lksi_dataset_create(&dataset, LKS_U8, 1, 1, 1, 0));
    lksi_dataset_set_image(dataset, 1, 40000, 40000);
    assert_int_equal(lks_loader_create(&loader, dataset, &options), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(),
                        "crop_padding 32768; for samples that are given as bytes it must be at most 32767");
    options.augment.crop_padding = 32767;
    assert_ok(lks_loader_create(&loader, dataset, &options));
    lks_loader_destroy(loader);
    lks_dataset_destroy(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crops_show_what_the_definition_says),
        cmocka_unit_test(neither_ranks_nor_batches_nor_threads_change_a_sample),
        cmocka_unit_test(every_sample_is_the_crop_that_was_drawn_for_it),
        cmocka_unit_test(draws_are_even_and_depend_on_seed_and_epoch),
        cmocka_unit_test(only_what_was_asked_for_happens),
        cmocka_unit_test(padding_is_normalised_like_black_pixels),
        cmocka_unit_test(channels_have_moments_of_their_own),
        cmocka_unit_test(nothing_is_allocated_after_creation),
        cmocka_unit_test(what_cannot_be_augmented_is_refused_by_name),
        cmocka_unit_test(images_of_one_row_are_images),
        cmocka_unit_test(bytes_are_not_cropped_farther_than_a_draw_can_say),
    };
    return run_group(tests);
}
