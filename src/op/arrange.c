/* Views and moves: the same elements elsewhere or under other dimensions. */
#include "op/op_internal.h"

static lks_status infer_reshape(const lksi_tensor *in, const lksi_tensor *out) {
    /* Two batch sizes tell equal products from equal formulas. */
    if (in->type != out->type || lksi_tensor_count(in, 1) != lksi_tensor_count(out, 1) ||
        lksi_tensor_count(in, 2) != lksi_tensor_count(out, 2)) {
        char from[128], to[128];
        lksi_tensor_format(in, from, sizeof from);
        lksi_tensor_format(out, to, sizeof to);
        return lksi_error(LKS_ERR_SHAPE, "reshape from %s to %s changes the number of elements", from, to);
    }
    return LKS_OK;
}

lks_status lksi_infer_arrange(const lksi_inference *q) {
    switch (q->op) {
    case LKSI_OP_RESHAPE:
        return infer_reshape(&q->inputs[0], &q->outputs[0]);
    case LKSI_OP_RESULT: /* the graph knows that output's shape, and gives it */
        return LKS_OK;
    case LKSI_OP_COPY:
    case LKSI_OP_REORDER:
        q->outputs[0] = q->inputs[0];
        return LKS_OK;
    default:
        return lksi_error(LKS_ERR_UNSUPPORTED, "%s is not built yet", lksi_op_name(q->op));
    }
}

lks_status lksi_differentiate_arrange(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    switch (at->op) {
    case LKSI_OP_RESHAPE:
        gradients[0] = lksi_emit_as(builder, LKSI_OP_RESHAPE, at->output_gradients[0], &at->input_tensors[0]);
        return LKS_OK;
    case LKSI_OP_COPY:
        gradients[0] = at->output_gradients[0];
        return LKS_OK;
    default:
        return lksi_no_gradient(at);
    }
}
