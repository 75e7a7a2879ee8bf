/* Shapes. */
#include "op/op.h"

#include <inttypes.h>

int64_t lksi_tensor_count(const lksi_tensor *tensor, int64_t batch) {
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++) count *= tensor->dims[i] == LKSI_BATCH ? batch : tensor->dims[i];
    return count;
}

size_t lksi_tensor_nbytes(const lksi_tensor *tensor) {
    return (size_t)lksi_tensor_count(tensor, 0) * lks_type_nbytes(tensor->type);
}

bool lksi_tensor_equal(const lksi_tensor *a, const lksi_tensor *b) {
    if (a->type != b->type || a->n_dims != b->n_dims) return false;
    for (int i = 0; i < a->n_dims; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

void lksi_tensor_format(const lksi_tensor *tensor, char *text, size_t nbytes) {
    int used = snprintf(text, nbytes, "%s (", lks_type_name(tensor->type));
    for (int i = 0; i < tensor->n_dims && (size_t)used < nbytes; i++) {
        const char *comma = i == 0 ? "" : ", ";
        if (tensor->dims[i] == LKSI_BATCH)
            used += snprintf(text + used, nbytes - (size_t)used, "%sN", comma);
        else
            used += snprintf(text + used, nbytes - (size_t)used, "%s%" PRId64, comma, tensor->dims[i]);
    }
    if ((size_t)used < nbytes) snprintf(text + used, nbytes - (size_t)used, ")");
}
