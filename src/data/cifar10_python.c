/* Parser for a batch file of CIFAR-10's python version: a pickled dictionary, of which two entries are used:
 *
 *     'data'     numpy array (10000, 3072) of u1:  _reconstruct(ndarray, (0,), 'b') with the state
 *                                                  (1, (10000, 3072), dtype('u1', 0, 1) with a state, False, bytes)
 *     'labels'   list of 10000 integers
 */
#include "data/data_internal.h"

#include <string.h>

static bool is_string(const lksi_pickle_value *value, const char *text) {
    size_t nbytes = strlen(text);
    return value->kind == LKSI_PICKLE_STRING && value->integer == (int64_t)nbytes &&
           memcmp(value->data, text, nbytes) == 0;
}

static bool is_integer(const lksi_pickle_value *value, int64_t integer) {
    return value->kind == LKSI_PICKLE_INTEGER && value->integer == integer;
}

static lks_status find_entry(const lksi_file *file, const lksi_pickle *pickle, const char *key,
                             const lksi_pickle_value **value) {
    const lksi_pickle_items *entries = lksi_pickle_items_of(pickle, &pickle->root, LKSI_PICKLE_DICT, 0);
    if (entries == NULL) return lksi_error(LKS_ERR_FORMAT, "%s: the pickle is not a dictionary", file->path);
    const lksi_pickle_value *found = NULL;
    for (size_t i = 0; i < entries->count; i += 2) {
        if (!is_string(&entries->items[i], key)) continue;
        if (found != NULL) return lksi_error(LKS_ERR_FORMAT, "%s: two entries '%s'", file->path, key);
        found = &entries->items[i + 1];
    }
    if (found == NULL) return lksi_error(LKS_ERR_FORMAT, "%s: no entry '%s'", file->path, key);
    *value = found;
    return LKS_OK;
}

/* Returns the items of the state of an object that `called` creates, and of its arguments. NULL: it is no such object.
 */
static const lksi_pickle_items *state_of(const lksi_pickle *pickle, const lksi_pickle_value *value,
                                         lksi_pickle_kind called, size_t n_arguments, size_t n_state,
                                         const lksi_pickle_items **arguments) {
    const lksi_pickle_items *object = lksi_pickle_items_of(pickle, value, LKSI_PICKLE_OBJECT, 3);
    if (object == NULL || object->items[0].kind != called) return NULL;
    *arguments = lksi_pickle_items_of(pickle, &object->items[1], LKSI_PICKLE_TUPLE, n_arguments);
    return *arguments != NULL ? lksi_pickle_items_of(pickle, &object->items[2], LKSI_PICKLE_TUPLE, n_state) : NULL;
}

static bool is_u8_type(const lksi_pickle *pickle, const lksi_pickle_value *value) {
    const lksi_pickle_items *arguments;
    return state_of(pickle, value, LKSI_PICKLE_DTYPE, 1, 0, &arguments) != NULL &&
           is_string(&arguments->items[0], "u1");
}

static lks_status copy_pixels(const lksi_file *file, const lksi_pickle *pickle, int64_t n_records, uint8_t *pixels) {
    const lksi_pickle_value *value;
    LKS_TRY(find_entry(file, pickle, "data", &value));
    const lksi_pickle_items *arguments, *state = state_of(pickle, value, LKSI_PICKLE_RECONSTRUCT, 1, 5, &arguments);
    if (state == NULL || arguments->items[0].kind != LKSI_PICKLE_NDARRAY || !is_integer(&state->items[0], 1) ||
        !is_u8_type(pickle, &state->items[2]) || state->items[3].kind != LKSI_PICKLE_FALSE ||
        state->items[4].kind != LKSI_PICKLE_STRING)
        return lksi_error(LKS_ERR_FORMAT, "%s: 'data' is not a row-major numpy array of u1", file->path);
    const lksi_pickle_items *shape = lksi_pickle_items_of(pickle, &state->items[1], LKSI_PICKLE_TUPLE, 2);
    if (shape == NULL || shape->count != 2 || !is_integer(&shape->items[0], n_records) ||
        !is_integer(&shape->items[1], LKSI_CIFAR10_N_PIXELS))
        return lksi_error(LKS_ERR_FORMAT, "%s: 'data' does not have the shape (%lld, %d)", file->path,
                          (long long)n_records, LKSI_CIFAR10_N_PIXELS);
    int64_t nbytes = state->items[4].integer, expected = n_records * LKSI_CIFAR10_N_PIXELS;
    if (nbytes != expected)
        return lksi_error(LKS_ERR_FORMAT, "%s: 'data' has %lld bytes, %lld expected", file->path, (long long)nbytes,
                          (long long)expected);
    memcpy(pixels, state->items[4].data, (size_t)nbytes);
    return LKS_OK;
}

static lks_status copy_labels(const lksi_file *file, const lksi_pickle *pickle, int64_t n_records, int32_t *labels) {
    const lksi_pickle_value *value;
    LKS_TRY(find_entry(file, pickle, "labels", &value));
    const lksi_pickle_items *list = lksi_pickle_items_of(pickle, value, LKSI_PICKLE_LIST, 0);
    if (list == NULL) return lksi_error(LKS_ERR_FORMAT, "%s: 'labels' is not a list", file->path);
    if (list->count != (size_t)n_records)
        return lksi_error(LKS_ERR_FORMAT, "%s: %zu labels, %lld expected", file->path, list->count,
                          (long long)n_records);
    for (size_t i = 0; i < list->count; i++) {
        const lksi_pickle_value *label = &list->items[i];
        if (label->kind != LKSI_PICKLE_INTEGER)
            return lksi_error(LKS_ERR_FORMAT, "%s: record %zu: the label is not an integer", file->path, i);
        if (label->integer < 0 || label->integer >= LKSI_CIFAR10_N_CLASSES)
            return lksi_error(LKS_ERR_FORMAT, "%s: record %zu: label %lld is outside 0..9", file->path, i,
                              (long long)label->integer);
        labels[i] = (int32_t)label->integer;
    }
    return LKS_OK;
}

lks_status lksi_cifar10_parse_python(const lksi_file *file, int64_t n_records, uint8_t *pixels, int32_t *labels) {
    lksi_pickle pickle;
    lks_status status;
    LKS_TRY_GOTO(lksi_pickle_parse(file, &pickle), destroy_pickle);
    LKS_TRY_GOTO(copy_labels(file, &pickle, n_records, labels), destroy_pickle);
    LKS_TRY_GOTO(copy_pixels(file, &pickle, n_records, pixels), destroy_pickle);
destroy_pickle:
    lksi_pickle_destroy(&pickle);
    return status;
}
