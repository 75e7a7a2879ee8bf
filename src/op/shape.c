/* The shape rule of every operator. */
#include "op/op.h"

static const struct {
    const char *name;
    int n_inputs, n_outputs;
} catalogue[] = {
#define CATALOGUE_ROW(name, text, n_inputs, n_outputs) {text, n_inputs, n_outputs},
    LKSI_OP_TABLE(CATALOGUE_ROW)
#undef CATALOGUE_ROW
};

const char *lksi_op_name(lksi_op op) { return catalogue[op].name; }

bool lksi_op_is_epilogue(lksi_op op) { return op == LKSI_OP_RELU || op == LKSI_OP_TANH || op == LKSI_OP_SIGMOID; }

static bool is_float(lks_type type) { return type == LKS_F32 || type == LKS_F64; }

/* One line that shows every input's shape. */
static lks_status misfit(lksi_op op, const char *rule, const lksi_tensor *inputs, int n_inputs) {
    char text[512];
    int used = 0;
    for (int i = 0; i < n_inputs; i++) {
        char shape[128];
        lksi_tensor_format(&inputs[i], shape, sizeof shape);
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s", i == 0 ? "" : ", ", shape);
    }
    return lksi_error(LKS_ERR_SHAPE, "%s takes %s, not %s", lksi_op_name(op), rule, text);
}

static lks_status infer_linear(const lksi_tensor *in, int n_inputs, lksi_tensor *out) {
    bool fits = in[0].n_dims == 2 && in[1].n_dims == 2 && in[0].dims[1] == in[1].dims[1] && is_float(in[0].type) &&
                in[1].type == in[0].type;
    if (fits && n_inputs == 3) fits = in[2].n_dims == 1 && in[2].dims[0] == in[1].dims[0] && in[2].type == in[0].type;
    if (!fits) return misfit(LKSI_OP_LINEAR, "x (N,K), W (M,K) and b (M)", in, n_inputs);
    *out = (lksi_tensor){in[0].type, 2, {in[0].dims[0], in[1].dims[0]}};
    return LKS_OK;
}

static lks_status infer_classification(lksi_op op, const lksi_tensor *in, lksi_tensor *out) {
    if (in[0].n_dims != 2 || in[1].n_dims != 1 || in[0].dims[0] != in[1].dims[0] || !is_float(in[0].type) ||
        in[1].type != LKS_I32)
        return misfit(op, "x (N,C) and i32 labels (N)", in, 2);
    *out = (lksi_tensor){in[0].type, 0, {0}};
    return LKS_OK;
}

static lks_status infer_reshape(const lksi_tensor *in, const lksi_tensor *out) {
    /* Two batch sizes tell equal products from equal formulas. */
    if (in->type != out->type || lksi_tensor_count(in, 1) != lksi_tensor_count(out, 1) ||
        lksi_tensor_count(in, 2) != lksi_tensor_count(out, 2)) {
        char from[128], to[128];
        lksi_tensor_format(in, from, sizeof from);
        lksi_tensor_format(out, to, sizeof to);
        return lksi_error(LKS_ERR_SHAPE, "reshape from %s to %s changes the number of elements", from, to);
    }
    return LKS_OK;
}

lks_status lksi_op_infer(lksi_op op, const lksi_tensor *in, int n_inputs, lksi_tensor *out, int *n_outputs) {
    *n_outputs = catalogue[op].n_outputs;
    if (n_inputs != catalogue[op].n_inputs && !(op == LKSI_OP_LINEAR && n_inputs == 2))
        return misfit(op, "another number of inputs", in, n_inputs);
    switch (op) {
    case LKSI_OP_INPUT:
    case LKSI_OP_PARAMETER:
        return LKS_OK;
    case LKSI_OP_LINEAR:
        return infer_linear(in, n_inputs, out);
    case LKSI_OP_LINEAR_GRAD_INPUT:
        *out = (lksi_tensor){in[0].type, 2, {in[0].dims[0], in[1].dims[1]}};
        return LKS_OK;
    case LKSI_OP_LINEAR_GRAD_WEIGHT:
        *out = (lksi_tensor){in[0].type, 2, {in[0].dims[1], in[1].dims[1]}};
        return LKS_OK;
    case LKSI_OP_SUM_ROWS:
        *out = (lksi_tensor){in[0].type, 1, {in[0].dims[1]}};
        return LKS_OK;
    case LKSI_OP_ADD:
        if (!lksi_tensor_equal(&in[0], &in[1]) || !is_float(in[0].type))
            return misfit(op, "two floating tensors of one shape", in, 2);
        *out = in[0];
        return LKS_OK;
    case LKSI_OP_RELU:
    case LKSI_OP_TANH:
    case LKSI_OP_SIGMOID:
        if (!is_float(in[0].type)) return misfit(op, "a floating tensor", in, 1);
        *out = in[0];
        return LKS_OK;
    case LKSI_OP_COPY:
    case LKSI_OP_RELU_GRAD:
    case LKSI_OP_TANH_GRAD:
    case LKSI_OP_SIGMOID_GRAD:
    case LKSI_OP_CROSS_ENTROPY_GRAD:
        *out = in[0];
        return LKS_OK;
    case LKSI_OP_RESHAPE:
        return infer_reshape(&in[0], out);
    case LKSI_OP_CROSS_ENTROPY:
        LKS_TRY(infer_classification(op, in, out));
        out[1] = in[0];
        return LKS_OK;
    case LKSI_OP_COUNT_CORRECT:
        return infer_classification(op, in, out);
    case LKSI_OP_COUNT:
        break;
    }
    return lksi_error(LKS_ERR_ARGUMENT, "%d is no operator", (int)op);
}
