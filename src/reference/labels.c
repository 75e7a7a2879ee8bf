/* Checks of integer inputs: labels of a cross entropy, indices of an embedding. */
#include "reference/reference.h"

#include <inttypes.h>

static lks_status refuse(const lksi_lowering *l, const int32_t *label, int64_t i) {
    int64_t n_classes = lksi_tensor_columns(&l->inputs[0]);
    int64_t n_each = lksi_tensor_count(&l->inputs[1], 0) / l->inputs[1].dims[0];
    if (n_each == 1)
        return lksi_error(LKS_ERR_ARGUMENT, "label %" PRId32 " of sample %" PRId64 " in the batch is not 0 to %" PRId64,
                          label[i], i, n_classes - 1);
    return lksi_error(LKS_ERR_ARGUMENT,
                      "label %" PRId32 " of sample %" PRId64 " in the batch, position %" PRId64
                      ", is not 0 to %" PRId64,
                      label[i], i / n_each, i % n_each, n_classes - 1);
}

lks_status lksi_reference_check_labels(const lksi_lowering *l, const int32_t *label, int64_t *n_counted) {
    int64_t n_classes = lksi_tensor_columns(&l->inputs[0]), n = lksi_tensor_count(&l->inputs[1], 0), n_found = 0;
    for (int64_t i = 0; i < n; i++) {
        if (l->attributes.has_ignored != 0 && label[i] == l->attributes.ignored) continue;
        if (label[i] < 0 || label[i] >= n_classes) return refuse(l, label, i);
        n_found++;
    }
    *n_counted = n_found;
    return LKS_OK;
}

lks_status lksi_reference_check_indices(const int32_t *index, int64_t n, int64_t n_rows) {
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= n_rows)
            return lksi_error(LKS_ERR_ARGUMENT,
                              "embedding: index %" PRId32 " at position %" PRId64 " of the batch is not 0 to %" PRId64,
                              index[i], i, n_rows - 1);
    return LKS_OK;
}
