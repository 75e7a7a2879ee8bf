/* Layer normalisation. */
#include "op/op_internal.h"

#include <math.h>

static lks_status infer_forward(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0];
    bool fits = x->n_dims >= 1 && lksi_type_is_float(x->type) && x->dims[x->n_dims - 1] != LKSI_BATCH;
    for (int i = 1; fits && i < 3; i++)
        fits =
            q->inputs[i].type == x->type && q->inputs[i].n_dims == 1 && q->inputs[i].dims[0] == x->dims[x->n_dims - 1];
    if (!fits) return lksi_misfit(q, "x (...,K), w (K) and b (K)");
    if (!(q->attributes->epsilon > 0 && isfinite(q->attributes->epsilon)))
        return lksi_error(LKS_ERR_ARGUMENT, "layer_norm: its epsilon must be above 0, not %g", q->attributes->epsilon);
    q->outputs[0] = q->outputs[1] = *x;
    q->outputs[1].n_dims--;
    q->outputs[2] = q->outputs[1];
    return LKS_OK;
}

lks_status lksi_infer_layer_norm(const lksi_inference *q) {
    if (q->op == LKSI_OP_LAYER_NORM) return infer_forward(q);
    q->outputs[0] = q->inputs[0];
    q->outputs[1] = q->outputs[2] = q->inputs[2];
    return LKS_OK;
}

lks_status lksi_differentiate_layer_norm(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_LAYER_NORM) return lksi_no_gradient(at);
    if (at->output_gradients[0] == LKSI_NO_VALUE) /* only the statistics were used */
        return lksi_error(LKS_ERR_UNSUPPORTED, "layer_norm's mean and deviation have no gradient");
    lksi_value first =
        builder->emit(builder, &(lksi_emission){.op = LKSI_OP_LAYER_NORM_GRAD,
                                                .attributes = at->attributes,
                                                .n_inputs = 5,
                                                .inputs = {at->inputs[0], at->output_gradients[0], at->inputs[1],
                                                           at->outputs[1], at->outputs[2]}});
    lksi_take_gradients(at, first, 3, gradients);
    return LKS_OK;
}
