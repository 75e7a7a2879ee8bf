/* Convolutions. */
#include "op/op_internal.h"

static lks_status check_attributes(const lksi_inference *q) {
    const lksi_attributes *a = q->attributes;
    for (int i = 0; i < 2; i++) {
        LKS_TRY(lksi_check_window_option(q, "stride", a->stride[i], 1));
        LKS_TRY(lksi_check_window_option(q, "padding", a->padding[i], 0));
        LKS_TRY(lksi_check_window_option(q, "dilation", a->dilation[i], 1));
    }
    return lksi_check_window_option(q, "groups", a->groups, 1);
}

static lks_status infer_forward(const lksi_inference *q) {
    LKS_TRY(check_attributes(q));
    const lksi_tensor *x = &q->inputs[0], *w = &q->inputs[1], *b = q->n_inputs == 3 ? &q->inputs[2] : NULL;
    int64_t groups = q->attributes->groups;
    bool fits = x->n_dims == 4 && w->n_dims == 4 && lksi_type_is_float(x->type) && w->type == x->type;
    if (fits) fits = x->dims[1] % groups == 0 && x->dims[1] / groups == w->dims[1] && w->dims[0] % groups == 0;
    if (fits && b != NULL) fits = b->n_dims == 1 && b->dims[0] == w->dims[0] && b->type == x->type;
    if (!fits) return lksi_misfit(q, "x (N,C,H,W), W (M,C/groups,h,w) and b (M), groups dividing C and M");
    q->outputs[0] = (lksi_tensor){x->type, 4, {x->dims[0], w->dims[0]}};
    return lksi_infer_windows(q, &w->dims[2]);
}

lks_status lksi_infer_convolution(const lksi_inference *q) {
    switch (q->op) {
    case LKSI_OP_CONV2D:
        return infer_forward(q);
    case LKSI_OP_CONV2D_GRAD_WEIGHT:
        q->outputs[1] = (lksi_tensor){q->inputs[0].type, 1, {q->inputs[0].dims[1]}};
        return LKS_OK;
    default: /* the input's gradient: its shape is given */
        return LKS_OK;
    }
}

lks_status lksi_differentiate_convolution(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_CONV2D) return lksi_no_gradient(at);
    lksi_value dy = at->output_gradients[0];
    bool needs_bias = at->n_inputs == 3 && at->needs_gradient[2];
    /* The gradient of the weight comes first: it is final then, and its communication can begin. */
    if (at->needs_gradient[1] || needs_bias) {
        lksi_value dw = lksi_emit2_as(builder, LKSI_OP_CONV2D_GRAD_WEIGHT, at->attributes, dy, at->inputs[0],
                                      &at->input_tensors[1]);
        if (at->needs_gradient[1]) gradients[1] = dw;
        if (needs_bias && dw != LKSI_NO_VALUE) gradients[2] = dw + 1;
    }
    if (at->needs_gradient[0])
        gradients[0] =
            lksi_emit2_as(builder, LKSI_OP_CONV2D_GRAD_INPUT, at->attributes, dy, at->inputs[1], &at->input_tensors[0]);
    return LKS_OK;
}
