/* Operators that map each element by itself. */
#include "op/op_internal.h"

bool lksi_op_is_epilogue(lksi_op op) { return op == LKSI_OP_RELU || op == LKSI_OP_TANH || op == LKSI_OP_SIGMOID; }

lks_status lksi_infer_elementwise(const lksi_inference *q) {
    switch (q->op) {
    case LKSI_OP_RELU:
    case LKSI_OP_TANH:
    case LKSI_OP_SIGMOID:
        if (!lksi_type_is_float(q->inputs[0].type)) return lksi_misfit(q, "a floating tensor");
        q->outputs[0] = q->inputs[0];
        return LKS_OK;
    case LKSI_OP_RELU_GRAD:
    case LKSI_OP_TANH_GRAD:
    case LKSI_OP_SIGMOID_GRAD:
    case LKSI_OP_SCALE:
        q->outputs[0] = q->inputs[0];
        return LKS_OK;
    default:
        return lksi_error(LKS_ERR_UNSUPPORTED, "%s is not built yet", lksi_op_name(q->op));
    }
}

lks_status lksi_differentiate_elementwise(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value y = at->outputs[0], dy = at->output_gradients[0];
    switch (at->op) {
    case LKSI_OP_RELU:
        gradients[0] = lksi_emit2(builder, LKSI_OP_RELU_GRAD, y, dy);
        return LKS_OK;
    case LKSI_OP_TANH:
        gradients[0] = lksi_emit2(builder, LKSI_OP_TANH_GRAD, y, dy);
        return LKS_OK;
    case LKSI_OP_SIGMOID:
        gradients[0] = lksi_emit2(builder, LKSI_OP_SIGMOID_GRAD, y, dy);
        return LKS_OK;
    default:
        return lksi_no_gradient(at);
    }
}
