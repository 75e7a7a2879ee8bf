/* Constructor of the operator that makes images from bytes. */
#include "graph/graph_internal.h"
#include "op/image.h"

#include <lockstep/operators.h>

#include <math.h>
#include <stddef.h>

_Static_assert((int)LKS_DRAW_NBYTES == (int)LKSI_DRAW_NBYTES && offsetof(lks_draw, down) == offsetof(lksi_draw, down) &&
                   offsetof(lks_draw, right) == offsetof(lksi_draw, right) &&
                   offsetof(lks_draw, is_flipped) == offsetof(lksi_draw, is_flipped),
               "as operators.h says");

static lks_status check_sizes(const lks_images_options *options) {
    const int64_t sizes[3] = {options->n_channels, options->height, options->width};
    static const char *const names[3] = {"n_channels", "height", "width"};
    for (int i = 0; i < 3; i++)
        if (sizes[i] < 1)
            return lksi_error(LKS_ERR_ARGUMENT, "images: %s is %lld, not 1 or more", names[i], (long long)sizes[i]);
    if (options->n_channels > LKSI_IMAGE_MAX_CHANNELS)
        return lksi_error(LKS_ERR_ARGUMENT, "images: %lld channels; 1 to %d are possible",
                          (long long)options->n_channels, LKSI_IMAGE_MAX_CHANNELS);
    return LKS_OK;
}

/* Scale and shift of each channel. Formula and checks are those of data/normalize.c. */
static lks_status take_units(const lks_images_options *options, lksi_attributes *attributes) {
    for (int64_t c = 0; c < options->n_channels; c++) {
        double mean = options->means != NULL ? options->means[c] : 0;
        double deviation = options->deviations != NULL ? options->deviations[c] : 1;
        double scale = 1 / deviation, shift = (0 - mean) / deviation;
        if (!(deviation > 0) || isinf(deviation) || !isfinite((float)scale) || !isfinite((float)shift))
            return lksi_error(LKS_ERR_ARGUMENT, "images: channel %lld: mean %g, deviation %g", (long long)c, mean,
                              deviation);
        attributes->scale[c] = scale;
        attributes->shift[c] = shift;
    }
    return LKS_OK;
}

lks_node *lks_images(lks_node *bytes, const lks_images_options *options) {
    static const lks_images_options none;
    if (options == NULL) options = &none;
    if (lksi_node_is_poison(bytes)) return lksi_node_given(bytes, "images");
    lksi_attributes attributes = {0};
    lks_status status = check_sizes(options);
    if (status == LKS_OK) status = take_units(options, &attributes);
    if (status != LKS_OK) return lksi_graph_refuse(&bytes, 1, status);
    lksi_tensor result = {.type = bytes->graph->device->float_type,
                          .n_dims = 4,
                          .dims = {lks_node_dim(bytes, 0), options->n_channels, options->height, options->width}};
    return lksi_graph_operate(LKSI_OP_IMAGES, &attributes, &bytes, 1, &result);
}
