/* libFuzzer target: any two byte strings as the image and label files of an MNIST-like set. Accepted files must be
 * readable up to their last sample. */
#include "data/data_internal.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

static void read_every_sample(const lks_dataset *dataset) {
    float *features = malloc((size_t)lks_dataset_n_features(dataset) * sizeof *features);
    for (int64_t i = 0; features != NULL && i < lks_dataset_count(dataset); i++) {
        int32_t label;
        if (lks_dataset_get(dataset, i, features, &label) != LKS_OK || label < 0 || label > 9) abort();
        for (int64_t j = 0; j < lks_dataset_n_features(dataset); j++)
            if (!(features[j] >= 0 && features[j] <= 1)) abort();
    }
    free(features);
}

/* The first byte is the length of the label file. The image file is the rest. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes == 0) return 0;
    size_t labels_nbytes = data[0] < nbytes ? data[0] : nbytes - 1;
    const lksi_file labels = {.path = "labels", .data = data + 1, .nbytes = labels_nbytes};
    const lksi_file images = {.path = "images", .data = data + 1 + labels_nbytes, .nbytes = nbytes - 1 - labels_nbytes};
    lks_dataset *dataset;
    if (lksi_mnist_parse(&dataset, &images, &labels) == LKS_OK) {
        read_every_sample(dataset);
        lks_dataset_destroy(dataset);
    }
    if (lks_memory_nbytes() != 0) abort();
    return 0;
}
