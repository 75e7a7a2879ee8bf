/* Sums and means over axes. */
#include "op/op_internal.h"

lks_status lksi_infer_reduce(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0];
    int64_t axes = q->attributes->axes;
    if (!lksi_type_is_float(x->type)) return lksi_misfit(q, "a floating tensor");
    if (axes < 0 || axes >> x->n_dims != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: an axis is not one of the tensor's %d axes", lksi_op_name(q->op),
                          x->n_dims);
    q->outputs[0] = lksi_tensor_without(x, axes);
    if (q->attributes->keep_dims != 0) return LKS_OK;
    q->outputs[0].n_dims = 0;
    for (int i = 0; i < x->n_dims; i++)
        if ((axes >> i & 1) == 0) q->outputs[0].dims[q->outputs[0].n_dims++] = x->dims[i];
    return LKS_OK;
}

lks_status lksi_differentiate_reduce(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    const lksi_tensor *x = &at->input_tensors[0];
    lksi_tensor kept = lksi_tensor_without(x, at->attributes->axes);
    lksi_value dy = lksi_emit1_as(builder, LKSI_OP_RESHAPE, NULL, at->output_gradients[0], &kept);
    if (at->op == LKSI_OP_MEAN)
        dy = lksi_emit_scaled(builder, dy, (double)lksi_tensor_count(&kept, 0) / (double)lksi_tensor_count(x, 0));
    gradients[0] = lksi_emit1_as(builder, LKSI_OP_EXPAND, NULL, dy, x);
    return LKS_OK;
}
