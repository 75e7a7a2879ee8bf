/* Batch norm. */
#include "op/op_internal.h"

#include <math.h>

static lks_status infer_forward(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0];
    bool fits = x->n_dims >= 2 && lksi_type_is_float(x->type);
    for (int i = 1; fits && i < 5; i++) {
        const lksi_tensor *v = &q->inputs[i];
        fits = v->n_dims == 1 && v->dims[0] == x->dims[1] && v->type == x->type;
    }
    if (!fits) return lksi_misfit(q, "x (N,C,...), weight, bias, running mean and variance (C)");
    if (!(q->attributes->epsilon >= 0) || !isfinite(q->attributes->epsilon))
        return lksi_error(LKS_ERR_ARGUMENT, "%s: its epsilon must be finite and at least 0, not %g",
                          lksi_op_name(q->op), q->attributes->epsilon);
    q->outputs[0] = *x;
    if (q->op != LKSI_OP_BATCH_NORM_INFERENCE) q->outputs[1] = q->outputs[2] = q->inputs[1];
    if (q->op == LKSI_OP_BATCH_NORM_BY_SUMS) q->outputs[3] = q->inputs[1];
    return LKS_OK;
}

static lksi_tensor sums_of(int64_t count) { return (lksi_tensor){.type = LKS_F64, .n_dims = 1, .dims = {count}}; }

lks_status lksi_infer_normalize(const lksi_inference *q) {
    const lksi_tensor *x = &q->inputs[0];
    switch (q->op) {
    case LKSI_OP_BATCH_NORM_GRAD:
        q->outputs[0] = *x;
        for (int i = 1; i < 5; i++) q->outputs[i] = q->inputs[2];
        return LKS_OK;
    case LKSI_OP_BATCH_NORM_SUMS:
        q->outputs[0] = sums_of(1 + 2 * x->dims[1]);
        return LKS_OK;
    case LKSI_OP_BATCH_NORM_GRAD_SUMS:
        q->outputs[0] = sums_of(2 * x->dims[1]);
        for (int i = 1; i < 5; i++) q->outputs[i] = q->inputs[2];
        return LKS_OK;
    case LKSI_OP_BATCH_NORM_GRAD_BY_SUMS:
        q->outputs[0] = *x;
        return LKS_OK;
    default:
        return infer_forward(q);
    }
}

static void differentiate_forward(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    const lksi_value *in = at->inputs, *out = at->outputs;
    lksi_value dx = builder->emit(builder, &(lksi_emission){.op = LKSI_OP_BATCH_NORM_GRAD,
                                                            .attributes = at->attributes,
                                                            .n_inputs = 6,
                                                            .inputs = {in[0], at->output_gradients[0], in[1], out[1],
                                                                       out[2], builder->buffer_weight}});
    lksi_take_gradients(at, dx, 5, gradients);
}

static lksi_value input_by_sums(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value grad_sums) {
    const lksi_value *in = at->inputs, *out = at->outputs;
    lksi_value all = lksi_emit1(builder, LKSI_OP_ALL_REDUCE, NULL, grad_sums);
    return builder->emit(
        builder, &(lksi_emission){.op = LKSI_OP_BATCH_NORM_GRAD_BY_SUMS,
                                  .attributes = at->attributes,
                                  .n_inputs = 7,
                                  .inputs = {in[0], at->output_gradients[0], in[1], out[1], out[2], in[5], all}});
}

/* dw and db are those of this rank's batch. They are summed over the ranks like all gradients. */
static void differentiate_by_sums(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    const lksi_value *in = at->inputs, *out = at->outputs;
    lksi_value sums = builder->emit(builder, &(lksi_emission){.op = LKSI_OP_BATCH_NORM_GRAD_SUMS,
                                                              .attributes = at->attributes,
                                                              .n_inputs = 6,
                                                              .inputs = {in[0], at->output_gradients[0], out[1], out[2],
                                                                         out[3], builder->buffer_weight}});
    lksi_take_gradients(at, sums, 5, gradients);
    if (at->needs_gradient[0]) gradients[0] = input_by_sums(at, builder, sums);
}

lks_status lksi_differentiate_normalize(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    if (at->op == LKSI_OP_BATCH_NORM)
        differentiate_forward(at, builder, gradients);
    else if (at->op == LKSI_OP_BATCH_NORM_BY_SUMS)
        differentiate_by_sums(at, builder, gradients);
    else
        return lksi_no_gradient(at);
    return LKS_OK;
}
