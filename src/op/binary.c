/* Element-wise operators on two tensors, and broadcasting. */
#include "op/op_internal.h"

/* The batch matches itself and 1. It never matches a number, because that would be right for one batch size only. */
static bool broadcast(const lksi_tensor *a, const lksi_tensor *b, lksi_tensor *y) {
    int n = a->n_dims > b->n_dims ? a->n_dims : b->n_dims;
    lksi_tensor result = {.type = a->type, .n_dims = n};
    for (int i = 0; i < n; i++) {
        int in_a = i - (n - a->n_dims), in_b = i - (n - b->n_dims);
        int64_t of_a = in_a >= 0 ? a->dims[in_a] : 1, of_b = in_b >= 0 ? b->dims[in_b] : 1;
        if (of_a != of_b && of_a != 1 && of_b != 1) return false;
        result.dims[i] = of_a == 1 ? of_b : of_a;
        if (result.dims[i] == LKSI_BATCH && i > 0) return false;
    }
    *y = result;
    return true;
}

static lks_status infer_two(const lksi_inference *q) {
    const lksi_tensor *a = &q->inputs[0], *b = &q->inputs[1];
    if (a->type != b->type || !lksi_type_is_float(a->type) || !broadcast(a, b, &q->outputs[0]))
        return lksi_misfit(q, "two floating tensors whose shapes are equal from the last axis on, or 1");
    return LKS_OK;
}

/* Whether `narrow` broadcasts to `wide`. */
static bool repeats_to(const lksi_tensor *narrow, const lksi_tensor *wide) {
    lksi_tensor result;
    return broadcast(narrow, wide, &result) && narrow->type == wide->type && lksi_tensor_equal(&result, wide);
}

lks_status lksi_infer_binary(const lksi_inference *q) {
    switch (q->op) {
    case LKSI_OP_EXPAND:
        return repeats_to(&q->inputs[0], &q->outputs[0]) ? LKS_OK : lksi_misfit(q, "what its result repeats");
    case LKSI_OP_SUM_TO:
        return repeats_to(&q->outputs[0], &q->inputs[0]) ? LKS_OK : lksi_misfit(q, "what repeats its result");
    default:
        return infer_two(q);
    }
}

/* The gradient of an input that was repeated is the sum over its repetitions. */
static lksi_value gather(const lksi_op_instance *at, lksi_op_builder *builder, int input, lksi_value gradient) {
    if (lksi_tensor_equal(&at->input_tensors[input], &at->output_tensors[0])) return gradient;
    return lksi_emit1_as(builder, LKSI_OP_SUM_TO, NULL, gradient, &at->input_tensors[input]);
}

/* y = a / b: da = dy / b, db = -dy y / b. */
static void differentiate_division(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value quotient = lksi_emit2(builder, LKSI_OP_DIV, NULL, at->output_gradients[0], at->inputs[1]);
    if (at->needs_gradient[0]) gradients[0] = gather(at, builder, 0, quotient);
    if (!at->needs_gradient[1]) return;
    lksi_value product = lksi_emit2(builder, LKSI_OP_MUL, NULL, quotient, at->outputs[0]);
    gradients[1] = lksi_emit_scaled(builder, gather(at, builder, 1, product), -1);
}

static void differentiate_product(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    for (int i = 0; i < 2; i++)
        if (at->needs_gradient[i])
            gradients[i] = gather(at, builder, i,
                                  lksi_emit2(builder, LKSI_OP_MUL, NULL, at->output_gradients[0], at->inputs[1 - i]));
}

/* The input that was chosen gets dy. If both are equal, each gets half. */
static void differentiate_choice(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    bool is_maximum = at->op == LKSI_OP_MAXIMUM;
    for (int i = 0; i < 2; i++) {
        if (!at->needs_gradient[i]) continue;
        lksi_value share = lksi_emit2(builder, LKSI_OP_SHARE, NULL, at->inputs[is_maximum ? i : 1 - i],
                                      at->inputs[is_maximum ? 1 - i : i]);
        gradients[i] = gather(at, builder, i, lksi_emit2(builder, LKSI_OP_MUL, NULL, at->output_gradients[0], share));
    }
}

lks_status lksi_differentiate_binary(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value dy = at->output_gradients[0];
    switch (at->op) {
    case LKSI_OP_MUL:
        differentiate_product(at, builder, gradients);
        return LKS_OK;
    case LKSI_OP_DIV:
        differentiate_division(at, builder, gradients);
        return LKS_OK;
    case LKSI_OP_MINIMUM:
    case LKSI_OP_MAXIMUM:
        differentiate_choice(at, builder, gradients);
        return LKS_OK;
    case LKSI_OP_SHARE:
        return lksi_no_gradient(at);
    case LKSI_OP_ADD:
    case LKSI_OP_SUB:
        for (int i = 0; i < 2; i++)
            if (at->needs_gradient[i]) gradients[i] = gather(at, builder, i, dy);
        if (at->op == LKSI_OP_SUB && at->needs_gradient[1]) gradients[1] = lksi_emit_scaled(builder, gradients[1], -1);
        return LKS_OK;
    case LKSI_OP_EXPAND:
        gradients[0] = lksi_emit1_as(builder, LKSI_OP_SUM_TO, NULL, dy, &at->input_tensors[0]);
        return LKS_OK;
    default: /* SUM_TO */
        gradients[0] = lksi_emit1_as(builder, LKSI_OP_EXPAND, NULL, dy, &at->input_tensors[0]);
        return LKS_OK;
    }
}
