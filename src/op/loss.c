/* Losses, and what is counted beside them. */
#include "op/op_internal.h"

static lks_status infer_classification(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0], *label = &q->inputs[1];
    bool fits =
        x->n_dims >= 2 && label->n_dims == x->n_dims - 1 && lksi_type_is_float(x->type) && label->type == LKS_I32;
    for (int i = 0; fits && i < label->n_dims; i++) fits = label->dims[i] == x->dims[i];
    if (!fits) return lksi_misfit(q, "x (...,C) and i32 labels (...)");
    q->outputs[0] = (lksi_tensor){x->type, 0, {0}};
    return LKS_OK;
}

lks_status lksi_infer_loss(const lksi_inference *q) {
    switch (q->op) {
    case LKSI_OP_CROSS_ENTROPY:
        LKS_TRY(infer_classification(q));
        q->outputs[1] = q->inputs[0];
        return LKS_OK;
    case LKSI_OP_CROSS_ENTROPY_GRAD:
        q->outputs[0] = q->inputs[0];
        return LKS_OK;
    case LKSI_OP_COUNT_CORRECT:
        return infer_classification(q);
    default:
        return lksi_error(LKS_ERR_UNSUPPORTED, "%s is not built yet", lksi_op_name(q->op));
    }
}

lks_status lksi_differentiate_loss(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_CROSS_ENTROPY) return lksi_no_gradient(at);
    gradients[0] =
        builder->emit(builder, &(lksi_emission){.op = LKSI_OP_CROSS_ENTROPY_GRAD,
                                                .attributes = at->attributes,
                                                .n_inputs = 3,
                                                .inputs = {at->outputs[1], at->inputs[1], at->output_gradients[0]}});
    return LKS_OK;
}
