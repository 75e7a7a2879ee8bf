/* Images made from bytes. */
#include "op/image.h"

#include "op/op_internal.h"

lks_status lksi_infer_image(const lksi_inference *q) {
    const lksi_tensor *bytes = &q->inputs[0], *y = &q->outputs[0];
    if (bytes->type != LKS_U8 || bytes->n_dims != 2 || bytes->dims[0] != y->dims[0] ||
        bytes->dims[1] != y->dims[1] * y->dims[2] * y->dims[3] + LKSI_DRAW_NBYTES)
        return lksi_misfit(q, "u8 (N, C H W + 8), as a loader gives samples in bytes");
    return LKS_OK;
}

lks_status lksi_differentiate_image(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    (void)builder;
    (void)gradients;
    return lksi_no_gradient(at);
}
