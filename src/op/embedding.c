/* Embedding: rows of a table by index. */
#include "op/op_internal.h"

lks_status lksi_infer_embedding(const lksi_inference *q) {
    const lksi_tensor *index = &q->inputs[0], *w = &q->inputs[1];
    if (q->op == LKSI_OP_EMBEDDING_GRAD) return LKS_OK; /* the result has the shape of the table, which is given */
    if (index->type != LKS_I32 || index->n_dims >= LKSI_MAX_DIMS || w->n_dims != 2 || w->dims[0] == LKSI_BATCH ||
        !lksi_type_is_float(w->type))
        return lksi_misfit(q, "i32 indices (...) and W (V,K)");
    q->outputs[0] = *index;
    q->outputs[0].type = w->type;
    q->outputs[0].dims[q->outputs[0].n_dims++] = w->dims[1];
    return LKS_OK;
}

lks_status lksi_differentiate_embedding(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_EMBEDDING) return lksi_no_gradient(at);
    if (at->needs_gradient[1])
        gradients[1] = lksi_emit2_as(builder, LKSI_OP_EMBEDDING_GRAD, NULL, at->output_gradients[0], at->inputs[0],
                                     &at->input_tensors[1]);
    return LKS_OK;
}
