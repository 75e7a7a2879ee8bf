/* Weights in safetensors files: Lockstep's, PyTorch's, and those in checkpoints, whose other entries are skipped. */
#include "train/weights.h"

#include "comm/arithmetic/arithmetic.h"

#include <lockstep/train.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b) {
    return strcmp(((const lksi_named_tensor *)a)->name, ((const lksi_named_tensor *)b)->name);
}

void lksi_weights_order(const lks_store *store, lksi_named_tensor *order) {
    int n = lks_store_n_tensors(store);
    for (int i = 0; i < n; i++) order[i] = (lksi_named_tensor){lks_store_parameter(store, i).name, i};
    qsort(order, (size_t)n, sizeof *order, by_name);
}

size_t lksi_weights_largest(const lks_store *store) {
    size_t largest = 0;
    for (int i = 0; i < lks_store_n_tensors(store); i++) {
        size_t offset, count, logical = (size_t)lks_store_parameter(store, i).count;
        lksi_store_place(store, i, &offset, &count);
        if (logical > count) count = logical;
        if (count > largest) largest = count;
    }
    return largest;
}

static bool is_reserved(const char *name) {
    return lksi_begins_with(name, LKSI_OPTIMIZER_PREFIX) || lksi_begins_with(name, LKSI_TRAINER_PREFIX);
}

/* PyTorch stores the number of batches of a batch norm. This library does not use it. */
static bool is_passed_over(const char *name) {
    static const char counter[] = ".num_batches_tracked";
    size_t length = strlen(name), counter_length = sizeof counter - 1;
    return is_reserved(name) || (length >= counter_length && strcmp(name + length - counter_length, counter) == 0);
}

lks_status lksi_weights_check_names(const lks_store *store) {
    for (int i = 0; i < lks_store_n_tensors(store); i++)
        if (is_reserved(lks_store_parameter(store, i).name))
            return lksi_error(LKS_ERR_ARGUMENT, "parameter '%s' has a name that checkpoints need for themselves",
                              lks_store_parameter(store, i).name);
    return LKS_OK;
}

lks_status lksi_weights_check(const lks_store *store, const lksi_safetensors *file) {
    LKS_TRY(lksi_weights_check_names(store));
    for (int i = 0; i < lks_store_n_tensors(store); i++) {
        lks_parameter_view view = lks_store_parameter(store, i);
        const lksi_safetensors_entry *entry = lksi_safetensors_find(file, view.name);
        if (entry == NULL) return lksi_error(LKS_ERR_FORMAT, "%s: it has no entry '%s'", file->path, view.name);
        LKS_TRY(lksi_safetensors_check_shape(file, entry, view.n_dims, view.dims));
        if (!entry->has_type ||
            (entry->type != LKS_F32 && entry->type != LKS_F64 && entry->type != LKS_F16 && entry->type != LKS_BF16))
            return lksi_error(LKS_ERR_FORMAT, "%s: entry '%s' is of %s, not of floating numbers", file->path, view.name,
                              entry->dtype);
    }
    for (size_t i = 0; i < file->n_entries; i++)
        if (lks_store_find(store, file->entries[i].name) < 0 && !is_passed_over(file->entries[i].name))
            return lksi_error(LKS_ERR_FORMAT, "%s: the model has no parameter for entry '%.200s'", file->path,
                              file->entries[i].name);
    return LKS_OK;
}

/* Converts between f32 and f64 in place. The direction of the loop ensures that unread values are not overwritten. */
static void convert(void *values, int64_t count, lks_type from, lks_type to) {
    char *bytes = values;
    float narrow;
    double wide;
    if (from == LKS_F32 && to == LKS_F64)
        for (int64_t i = count - 1; i >= 0; i--) {
            memcpy(&narrow, bytes + i * (int64_t)sizeof narrow, sizeof narrow);
            wide = (double)narrow;
            memcpy(bytes + i * (int64_t)sizeof wide, &wide, sizeof wide);
        }
    if (from == LKS_F64 && to == LKS_F32)
        for (int64_t i = 0; i < count; i++) {
            memcpy(&wide, bytes + i * (int64_t)sizeof wide, sizeof wide);
            narrow = (float)wide;
            memcpy(bytes + i * (int64_t)sizeof narrow, &narrow, sizeof narrow);
        }
}

/* Reads a tensor, row-major, in the store's type. f16 and bf16 are read into the second half of the buffer and
 * converted to f32 in the first half. */
static lks_status read_tensor(const lks_store *store, int index, const lksi_safetensors *file, void *values) {
    lks_parameter_view view = lks_store_parameter(store, index);
    const lksi_safetensors_entry *entry = lksi_safetensors_find(file, view.name);
    lks_type type = entry->type;
    if (entry->element_nbytes == 2) {
        void *halves = (char *)values + (size_t)view.count * sizeof(float);
        LKS_TRY(lksi_safetensors_read(file, entry, halves));
        lksi_contribute(values, halves, 1, (size_t)view.count, type);
        type = LKS_F32;
    } else {
        LKS_TRY(lksi_safetensors_read(file, entry, values));
    }
    convert(values, view.count, type, view.type);
    return LKS_OK;
}

lks_status lksi_weights_open(const lks_store *store, const char *path, lksi_safetensors **file, void **values) {
    *values = lksi_alloc_array(lksi_weights_largest(store), sizeof(double));
    if (*values == NULL) return LKS_ERR_MEMORY;
    LKS_TRY(lksi_safetensors_open(file, path));
    LKS_TRY(lksi_weights_check(store, *file));
    return (*file)->sha256[0] != '\0' ? lksi_safetensors_verify(*file) : LKS_OK;
}

lks_status lksi_weights_take(lks_store *store, const lksi_safetensors *file, void *values) {
    for (int i = 0; i < lks_store_n_tensors(store); i++) {
        LKS_TRY(read_tensor(store, i, file, values));
        LKS_TRY(lks_store_write(store, i, values));
    }
    return LKS_OK;
}

/* --- weights of a store --- */

static lks_status write_all(const lks_store *store, lksi_safetensors_writer *writer, const char *path,
                            const lksi_named_tensor *order, void *values) {
    int n = lks_store_n_tensors(store);
    for (int i = 0; i < n; i++) {
        lks_parameter_view view = lks_store_parameter(store, order[i].index);
        LKS_TRY(lksi_safetensors_declare(writer, view.name, view.type, view.n_dims, view.dims));
    }
    LKS_TRY(lksi_safetensors_begin(writer, path));
    for (int i = 0; i < n; i++) {
        lks_parameter_view view = lks_store_parameter(store, order[i].index);
        LKS_TRY(lks_store_read(store, order[i].index, values));
        LKS_TRY(lksi_safetensors_append(writer, values, (size_t)view.count * lks_type_nbytes(view.type)));
    }
    return lksi_safetensors_finish(writer);
}

lks_status lks_store_save(const lks_store *store, const char *path) {
    lksi_safetensors_writer *writer;
    LKS_TRY(lksi_check_given("store_save", "store", store));
    LKS_TRY(lksi_check_given("store_save", "path", path));
    LKS_TRY(lksi_weights_check_names(store));
    LKS_TRY(lksi_safetensors_writer_create(&writer));
    lks_status status = LKS_ERR_MEMORY;
    lksi_named_tensor *order = lksi_alloc_array((size_t)lks_store_n_tensors(store), sizeof *order);
    void *values = lksi_alloc_array(lksi_weights_largest(store), sizeof(double));
    if (order != NULL && values != NULL) {
        lksi_weights_order(store, order);
        status = write_all(store, writer, path, order, values);
    }
    lksi_free(values);
    lksi_free(order);
    lksi_safetensors_writer_destroy(writer);
    return status;
}

lks_status lks_store_load(lks_store *store, const char *path) {
    lksi_safetensors *file = NULL;
    void *values;
    LKS_TRY(lksi_check_given("store_load", "store", store));
    LKS_TRY(lksi_check_given("store_load", "path", path));
    lks_status status = lksi_weights_open(store, path, &file, &values);
    if (status == LKS_OK) status = lksi_weights_take(store, file, values);
    lksi_safetensors_close(file);
    lksi_free(values);
    return status;
}
