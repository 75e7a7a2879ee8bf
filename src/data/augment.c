/* Draws the changes of an image from Philox. They depend only on seed, epoch and sample, not on ranks or threads. */
#include "data/data_internal.h"

bool lksi_augment_is_on(const lks_augment_options *options) { return options->crop_padding != 0 || options->flip != 0; }

lks_status lksi_augment_check(const lks_augment_options *options, const lks_dataset *dataset) {
    const lksi_image_shape *image = &dataset->image;
    long long padding = (long long)options->crop_padding;
    if (!lksi_augment_is_on(options)) return LKS_OK;
    if (!image->is_image)
        return lksi_error(LKS_ERR_ARGUMENT, "samples of %lld features are not images and cannot be augmented",
                          (long long)dataset->n_features);
    if (padding < 0 || padding > image->height || padding > image->width)
        return lksi_error(LKS_ERR_ARGUMENT, "crop_padding %lld is negative or larger than the images of %lld x %lld",
                          padding, (long long)image->height, (long long)image->width);
    return LKS_OK;
}

lksi_crop lksi_augment_draw(const lksi_augmentation *augmentation, int64_t index) {
    int64_t padding = augmentation->options.crop_padding;
    uint64_t seed = augmentation->seed, draw = (uint64_t)index, n_places = 2 * (uint64_t)padding + 1;
    uint64_t crops = lksi_data_stream(LKSI_FOR_CROPS, augmentation->epoch);
    lksi_crop crop = {0};
    if (padding > 0) {
        crop.down = (int64_t)lksi_random_below(seed, crops, 2 * draw, n_places) - padding;
        crop.right = (int64_t)lksi_random_below(seed, crops, 2 * draw + 1, n_places) - padding;
    }
    if (augmentation->options.flip != 0)
        crop.is_flipped =
            (lksi_random_u32(seed, lksi_data_stream(LKSI_FOR_MIRRORS, augmentation->epoch), draw) & 1) != 0;
    return crop;
}
