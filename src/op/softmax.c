/* Softmax and its logarithm. */
#include "op/op_internal.h"

lks_status lksi_infer_softmax(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0];
    int least = q->attributes->is_causal != 0
                    ? 2
                    : 1; /* number of last axes that must not be the batch: one softmax, or one triangle */
    if (!lksi_type_is_float(x->type) || x->n_dims < least || x->dims[x->n_dims - least] == LKSI_BATCH)
        return lksi_misfit(q, least == 2 ? "for causal_softmax a floating tensor (...,T,S), T and S not the batch"
                                         : "a floating tensor (...,K), K not the batch");
    q->outputs[0] = *x;
    return LKS_OK;
}

lks_status lksi_differentiate_softmax(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_SOFTMAX && at->op != LKSI_OP_LOG_SOFTMAX) return lksi_no_gradient(at);
    lksi_op gradient_op = at->op == LKSI_OP_SOFTMAX ? LKSI_OP_SOFTMAX_GRAD : LKSI_OP_LOG_SOFTMAX_GRAD;
    gradients[0] = lksi_emit2(builder, gradient_op, at->attributes, at->outputs[0], at->output_gradients[0]);
    return LKS_OK;
}
