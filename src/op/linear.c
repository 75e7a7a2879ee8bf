/* Matrix products. */
#include "op/op_internal.h"

/* `x` with another last dimension. */
static lksi_tensor with_last(const lksi_tensor *x, int64_t last) {
    lksi_tensor y = *x;
    y.dims[y.n_dims - 1] = last;
    return y;
}

static lks_status infer_forward(const lksi_inference *q) {
    const lksi_tensor *in = q->inputs, *x = &in[0], *w = &in[1];
    bool fits = x->n_dims >= 2 && w->n_dims == 2 && x->dims[x->n_dims - 1] == w->dims[1] &&
                lksi_type_is_float(x->type) && w->type == x->type && w->dims[0] != LKSI_BATCH;
    if (fits && q->n_inputs == 3) fits = in[2].n_dims == 1 && in[2].dims[0] == w->dims[0] && in[2].type == x->type;
    if (!fits) return lksi_misfit(q, "x (...,K), \"...\" one or more dimensions, W (M,K), M not the batch, and b (M)");
    q->outputs[0] = with_last(x, w->dims[0]);
    return LKS_OK;
}

/* a (...,M,K) b (...,K,N), where the last two axes of each input may be swapped. The batch may be an axis of "...", or
 * M, or K, which is summed over. It cannot be N, because it must remain the first axis. */
static lks_status infer_matmul(const lksi_inference *q) {
    const lksi_tensor *a = &q->inputs[0], *b = &q->inputs[1];
    int n = a->n_dims, ta = q->attributes->transpose_a != 0, tb = q->attributes->transpose_b != 0;
    bool fits = n >= 2 && b->n_dims == n && lksi_type_is_float(a->type) && b->type == a->type;
    for (int i = 0; fits && i < n - 2; i++) fits = a->dims[i] == b->dims[i];
    fits = fits && a->dims[n - 1 - ta] == b->dims[n - 2 + tb] && b->dims[n - 1 - tb] != LKSI_BATCH;
    if (!fits) {
        char rule[96];
        snprintf(rule, sizeof rule, "a (...,%s) and b (...,%s), N not the batch, \"...\" equal", ta ? "K,M" : "M,K",
                 tb ? "N,K" : "K,N");
        return lksi_misfit(q, rule);
    }
    q->outputs[0] = *a;
    q->outputs[0].dims[n - 2] = a->dims[n - 2 + ta];
    q->outputs[0].dims[n - 1] = b->dims[n - 1 - tb];
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
    default: /* MATMUL */
        return infer_matmul(q);
    }
}

static void differentiate_forward(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value dy = at->output_gradients[0];
    /* The gradient of the weight comes first: it is final then, and its communication can begin. */
    if (at->needs_gradient[1]) gradients[1] = lksi_emit2(builder, LKSI_OP_LINEAR_GRAD_WEIGHT, NULL, dy, at->inputs[0]);
    if (at->n_inputs == 3 && at->needs_gradient[2]) gradients[2] = lksi_emit1(builder, LKSI_OP_SUM_ROWS, NULL, dy);
    if (at->needs_gradient[0]) gradients[0] = lksi_emit2(builder, LKSI_OP_LINEAR_GRAD_INPUT, NULL, dy, at->inputs[1]);
}

static lksi_value product(lksi_op_builder *builder, lksi_value a, bool transpose_a, lksi_value b, bool transpose_b) {
    lksi_attributes attributes = {.transpose_a = transpose_a, .transpose_b = transpose_b};
    return lksi_emit2(builder, LKSI_OP_MATMUL, &attributes, a, b);
}

/* With A = a or a^T and B = b or b^T: dA = dy B^T and dB = A^T dy. If an input is transposed, its gradient is, too: (dy
 * B^T)^T = B dy^T. */
static void differentiate_matmul(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value a = at->inputs[0], b = at->inputs[1], dy = at->output_gradients[0];
    bool ta = at->attributes->transpose_a != 0, tb = at->attributes->transpose_b != 0;
    if (at->needs_gradient[1])
        gradients[1] = tb ? product(builder, dy, true, a, ta) : product(builder, a, !ta, dy, false);
    if (at->needs_gradient[0])
        gradients[0] = ta ? product(builder, b, tb, dy, true) : product(builder, dy, false, b, !tb);
}

lks_status lksi_differentiate_linear(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op == LKSI_OP_MATMUL)
        differentiate_matmul(at, builder, gradients);
    else if (at->op == LKSI_OP_LINEAR)
        differentiate_forward(at, builder, gradients);
    else
        return lksi_no_gradient(at);
    return LKS_OK;
}
