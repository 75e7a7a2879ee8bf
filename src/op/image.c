/* Images from bytes. */
#include "op/image.h"

#include "op/op_internal.h"

#include <math.h>

lks_status lksi_infer_image(const lksi_inference *q) {
    const lksi_tensor *bytes = &q->inputs[0], *y = &q->outputs[0];
    if (y->n_dims != 4 || y->dims[1] < 1 || y->dims[1] > LKSI_IMAGE_MAX_CHANNELS)
        return lksi_error(LKS_ERR_SHAPE, "%s: %lld channels; 1 to %d are possible", lksi_op_name(q->op),
                          (long long)(y->n_dims == 4 ? y->dims[1] : 0), LKSI_IMAGE_MAX_CHANNELS);
    if (bytes->type != LKS_U8 || bytes->n_dims != 2 || bytes->dims[0] != y->dims[0] ||
        bytes->dims[1] != y->dims[1] * y->dims[2] * y->dims[3] + LKSI_DRAW_NBYTES)
        return lksi_misfit(q, "u8 (N, C H W + 8), as a loader gives samples in bytes");
    for (int64_t c = 0; c < y->dims[1]; c++)
        if (!isfinite(q->attributes->scale[c]) || !isfinite(q->attributes->shift[c]))
            return lksi_error(LKS_ERR_ARGUMENT, "%s: channel %lld in units of %g from %g", lksi_op_name(q->op),
                              (long long)c, 1 / q->attributes->scale[c],
                              -q->attributes->shift[c] / q->attributes->scale[c]);
    return LKS_OK;
}

lks_status lksi_differentiate_image(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    (void)builder;
    (void)gradients;
    return lksi_no_gradient(at);
}
