/* The gradient rule of every operator: vector-Jacobian products, written with the catalogue's own operators. */
#include "op/op.h"

static lksi_value emit2(lksi_op_builder *builder, lksi_op op, lksi_value a, lksi_value b) {
    return builder->emit(builder, op, (lksi_value[]){a, b}, 2);
}

static void linear(const lksi_op_instance *at, lksi_value dy, lksi_op_builder *builder, lksi_value *gradients) {
    /* The weight's gradient first: it is final then, and whoever communicates can start with it. */
    if (at->needs_gradient[1]) gradients[1] = emit2(builder, LKSI_OP_LINEAR_GRAD_WEIGHT, dy, at->inputs[0]);
    if (at->n_inputs == 3 && at->needs_gradient[2]) gradients[2] = builder->emit(builder, LKSI_OP_SUM_ROWS, &dy, 1);
    if (at->needs_gradient[0]) gradients[0] = emit2(builder, LKSI_OP_LINEAR_GRAD_INPUT, dy, at->inputs[1]);
}

lks_status lksi_op_differentiate(const lksi_op_instance *at, lksi_value dy, lksi_op_builder *builder,
                                 lksi_value *gradients) {
    for (int i = 0; i < at->n_inputs; i++) gradients[i] = LKSI_NO_VALUE;
    switch (at->op) {
    case LKSI_OP_LINEAR:
        linear(at, dy, builder, gradients);
        return LKS_OK;
    case LKSI_OP_ADD:
        for (int i = 0; i < 2; i++)
            if (at->needs_gradient[i]) gradients[i] = dy;
        return LKS_OK;
    case LKSI_OP_RELU:
        gradients[0] = emit2(builder, LKSI_OP_RELU_GRAD, at->outputs[0], dy);
        return LKS_OK;
    case LKSI_OP_TANH:
        gradients[0] = emit2(builder, LKSI_OP_TANH_GRAD, at->outputs[0], dy);
        return LKS_OK;
    case LKSI_OP_SIGMOID:
        gradients[0] = emit2(builder, LKSI_OP_SIGMOID_GRAD, at->outputs[0], dy);
        return LKS_OK;
    case LKSI_OP_RESHAPE:
        gradients[0] = builder->reshape(builder, dy, &at->input_tensors[0]);
        return LKS_OK;
    case LKSI_OP_CROSS_ENTROPY:
        gradients[0] =
            builder->emit(builder, LKSI_OP_CROSS_ENTROPY_GRAD, (lksi_value[]){at->outputs[1], at->inputs[1], dy}, 3);
        return LKS_OK;
    default:
        return lksi_error(LKS_ERR_UNSUPPORTED, "%s has no gradient", lksi_op_name(at->op));
    }
}
