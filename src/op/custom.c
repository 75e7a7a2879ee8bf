/* Shapes and gradients of custom operators. */
#include "op/op_internal.h"

static bool is_needed(const lksi_inference *q, int input) { return (q->attributes->axes >> input & 1) != 0; }

lks_status lksi_infer_custom(const lksi_inference *q) {
    if (q->op == LKSI_OP_CUSTOM) return LKS_OK; /* the caller gives the result's shape */
    for (int i = 0; i < lksi_op_n_outputs(q->op); i++)
        q->outputs[i] = is_needed(q, i) ? q->inputs[i] : (lksi_tensor){.type = LKS_U8};
    return LKS_OK;
}

lks_status lksi_differentiate_custom(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_CUSTOM) return lksi_no_gradient(at);
    lksi_attributes attributes = *at->attributes;
    lksi_emission e = {.op = LKSI_OP_CUSTOM_GRAD, .attributes = &attributes, .n_inputs = at->n_inputs + 2};
    for (int i = 0; i < at->n_inputs; i++) {
        e.inputs[i] = at->inputs[i];
        if (at->needs_gradient[i]) attributes.axes |= INT64_C(1) << i;
    }
    e.inputs[at->n_inputs] = at->outputs[0];
    e.inputs[at->n_inputs + 1] = at->output_gradients[0];
    lksi_take_gradients(at, builder->emit(builder, &e), at->n_inputs, gradients);
    return LKS_OK;
}
