/* Operators on two tensors, element by element. */
#include "op/op_internal.h"

lks_status lksi_infer_binary(const lksi_inference *q) {
    if (q->op != LKSI_OP_ADD) return lksi_error(LKS_ERR_UNSUPPORTED, "%s is not built yet", lksi_op_name(q->op));
    if (!lksi_tensor_equal(&q->inputs[0], &q->inputs[1]) || !lksi_type_is_float(q->inputs[0].type))
        return lksi_misfit(q, "two floating tensors of one shape");
    q->outputs[0] = q->inputs[0];
    return LKS_OK;
}

lks_status lksi_differentiate_binary(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    (void)builder;
    if (at->op != LKSI_OP_ADD) return lksi_no_gradient(at);
    for (int i = 0; i < 2; i++)
        if (at->needs_gradient[i]) gradients[i] = at->output_gradients[0];
    return LKS_OK;
}
