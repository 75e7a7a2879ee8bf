/* Element-wise operators on one tensor. */
#include "op/op_internal.h"

#include <math.h>

bool lksi_op_is_epilogue(lksi_op op) { return op == LKSI_OP_RELU || op == LKSI_OP_TANH || op == LKSI_OP_SIGMOID; }

lks_status lksi_infer_elementwise(const lksi_inference *q) {
    const lksi_attributes *a = q->attributes;
    if (!lksi_type_is_float(q->inputs[0].type)) return lksi_misfit(q, "a floating tensor");
    if (q->op == LKSI_OP_LEAKY_RELU && !(a->number > 0 && isfinite(a->number)))
        return lksi_error(LKS_ERR_ARGUMENT, "leaky_relu: its slope must be above 0, not %g", a->number);
    double number = q->inputs[0].type == LKS_F64 ? a->number : (double)(float)a->number;
    bool is_bound = q->op == LKSI_OP_AT_LEAST || q->op == LKSI_OP_AT_LEAST_GRAD;
    bool is_no_bound = is_bound && number == -INFINITY;
    if (!isfinite(number) && !is_no_bound)
        return lksi_error(LKS_ERR_ARGUMENT, "%s by %g, which is not finite in %s", lksi_op_name(q->op), a->number,
                          lks_type_name(q->inputs[0].type));
    if (q->op == LKSI_OP_SCALE && q->n_inputs == 2 && q->inputs[1].n_dims != 0)
        return lksi_misfit(q, "a tensor and a scalar");
    q->outputs[0] = q->inputs[0];
    return LKS_OK;
}

/* dx is operator `op` of `kept` and dy. `kept` is y if that is sufficient, otherwise x. */
static lks_status differentiate_by(lksi_op op, lksi_value kept, const lksi_op_instance *at, lksi_op_builder *builder,
                                   lksi_value *gradients) {
    gradients[0] = lksi_emit2(builder, op, at->attributes, kept, at->output_gradients[0]);
    return LKS_OK;
}

/* The gradient with respect to x. Only gradient rules use the scalar second input, and they are not differentiated. */
static lks_status differentiate_scale(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->n_inputs == 2) return lksi_no_gradient(at);
    gradients[0] = lksi_emit_scaled(builder, at->output_gradients[0], at->attributes->number);
    return LKS_OK;
}

/* y = sqrt x: dx = dy / (2 y). */
static lks_status differentiate_root(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value half = lksi_emit_scaled(builder, at->output_gradients[0], 0.5);
    gradients[0] = lksi_emit2(builder, LKSI_OP_DIV, NULL, half, at->outputs[0]);
    return LKS_OK;
}

/* y = log(1 + x): dx = dy / (1 + x). */
static lks_status differentiate_log1p(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value shifted = lksi_emit1(builder, LKSI_OP_ADD_SCALAR, &(lksi_attributes){.number = 1}, at->inputs[0]);
    gradients[0] = lksi_emit2(builder, LKSI_OP_DIV, NULL, at->output_gradients[0], shifted);
    return LKS_OK;
}

/* dx = dy cos x, or -dy sin x. */
static lks_status differentiate_wave(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    bool is_sine = at->op == LKSI_OP_SIN;
    lksi_value slope = lksi_emit1(builder, is_sine ? LKSI_OP_COS : LKSI_OP_SIN, NULL, at->inputs[0]);
    lksi_value product = lksi_emit2(builder, LKSI_OP_MUL, NULL, at->output_gradients[0], slope);
    gradients[0] = is_sine ? product : lksi_emit_scaled(builder, product, -1);
    return LKS_OK;
}

/* y = x^p: dx = p dy x^(p-1). For p of 0 or 1 the gradient is p dy for every x. */
static lks_status differentiate_power(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    double exponent = at->attributes->number;
    gradients[0] = lksi_emit_scaled(builder, at->output_gradients[0], exponent);
    if (exponent == 0 || exponent == 1) return LKS_OK;
    lksi_value power = lksi_emit1(builder, LKSI_OP_POW, &(lksi_attributes){.number = exponent - 1}, at->inputs[0]);
    gradients[0] = lksi_emit2(builder, LKSI_OP_MUL, NULL, gradients[0], power);
    return LKS_OK;
}

lks_status lksi_differentiate_elementwise(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value x = at->inputs[0], y = at->outputs[0], dy = at->output_gradients[0];
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
    case LKSI_OP_EXP:
        gradients[0] = lksi_emit2(builder, LKSI_OP_MUL, NULL, dy, y);
        return LKS_OK;
    case LKSI_OP_LOG:
        gradients[0] = lksi_emit2(builder, LKSI_OP_DIV, NULL, dy, x);
        return LKS_OK;
    case LKSI_OP_LOG1P:
        return differentiate_log1p(at, builder, gradients);
    case LKSI_OP_SIN:
    case LKSI_OP_COS:
        return differentiate_wave(at, builder, gradients);
    case LKSI_OP_SQRT:
        return differentiate_root(at, builder, gradients);
    case LKSI_OP_POW:
        return differentiate_power(at, builder, gradients);
    case LKSI_OP_ABS:
        return differentiate_by(LKSI_OP_ABS_GRAD, x, at, builder, gradients);
    case LKSI_OP_AT_LEAST:
        return differentiate_by(LKSI_OP_AT_LEAST_GRAD, x, at, builder, gradients);
    case LKSI_OP_ADD_SCALAR:
        gradients[0] = dy;
        return LKS_OK;
    case LKSI_OP_SCALE:
        return differentiate_scale(at, builder, gradients);
    default:
        return lksi_no_gradient(at);
    }
}
