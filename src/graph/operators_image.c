/* Constructor of images from bytes. */
#include "graph/graph_internal.h"
#include "op/image.h"

#include <lockstep/operators.h>

_Static_assert((int)LKS_DRAW_NBYTES == (int)LKSI_DRAW_NBYTES, "as operators.h says");

lks_node *lks_images(lks_node *bytes, const lks_images_options *options) {
    if (lksi_node_is_poison(bytes)) return lksi_node_given(bytes, "images");
    lksi_tensor result = {.type = bytes->graph->device->float_type,
                          .n_dims = 4,
                          .dims = {lks_node_dim(bytes, 0), options->n_channels, options->height, options->width}};
    lksi_attributes attributes = {0};
    for (int64_t c = 0; c < options->n_channels && c < LKSI_IMAGE_MAX_CHANNELS; c++) {
        double mean = options->means != NULL ? options->means[c] : 0;
        double deviation = options->deviations != NULL ? options->deviations[c] : 1;
        attributes.scale[c] = 1 / deviation; /* as data/normalize.c has them */
        attributes.shift[c] = (0 - mean) / deviation;
    }
    return lksi_graph_operate(LKSI_OP_IMAGES, &attributes, &bytes, 1, &result);
}
