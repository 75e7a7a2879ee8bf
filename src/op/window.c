/* Sliding windows over images, shared by convolution and pooling. */
#include "op/op_internal.h"

#include <inttypes.h>

lks_status lksi_check_window_option(const lksi_inference *q, const char *name, int64_t value, int64_t least) {
    if (value >= least && value <= INT32_MAX) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "%s: its %s must be %" PRId64 " to %d, not %" PRId64, lksi_op_name(q->op), name,
                      least, INT32_MAX, value);
}

lks_status lksi_infer_windows(const lksi_inference *q, const int64_t *window) {
    const lksi_attributes *a = q->attributes;
    for (int i = 0; i < 2; i++) {
        int64_t dilation = a->dilation[i] > 0 ? a->dilation[i] : 1, size = q->inputs[0].dims[2 + i];
        LKS_TRY(lksi_check_window_option(q, "window", window[i], 1));
        int64_t room = size + 2 * a->padding[i] - dilation * (window[i] - 1) - 1;
        if (room < 0)
            return lksi_error(LKS_ERR_SHAPE,
                              "%s: a window of %" PRId64 ", dilation %" PRId64 ", does not fit into %s %" PRId64
                              " with padding %" PRId64,
                              lksi_op_name(q->op), window[i], dilation, i == 0 ? "height" : "width", size,
                              a->padding[i]);
        q->outputs[0].dims[2 + i] = room / a->stride[i] + 1;
    }
    return LKS_OK;
}
