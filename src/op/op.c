/* Dispatches from an operator to the rules of its family. */
#include "op/op_internal.h"

typedef struct catalogue_row {
    const char *name;
    int least_inputs, most_inputs, n_outputs;
    lks_status (*infer)(const lksi_inference *q);
    lks_status (*differentiate)(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients);
} catalogue_row;

static const catalogue_row catalogue[] = {
#define CATALOGUE_ROW(name, text, least, most, n_outputs, family)                                                      \
    {text, least, most, n_outputs, lksi_infer_##family, lksi_differentiate_##family},
    LKSI_OP_TABLE(CATALOGUE_ROW)
#undef CATALOGUE_ROW
};

const char *lksi_op_name(lksi_op op) { return catalogue[op].name; }
int lksi_op_n_outputs(lksi_op op) { return catalogue[op].n_outputs; }

lks_status lksi_op_infer(lksi_op op, const lksi_attributes *attributes, const lksi_tensor *inputs, int n_inputs,
                         lksi_tensor *outputs) {
    static const lksi_attributes none;
    lksi_inference q = {op, attributes != NULL ? attributes : &none, inputs, n_inputs, outputs};
    if (n_inputs < catalogue[op].least_inputs || n_inputs > catalogue[op].most_inputs)
        return lksi_misfit(&q, "another number of inputs");
    return catalogue[op].infer(&q);
}

lks_status lksi_op_differentiate(const lksi_op_instance *at, lksi_op_builder *builder, lksi_value *gradients) {
    for (int i = 0; i < at->n_inputs; i++) gradients[i] = LKSI_NO_VALUE;
    return catalogue[at->op].differentiate(at, builder, gradients);
}

/* --- what the families share --- */

bool lksi_type_is_float(lks_type type) { return type == LKS_F32 || type == LKS_F64; }

lks_status lksi_misfit(const lksi_inference *q, const char *rule) {
    char text[1024] = "";
    int used = 0;
    for (int i = 0; i < q->n_inputs && (size_t)used < sizeof text; i++) {
        char shape[128];
        lksi_tensor_format(&q->inputs[i], shape, sizeof shape);
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s", i == 0 ? "" : ", ", shape);
    }
    return lksi_error(LKS_ERR_SHAPE, "%s takes %s, not %s", lksi_op_name(q->op), rule, text);
}

lks_status lksi_check_axis(const lksi_inference *q, const lksi_tensor *x) {
    int64_t axis = q->attributes->axis;
    if (axis < 0 || axis >= x->n_dims)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: axis %lld is not one of the tensor's %d axes", lksi_op_name(q->op),
                          (long long)axis, x->n_dims);
    if (x->dims[axis] == LKSI_BATCH)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: axis %lld is the batch", lksi_op_name(q->op), (long long)axis);
    return LKS_OK;
}

lks_status lksi_no_gradient(const lksi_op_instance *at) {
    return lksi_error(LKS_ERR_UNSUPPORTED, "%s has no gradient", lksi_op_name(at->op));
}

lksi_value lksi_emit1_as(lksi_op_builder *builder, lksi_op op, const lksi_attributes *attributes, lksi_value a,
                         const lksi_tensor *result) {
    lksi_emission e = {.op = op, .attributes = attributes, .n_inputs = 1, .inputs = {a}, .result = result};
    return builder->emit(builder, &e);
}

lksi_value lksi_emit2_as(lksi_op_builder *builder, lksi_op op, const lksi_attributes *attributes, lksi_value a,
                         lksi_value b, const lksi_tensor *result) {
    lksi_emission e = {.op = op, .attributes = attributes, .n_inputs = 2, .inputs = {a, b}, .result = result};
    return builder->emit(builder, &e);
}

lksi_value lksi_emit1(lksi_op_builder *builder, lksi_op op, const lksi_attributes *attributes, lksi_value a) {
    return lksi_emit1_as(builder, op, attributes, a, NULL);
}

lksi_value lksi_emit2(lksi_op_builder *builder, lksi_op op, const lksi_attributes *attributes, lksi_value a,
                      lksi_value b) {
    return lksi_emit2_as(builder, op, attributes, a, b, NULL);
}

lksi_value lksi_emit_scaled(lksi_op_builder *builder, lksi_value a, double factor) {
    return lksi_emit1(builder, LKSI_OP_SCALE, &(lksi_attributes){.number = factor}, a);
}

void lksi_take_gradients(const lksi_op_instance *at, lksi_value first, int n, lksi_value *gradients) {
    for (int i = 0; i < n; i++)
        if (at->needs_gradient[i] && first != LKSI_NO_VALUE) gradients[i] = first + i;
}
