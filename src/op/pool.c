/* Pooling. */
#include "op/op_internal.h"

/* A padding of at most half the window ensures that no window lies entirely in the padding, where it would have no
 * largest element. */
static lks_status infer_forward(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0];
    const lksi_attributes *a = q->attributes;
    if (x->n_dims != 4 || !lksi_type_is_float(x->type)) return lksi_misfit(q, "x (N,C,H,W)");
    for (int i = 0; i < 2; i++) {
        LKS_TRY(lksi_check_window_option(q, "window", a->window[i],
                                         1)); /* first, because the default stride is the window */
        LKS_TRY(lksi_check_window_option(q, "stride", a->stride[i], 1));
        LKS_TRY(lksi_check_window_option(q, "padding", a->padding[i], 0));
        if (a->padding[i] > a->window[i] / 2)
            return lksi_error(LKS_ERR_ARGUMENT, "%s: a padding of %lld is more than half of the window of %lld",
                              lksi_op_name(q->op), (long long)a->padding[i], (long long)a->window[i]);
    }
    if (q->op == LKSI_OP_MAX_POOL2D && a->window[0] > INT32_MAX / a->window[1]) /* a place in it is an i32 */
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a window of %lld x %lld is too large", lksi_op_name(q->op),
                          (long long)a->window[0], (long long)a->window[1]);
    q->outputs[0] = (lksi_tensor){x->type, 4, {x->dims[0], x->dims[1]}};
    LKS_TRY(lksi_infer_windows(q, a->window));
    if (q->op == LKSI_OP_MAX_POOL2D) {
        q->outputs[1] = q->outputs[0];
        q->outputs[1].type = LKS_I32;
    }
    return LKS_OK;
}

lks_status lksi_infer_pool(const lksi_inference *q) {
    bool is_forward = q->op == LKSI_OP_MAX_POOL2D || q->op == LKSI_OP_AVG_POOL2D;
    return is_forward ? infer_forward(q) : LKS_OK; /* a gradient's shape is given */
}

lks_status lksi_differentiate_pool(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    bool is_max = at->op == LKSI_OP_MAX_POOL2D;
    if (!is_max && at->op != LKSI_OP_AVG_POOL2D) return lksi_no_gradient(at);
    lksi_value dy = at->output_gradients[0];
    const lksi_tensor *x = &at->input_tensors[0];
    gradients[0] = is_max ? lksi_emit2_as(builder, LKSI_OP_MAX_POOL2D_GRAD, at->attributes, dy, at->outputs[1], x)
                          : lksi_emit1_as(builder, LKSI_OP_AVG_POOL2D_GRAD, at->attributes, dy, x);
    return LKS_OK;
}
