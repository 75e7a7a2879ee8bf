/* Operators that map each element by itself. */
#include "op/op_internal.h"

#include <math.h>

bool lksi_op_is_epilogue(lksi_op op) { return op == LKSI_OP_RELU || op == LKSI_OP_TANH || op == LKSI_OP_SIGMOID; }

lks_status lksi_infer_elementwise(const lksi_inference *q) {
    const lksi_attributes *a = q->attributes;
    if (!lksi_type_is_float(q->inputs[0].type)) return lksi_misfit(q, "a floating tensor");
    if (q->op == LKSI_OP_LEAKY_RELU && !(a->slope > 0 && isfinite(a->slope)))
        return lksi_error(LKS_ERR_ARGUMENT, "leaky_relu: its slope must be above 0, not %g", a->slope);
    if (q->op == LKSI_OP_SCALE && !isfinite(a->factor))
        return lksi_error(LKS_ERR_ARGUMENT, "scale: its factor is %g", a->factor);
    if (q->op == LKSI_OP_SCALE && q->n_inputs == 2 && q->inputs[1].n_dims != 0)
        return lksi_misfit(q, "a tensor and a scalar");
    q->outputs[0] = q->inputs[0];
    return LKS_OK;
}

/* dx by `op` of dy and of `kept`: y where that serves, else x. */
static lks_status differentiate_by(lksi_op op, lksi_value kept, const lksi_op_instance *at, lksi_op_builder *builder,
                                   lksi_value *gradients) {
    gradients[0] = lksi_emit2(builder, op, at->attributes, kept, at->output_gradients[0]);
    return LKS_OK;
}

/* With respect to x; the scalar second input comes from gradient rules alone, which are not differentiated. */
static lks_status differentiate_scale(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->n_inputs == 2) return lksi_no_gradient(at);
    gradients[0] = lksi_emit_scaled(builder, at->output_gradients[0], at->attributes->factor);
    return LKS_OK;
}

lks_status lksi_differentiate_elementwise(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value x = at->inputs[0], y = at->outputs[0];
    switch (at->op) {
    case LKSI_OP_RELU:
        return differentiate_by(LKSI_OP_RELU_GRAD, y, at, builder, gradients);
    case LKSI_OP_LEAKY_RELU:
        return differentiate_by(LKSI_OP_LEAKY_RELU_GRAD, y, at, builder, gradients);
    case LKSI_OP_GELU:
        return differentiate_by(LKSI_OP_GELU_GRAD, x, at, builder, gradients);
    case LKSI_OP_TANH:
        return differentiate_by(LKSI_OP_TANH_GRAD, y, at, builder, gradients);
    case LKSI_OP_SIGMOID:
        return differentiate_by(LKSI_OP_SIGMOID_GRAD, y, at, builder, gradients);
    case LKSI_OP_SCALE:
        return differentiate_scale(at, builder, gradients);
    default:
        return lksi_no_gradient(at);
    }
}
