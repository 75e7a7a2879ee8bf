/* Views and moves of elements. */
#include "op/op_internal.h"

/* Whether `out` has a batch dimension where `in` has none: the caller may have meant PyTorch's -1. */
static bool has_new_batch(const lksi_tensor *in, const lksi_tensor *out) {
    for (int i = 0; i < out->n_dims; i++)
        if (out->dims[i] == LKSI_BATCH && (i > 0 || in->n_dims == 0 || in->dims[0] != LKSI_BATCH)) return true;
    return false;
}

static lks_status infer_reshape(const lksi_tensor *in, const lksi_tensor *out) {
    /* Checked for two batch sizes, because the counts may be equal for one by chance. */
    if (in->type != out->type || lksi_tensor_count(in, 1) != lksi_tensor_count(out, 1) ||
        lksi_tensor_count(in, 2) != lksi_tensor_count(out, 2)) {
        char from[128], to[128];
        lksi_tensor_format(in, from, sizeof from);
        lksi_tensor_format(out, to, sizeof to);
        return lksi_error(LKS_ERR_SHAPE, "reshape from %s to %s changes the number of elements%s", from, to,
                          has_new_batch(in, out) ? " (-1 is the batch, N; no dimension is inferred)" : "");
    }
    for (int i = 1; i < out->n_dims; i++)
        if (out->dims[i] == LKSI_BATCH)
            return lksi_error(LKS_ERR_ARGUMENT, "reshape: the batch has to stay the first axis");
    return LKS_OK;
}

static lks_status infer_transpose(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0];
    const int64_t *order = q->attributes->order;
    int64_t seen = 0;
    q->outputs[0] = (lksi_tensor){.type = x->type, .n_dims = x->n_dims};
    for (int i = 0; i < x->n_dims; i++) {
        bool is_axis = order[i] >= 0 && order[i] < x->n_dims;
        if (!is_axis || (seen >> order[i] & 1) != 0)
            return lksi_error(LKS_ERR_ARGUMENT, "transpose: axis %lld, number %d of the order, is %s",
                              (long long)order[i], i, is_axis ? "listed twice" : "not one of the tensor's");
        seen |= INT64_C(1) << order[i];
        q->outputs[0].dims[i] = x->dims[order[i]];
    }
    if (x->n_dims > 0 && x->dims[0] == LKSI_BATCH && order[0] != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "transpose: the batch has to stay the first axis");
    return LKS_OK;
}

static bool concat_fits(const lksi_tensor *first, const lksi_tensor *other, int64_t axis) {
    if (other->type != first->type || other->n_dims != first->n_dims) return false;
    for (int i = 0; i < first->n_dims; i++)
        if (i != axis && other->dims[i] != first->dims[i]) return false;
    return true;
}

static lks_status infer_concat(const lksi_inference *q) {
    int64_t axis = q->attributes->axis;
    LKS_TRY(lksi_check_axis(q, &q->inputs[0]));
    q->outputs[0] = q->inputs[0];
    for (int i = 1; i < q->n_inputs; i++) {
        if (!concat_fits(&q->inputs[0], &q->inputs[i], axis))
            return lksi_misfit(q, "tensors that differ along its axis alone");
        LKS_TRY(lksi_check_axis(q, &q->inputs[i]));
        q->outputs[0].dims[axis] += q->inputs[i].dims[axis];
    }
    return LKS_OK;
}

static lks_status infer_slice(const lksi_inference *q) {
    const lksi_attributes *a = q->attributes;
    const lksi_tensor *x = &q->inputs[0];
    LKS_TRY(lksi_check_axis(q, x));
    if (a->begin < 0 || a->begin >= a->end || a->end > x->dims[a->axis])
        return lksi_error(LKS_ERR_ARGUMENT, "slice: %lld to %lld is not a part of axis %lld with %lld elements",
                          (long long)a->begin, (long long)a->end, (long long)a->axis, (long long)x->dims[a->axis]);
    q->outputs[0] = *x;
    q->outputs[0].dims[a->axis] = a->end - a->begin;
    return LKS_OK;
}

/* Only gradient rules create SLICE_GRAD. Its range was checked when the SLICE was created. */
static lks_status infer_slice_grad(const lksi_inference *q) {
    int64_t axis = q->attributes->axis, end = q->attributes->begin;
    for (int i = 0; i < q->n_inputs; i++) {
        if (!concat_fits(&q->outputs[0], &q->inputs[i], axis)) return lksi_misfit(q, "slices of its result");
        end += q->inputs[i].dims[axis];
    }
    return end <= q->outputs[0].dims[axis] ? LKS_OK : lksi_misfit(q, "slices that its result has room for");
}

lks_status lksi_infer_arrange(const lksi_inference *q) {
    switch (q->op) {
    case LKSI_OP_RESHAPE:
        return infer_reshape(&q->inputs[0], &q->outputs[0]);
    case LKSI_OP_FULL:
    case LKSI_OP_RESULT: /* the graph passes the shape of that output */
        return LKS_OK;
    case LKSI_OP_TRANSPOSE:
        return infer_transpose(q);
    case LKSI_OP_CONCAT:
        return infer_concat(q);
    case LKSI_OP_SLICE:
        return infer_slice(q);
    case LKSI_OP_SLICE_GRAD:
        return infer_slice_grad(q);
    default: /* COPY, REORDER */
        q->outputs[0] = q->inputs[0];
        return LKS_OK;
    }
}

static lksi_value transpose_back(const lksi_op_instance *at, lksi_op_builder *builder) {
    lksi_attributes back = {0};
    for (int i = 0; i < at->input_tensors[0].n_dims; i++) back.order[at->attributes->order[i]] = i;
    return lksi_emit1(builder, LKSI_OP_TRANSPOSE, &back, at->output_gradients[0]);
}

static void slice_back(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_attributes part = {.axis = at->attributes->axis};
    for (int i = 0; i < at->n_inputs; i++) {
        part.begin = part.end;
        part.end += at->input_tensors[i].dims[part.axis];
        if (at->needs_gradient[i]) gradients[i] = lksi_emit1(builder, LKSI_OP_SLICE, &part, at->output_gradients[0]);
    }
}

lks_status lksi_differentiate_arrange(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    lksi_value dy = at->output_gradients[0];
    switch (at->op) {
    case LKSI_OP_RESHAPE:
        gradients[0] = lksi_emit1_as(builder, LKSI_OP_RESHAPE, NULL, dy, &at->input_tensors[0]);
        return LKS_OK;
    case LKSI_OP_COPY:
        gradients[0] = dy;
        return LKS_OK;
    case LKSI_OP_TRANSPOSE:
        gradients[0] = transpose_back(at, builder);
        return LKS_OK;
    case LKSI_OP_CONCAT:
        slice_back(at, builder, gradients);
        return LKS_OK;
    case LKSI_OP_SLICE:
        gradients[0] = lksi_emit1_as(builder, LKSI_OP_SLICE_GRAD, at->attributes, dy, &at->input_tensors[0]);
        return LKS_OK;
    default:
        return lksi_no_gradient(at);
    }
}
