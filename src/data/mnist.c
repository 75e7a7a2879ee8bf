/* MNIST and sets of the same format (Fashion-MNIST, KMNIST): images and labels in two IDX files, ten classes. */
#include "data/data_internal.h"

#include <string.h>

enum { N_CLASSES = 10 };
/* Limit on the decompressed size: far above any set of this format, far below what a hostile .gz can claim. */
static const size_t MAX_FILE_NBYTES = (size_t)1 << 30;

static lks_status check_sizes(const lksi_file *images, const lksi_idx *pixels, const lksi_file *labels,
                              const lksi_idx *classes) {
    if (pixels->sizes[0] != classes->count)
        return lksi_error(LKS_ERR_FORMAT, "%s: %lld images, but %s: %lld labels", images->path,
                          (long long)pixels->sizes[0], labels->path, (long long)classes->count);
    if (pixels->sizes[0] == 0) return lksi_error(LKS_ERR_FORMAT, "%s: no images", images->path);
    if (pixels->count == 0)
        return lksi_error(LKS_ERR_FORMAT, "%s: images of %lld rows and %lld columns", images->path,
                          (long long)pixels->sizes[1], (long long)pixels->sizes[2]);
    for (int64_t i = 0; i < classes->count; i++)
        if (classes->data[i] >= N_CLASSES)
            return lksi_error(LKS_ERR_FORMAT, "%s: label %lld is %d, over 9", labels->path, (long long)i,
                              classes->data[i]);
    return LKS_OK;
}

lks_status lksi_mnist_parse(lks_dataset **dataset, const lksi_file *images, const lksi_file *labels) {
    lksi_idx pixels, classes;
    LKS_TRY(lksi_idx_parse(images->path, images->data, images->nbytes, 3, &pixels));
    LKS_TRY(lksi_idx_parse(labels->path, labels->data, labels->nbytes, 1, &classes));
    LKS_TRY(check_sizes(images, &pixels, labels, &classes));
    lks_dataset *created;
    LKS_TRY(lksi_dataset_create(&created, LKS_U8, classes.count, pixels.sizes[1] * pixels.sizes[2], N_CLASSES, 0));
    lksi_dataset_set_image(created, 1, pixels.sizes[1], pixels.sizes[2]);
    memcpy(created->samples->bytes, pixels.data, (size_t)pixels.count);
    for (int64_t i = 0; i < classes.count; i++) created->samples->labels[i] = classes.data[i];
    *dataset = created;
    return LKS_OK;
}

/* Reads DIRECTORY/NAME, or DIRECTORY/NAME.gz if that does not exist. The caller frees *data. */
static lks_status read_either(const char *directory, const char *name, char path[LKSI_PATH_NBYTES], void **data,
                              size_t *nbytes) {
    LKS_TRY(lksi_path(path, "%s/%s.gz", directory, name));
    char *suffix = strrchr(path, '.');
    bool is_gz_there = !lksi_file_is_missing(path);
    *suffix = '\0';
    if (lksi_file_is_missing(path)) {
        if (!is_gz_there) return lksi_error(LKS_ERR_FILE, "%s: no such file, nor %s.gz", path, name);
        *suffix = '.';
    }
    return lksi_file_read(path, MAX_FILE_NBYTES, data, nbytes);
}

lks_status lks_dataset_mnist(lks_dataset **dataset, const char *directory, int is_train) {
    LKS_TRY(lksi_check_given("dataset_mnist", "dataset", dataset));
    char images_path[LKSI_PATH_NBYTES], labels_path[LKSI_PATH_NBYTES];
    void *images_data, *labels_data;
    lksi_file images = {.path = images_path}, labels = {.path = labels_path};
    LKS_TRY(lksi_check_directory(directory, "MNIST"));
    LKS_TRY(read_either(directory, is_train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte", labels_path,
                        &labels_data, &labels.nbytes));
    lks_status status = LKS_OK;
    LKS_TRY_GOTO(read_either(directory, is_train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte", images_path,
                             &images_data, &images.nbytes),
                 free_labels);
    images.data = images_data;
    labels.data = labels_data;
    status = lksi_mnist_parse(dataset, &images, &labels);
    lksi_free(images_data);
free_labels:
    lksi_free(labels_data);
    return status;
}
