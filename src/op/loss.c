/* Losses, and the count of correct predictions. */
#include "op/op_internal.h"

static lks_status infer_classification(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0], *label = &q->inputs[1];
    double smoothing = q->attributes->smoothing;
    bool fits =
        x->n_dims >= 2 && label->n_dims == x->n_dims - 1 && lksi_type_is_float(x->type) && label->type == LKS_I32;
    for (int i = 0; fits && i < label->n_dims; i++) fits = label->dims[i] == x->dims[i];
    if (!fits) return lksi_misfit(q, "x (...,C) and i32 labels (...)");
    if (!(smoothing >= 0 && smoothing <= 1))
        return lksi_error(LKS_ERR_ARGUMENT, "%s: its label smoothing must be 0 to 1, not %g", lksi_op_name(q->op),
                          smoothing);
    q->outputs[0] = (lksi_tensor){x->type, 0, {0}};
    return LKS_OK;
}

static lks_status infer_regression(const lksi_inference *q) {
    if (!lksi_tensor_equal(&q->inputs[0], &q->inputs[1]) || !lksi_type_is_float(q->inputs[0].type))
        return lksi_misfit(q, "two floating tensors of one shape");
    q->outputs[0] = (lksi_tensor){q->inputs[0].type, 0, {0}};
    return LKS_OK;
}

lks_status lksi_infer_loss(const lksi_inference *q) {
    switch (q->op) {
    case LKSI_OP_CROSS_ENTROPY:
        LKS_TRY(infer_classification(q));
        q->outputs[1] = q->inputs[0];
        return LKS_OK;
    case LKSI_OP_COUNT_CORRECT:
        return infer_classification(q);
    case LKSI_OP_MSE:
    case LKSI_OP_BCE_WITH_LOGITS:
        return infer_regression(q);
    default: /* gradients */
        q->outputs[0] = q->inputs[0];
        return LKS_OK;
    }
}

/* Gradient operator `op` of (a, input 1, dloss). */
static lksi_value gradient(const lksi_op_instance *at, lksi_op_builder *builder, lksi_op op, lksi_value a) {
    return builder->emit(builder, &(lksi_emission){.op = op,
                                                   .attributes = at->attributes,
                                                   .n_inputs = 3,
                                                   .inputs = {a, at->inputs[1], at->output_gradients[0]}});
}

static void differentiate_mse(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value da = gradient(at, builder, LKSI_OP_MSE_GRAD, at->inputs[0]);
    if (at->needs_gradient[0]) gradients[0] = da;
    if (at->needs_gradient[1]) gradients[1] = lksi_emit_scaled(builder, da, -1);
}

/* The gradient with respect to the targets is -x dloss / count. */
static void differentiate_bce(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_attributes minus_mean = {.number = -1.0 / (double)lksi_tensor_count(&at->input_tensors[0], 0)};
    if (at->needs_gradient[0]) gradients[0] = gradient(at, builder, LKSI_OP_BCE_WITH_LOGITS_GRAD, at->inputs[0]);
    if (at->needs_gradient[1])
        gradients[1] = lksi_emit2(builder, LKSI_OP_SCALE, &minus_mean, at->inputs[0], at->output_gradients[0]);
}

lks_status lksi_differentiate_loss(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    switch (at->op) {
    case LKSI_OP_CROSS_ENTROPY:
        gradients[0] = gradient(at, builder, LKSI_OP_CROSS_ENTROPY_GRAD, at->outputs[1]);
        return LKS_OK;
    case LKSI_OP_MSE:
        differentiate_mse(at, builder, gradients);
        return LKS_OK;
    case LKSI_OP_BCE_WITH_LOGITS:
        differentiate_bce(at, builder, gradients);
        return LKS_OK;
    default:
        return lksi_no_gradient(at);
    }
}
