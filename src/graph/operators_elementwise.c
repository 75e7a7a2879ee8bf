/* Constructors of the operators that map each element by itself, and of those on two tensors. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

#include <math.h>

lks_node *lks_add(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_ADD, NULL, (lks_node *[]){a, b}, 2, NULL);
}
lks_node *lks_sub(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_SUB, NULL, (lks_node *[]){a, b}, 2, NULL);
}
lks_node *lks_mul(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_MUL, NULL, (lks_node *[]){a, b}, 2, NULL);
}
lks_node *lks_div(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_DIV, NULL, (lks_node *[]){a, b}, 2, NULL);
}

lks_node *lks_maximum(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_MAXIMUM, NULL, (lks_node *[]){a, b}, 2, NULL);
}
lks_node *lks_minimum(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_MINIMUM, NULL, (lks_node *[]){a, b}, 2, NULL);
}

static lks_node *at_least(lks_node *x, double number) {
    return lksi_graph_operate(LKSI_OP_AT_LEAST, &(lksi_attributes){.number = number}, &x, 1, NULL);
}
lks_node *lks_clamp(lks_node *x, double least, double most) {
    if (lksi_node_is_poison(x)) return lksi_node_given(x, "clamp");
    if (!(least <= most) || least == INFINITY || most == -INFINITY)
        return lksi_graph_refuse(&x, 1, lksi_error(LKS_ERR_ARGUMENT, "clamp: from %g to %g is no range", least, most));
    x = at_least(x, least);
    return most == INFINITY ? x : lks_scale(at_least(lks_scale(x, -1), -most), -1);
}

lks_node *lks_add_scalar(lks_node *x, double number) {
    return lksi_graph_operate(LKSI_OP_ADD_SCALAR, &(lksi_attributes){.number = number}, &x, 1, NULL);
}
lks_node *lks_scale(lks_node *x, double factor) {
    return lksi_graph_operate(LKSI_OP_SCALE, &(lksi_attributes){.number = factor}, &x, 1, NULL);
}
lks_node *lks_exp(lks_node *x) { return lksi_graph_operate(LKSI_OP_EXP, NULL, &x, 1, NULL); }
lks_node *lks_log(lks_node *x) { return lksi_graph_operate(LKSI_OP_LOG, NULL, &x, 1, NULL); }
lks_node *lks_log1p(lks_node *x) { return lksi_graph_operate(LKSI_OP_LOG1P, NULL, &x, 1, NULL); }
lks_node *lks_sin(lks_node *x) { return lksi_graph_operate(LKSI_OP_SIN, NULL, &x, 1, NULL); }
lks_node *lks_cos(lks_node *x) { return lksi_graph_operate(LKSI_OP_COS, NULL, &x, 1, NULL); }
lks_node *lks_sqrt(lks_node *x) { return lksi_graph_operate(LKSI_OP_SQRT, NULL, &x, 1, NULL); }
lks_node *lks_pow(lks_node *x, double exponent) {
    return lksi_graph_operate(LKSI_OP_POW, &(lksi_attributes){.number = exponent}, &x, 1, NULL);
}
lks_node *lks_abs(lks_node *x) { return lksi_graph_operate(LKSI_OP_ABS, NULL, &x, 1, NULL); }
lks_node *lks_relu(lks_node *x) { return lksi_graph_operate(LKSI_OP_RELU, NULL, &x, 1, NULL); }
lks_node *lks_tanh(lks_node *x) { return lksi_graph_operate(LKSI_OP_TANH, NULL, &x, 1, NULL); }
lks_node *lks_sigmoid(lks_node *x) { return lksi_graph_operate(LKSI_OP_SIGMOID, NULL, &x, 1, NULL); }
lks_node *lks_leaky_relu(lks_node *x, double slope) {
    return lksi_graph_operate(LKSI_OP_LEAKY_RELU, &(lksi_attributes){.number = slope}, &x, 1, NULL);
}
lks_node *lks_gelu(lks_node *x) { return lksi_graph_operate(LKSI_OP_GELU, NULL, &x, 1, NULL); }
