/* Shapes of tensors. */
#include "op/op.h"

#include <inttypes.h>

int64_t lksi_tensor_count(const lksi_tensor *tensor, int64_t batch) {
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++) count *= tensor->dims[i] == LKSI_BATCH ? batch : tensor->dims[i];
    return count;
}

int64_t lksi_tensor_columns(const lksi_tensor *tensor) { return tensor->dims[tensor->n_dims - 1]; }
int64_t lksi_tensor_rows(const lksi_tensor *tensor) {
    return lksi_tensor_count(tensor, 0) / lksi_tensor_columns(tensor);
}

size_t lksi_tensor_nbytes(const lksi_tensor *tensor) {
    return (size_t)lksi_tensor_count(tensor, 0) * lks_type_nbytes(tensor->type);
}

lks_status lksi_tensor_check(const lksi_tensor *tensor, int64_t batch, const char *what) {
    int64_t nbytes = (int64_t)lks_type_nbytes(tensor->type);
    for (int i = 0; i < tensor->n_dims; i++) {
        int64_t dim = tensor->dims[i] == LKSI_BATCH ? batch : tensor->dims[i];
        if (dim >= 1 && !__builtin_mul_overflow(nbytes, dim, &nbytes) && nbytes <= INT64_MAX / 16) continue;
        char shape[128];
        lksi_tensor_format(tensor, shape, sizeof shape);
        if (dim < 1)
            return lksi_error(LKS_ERR_SHAPE, "'%s' of shape %s: dimension %d must be at least 1", what, shape, i);
        return lksi_error(LKS_ERR_SHAPE, "'%s' of shape %s is larger than any memory", what, shape);
    }
    return LKS_OK;
}

bool lksi_tensor_equal(const lksi_tensor *a, const lksi_tensor *b) {
    if (a->type != b->type || a->n_dims != b->n_dims) return false;
    for (int i = 0; i < a->n_dims; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

void lksi_row_major_strides(const lksi_tensor *tensor, int64_t *strides) {
    int64_t stride = 1;
    for (int i = tensor->n_dims; i-- > 0;) {
        strides[i] = stride;
        stride *= tensor->dims[i];
    }
}

void lksi_broadcast_strides(const lksi_tensor *narrow, const lksi_tensor *wide, int64_t *strides) {
    int64_t stride = 1;
    int n_missing = wide->n_dims - narrow->n_dims;
    for (int i = wide->n_dims; i-- > 0;) {
        int64_t dim = i < n_missing ? 1 : narrow->dims[i - n_missing];
        strides[i] = dim == 1 ? 0 : stride;
        stride *= dim;
    }
}

lksi_tensor lksi_tensor_without(const lksi_tensor *tensor, int64_t axes) {
    lksi_tensor kept = *tensor;
    for (int i = 0; i < kept.n_dims; i++)
        if ((axes >> i & 1) != 0) kept.dims[i] = 1;
    return kept;
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
