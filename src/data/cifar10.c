/* CIFAR-10: five training files and one test file of 10000 images each, in the binary or the python version. */
#include "data/data_internal.h"

enum { N_TRAIN_FILES = 5, N_RECORDS_PER_FILE = 10000 };

typedef struct version {
    const char *suffix; /* of the file names */
    size_t max_nbytes;  /* of one file */
    lks_status (*parse)(const lksi_file *file, int64_t n_records, uint8_t *pixels, int32_t *labels);
} version;

/* Files of the python version contain a name for every image, which makes them about 1 % larger. */
static const version versions[] = {
    {".bin", (size_t)N_RECORDS_PER_FILE *(1 + LKSI_CIFAR10_N_PIXELS), lksi_cifar10_parse_binary},
    {"", (size_t)2 * N_RECORDS_PER_FILE *LKSI_CIFAR10_N_PIXELS, lksi_cifar10_parse_python},
};

static lks_status make_path(const char *directory, int is_train, int file, const version *v,
                            char path[LKSI_PATH_NBYTES]) {
    return is_train ? lksi_path(path, "%s/data_batch_%d%s", directory, file + 1, v->suffix)
                    : lksi_path(path, "%s/test_batch%s", directory, v->suffix);
}

/* Finds the version of which the directory has at least one of the wanted files. */
static lks_status find_version(const char *directory, int is_train, int n_files, const version **found) {
    char path[LKSI_PATH_NBYTES];
    for (size_t v = 0; v < sizeof versions / sizeof versions[0]; v++)
        for (int file = 0; file < n_files; file++) {
            LKS_TRY(make_path(directory, is_train, file, &versions[v], path));
            if (lksi_file_is_missing(path)) continue;
            *found = &versions[v];
            return LKS_OK;
        }
    return is_train ? lksi_error(LKS_ERR_FILE, "%s: neither data_batch_1.bin nor data_batch_1 is there", directory)
                    : lksi_error(LKS_ERR_FILE, "%s: neither test_batch.bin nor test_batch is there", directory);
}

static lks_status read_batch(const version *v, const char *path, lksi_samples *samples, int64_t first) {
    void *data;
    lksi_file file = {.path = path};
    LKS_TRY(lksi_file_read(path, v->max_nbytes, &data, &file.nbytes));
    file.data = data;
    lks_status status =
        v->parse(&file, N_RECORDS_PER_FILE, samples->bytes + first * LKSI_CIFAR10_N_PIXELS, samples->labels + first);
    lksi_free(data);
    return status;
}

lks_status lks_dataset_cifar10(lks_dataset **dataset, const char *directory, int is_train) {
    LKS_TRY(lksi_check_given("dataset_cifar10", "dataset", dataset));
    char path[LKSI_PATH_NBYTES];
    int n_files = is_train ? N_TRAIN_FILES : 1;
    const version *v = NULL;
    LKS_TRY(lksi_check_directory(directory, "CIFAR-10"));
    LKS_TRY(find_version(directory, is_train, n_files, &v));
    lks_dataset *created;
    LKS_TRY(lksi_dataset_create(&created, LKS_U8, (int64_t)n_files * N_RECORDS_PER_FILE, LKSI_CIFAR10_N_PIXELS,
                                LKSI_CIFAR10_N_CLASSES, 0));
    lksi_dataset_set_image(created, 3, 32, 32);
    for (int file = 0; file < n_files; file++) {
        lks_status status = make_path(directory, is_train, file, v, path);
        if (status == LKS_OK) status = read_batch(v, path, created->samples, (int64_t)file * N_RECORDS_PER_FILE);
        if (status == LKS_OK) continue;
        lks_dataset_destroy(created);
        return status;
    }
    *dataset = created;
    return LKS_OK;
}
