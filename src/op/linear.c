/* Matrix products. */
#include "op/op_internal.h"

/* x (...,K) as rows of K: the leading dimensions and another last one. */
static lksi_tensor with_last(const lksi_tensor *x, int64_t last) {
    lksi_tensor y = *x;
    y.dims[y.n_dims - 1] = last;
    return y;
}

static lks_status infer_forward(const lksi_inference *q) {
    const lksi_tensor *in = q->inputs, *x = &in[0], *w = &in[1];
    bool fits = x->n_dims >= 2 && w->n_dims == 2 && x->dims[x->n_dims - 1] == w->dims[1] &&
                lksi_type_is_float(x->type) && w->type == x->type;
    if (fits && q->n_inputs == 3) fits = in[2].n_dims == 1 && in[2].dims[0] == w->dims[0] && in[2].type == x->type;
    if (!fits) return lksi_misfit(q, "x (...,K), W (M,K) and b (M)");
    q->outputs[0] = with_last(x, w->dims[0]);
    return LKS_OK;
}

lks_status lksi_infer_linear(const lksi_inference *q) {
    const lksi_tensor *in = q->inputs;
    switch (q->op) {
    case LKSI_OP_LINEAR:
        return infer_forward(q);
    case LKSI_OP_LINEAR_GRAD_INPUT:
        q->outputs[0] = with_last(&in[0], in[1].dims[1]);
        return LKS_OK;
    case LKSI_OP_LINEAR_GRAD_WEIGHT:
        q->outputs[0] = (lksi_tensor){in[0].type, 2, {in[0].dims[in[0].n_dims - 1], in[1].dims[in[1].n_dims - 1]}};
        return LKS_OK;
    case LKSI_OP_SUM_ROWS:
        q->outputs[0] = (lksi_tensor){in[0].type, 1, {in[0].dims[in[0].n_dims - 1]}};
        return LKS_OK;
    default:
        return lksi_error(LKS_ERR_UNSUPPORTED, "%s is not built yet", lksi_op_name(q->op));
    }
}

static void differentiate_forward(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value dy = at->output_gradients[0];
    /* The weight's gradient first: it is final then, and whoever communicates can start with it. */
    if (at->needs_gradient[1]) gradients[1] = lksi_emit2(builder, LKSI_OP_LINEAR_GRAD_WEIGHT, dy, at->inputs[0]);
    if (at->n_inputs == 3 && at->needs_gradient[2]) gradients[2] = lksi_emit1(builder, LKSI_OP_SUM_ROWS, dy);
    if (at->needs_gradient[0]) gradients[0] = lksi_emit2(builder, LKSI_OP_LINEAR_GRAD_INPUT, dy, at->inputs[1]);
}

lks_status lksi_differentiate_linear(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op != LKSI_OP_LINEAR) return lksi_no_gradient(at);
    differentiate_forward(at, builder, gradients);
    return LKS_OK;
}
