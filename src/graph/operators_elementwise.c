/* Constructors of the element-wise operators on one tensor and on two. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

#include <math.h>

static lks_node *unary(lksi_op op, lks_node *x) { return lksi_graph_operate(op, NULL, &x, 1, NULL); }
static lks_node *with_number(lksi_op op, lks_node *x, double number) {
    return lksi_graph_operate(op, &(lksi_attributes){.number = number}, &x, 1, NULL);
}
static lks_node *binary(lksi_op op, lks_node *a, lks_node *b) {
    return lksi_graph_operate(op, NULL, (lks_node *[]){a, b}, 2, NULL);
}

lks_node *lks_add(lks_node *a, lks_node *b) { return binary(LKSI_OP_ADD, a, b); }
lks_node *lks_sub(lks_node *a, lks_node *b) { return binary(LKSI_OP_SUB, a, b); }
lks_node *lks_mul(lks_node *a, lks_node *b) { return binary(LKSI_OP_MUL, a, b); }
lks_node *lks_div(lks_node *a, lks_node *b) { return binary(LKSI_OP_DIV, a, b); }

lks_node *lks_maximum(lks_node *a, lks_node *b) { return binary(LKSI_OP_MAXIMUM, a, b); }
lks_node *lks_minimum(lks_node *a, lks_node *b) { return binary(LKSI_OP_MINIMUM, a, b); }

static lks_node *at_least(lks_node *x, double number) { return with_number(LKSI_OP_AT_LEAST, x, number); }
lks_node *lks_clamp(lks_node *x, double least, double most) {
    if (lksi_node_is_poison(x)) return lksi_node_given(x, "clamp");
    if (!(least <= most) || least == INFINITY || most == -INFINITY)
        return lksi_graph_refuse(&x, 1,
                                 lksi_error(LKS_ERR_ARGUMENT, "clamp: from %g to %g is not a range", least, most));
    x = at_least(x, least);
    return most == INFINITY ? x : lks_scale(at_least(lks_scale(x, -1), -most), -1);
}

lks_node *lks_add_scalar(lks_node *x, double number) { return with_number(LKSI_OP_ADD_SCALAR, x, number); }
lks_node *lks_scale(lks_node *x, double factor) { return with_number(LKSI_OP_SCALE, x, factor); }
lks_node *lks_exp(lks_node *x) { return unary(LKSI_OP_EXP, x); }
lks_node *lks_log(lks_node *x) { return unary(LKSI_OP_LOG, x); }
lks_node *lks_log1p(lks_node *x) { return unary(LKSI_OP_LOG1P, x); }
lks_node *lks_sin(lks_node *x) { return unary(LKSI_OP_SIN, x); }
lks_node *lks_cos(lks_node *x) { return unary(LKSI_OP_COS, x); }
lks_node *lks_sqrt(lks_node *x) { return unary(LKSI_OP_SQRT, x); }
lks_node *lks_pow(lks_node *x, double exponent) { return with_number(LKSI_OP_POW, x, exponent); }
lks_node *lks_abs(lks_node *x) { return unary(LKSI_OP_ABS, x); }
lks_node *lks_relu(lks_node *x) { return unary(LKSI_OP_RELU, x); }
lks_node *lks_tanh(lks_node *x) { return unary(LKSI_OP_TANH, x); }
lks_node *lks_sigmoid(lks_node *x) { return unary(LKSI_OP_SIGMOID, x); }
lks_node *lks_leaky_relu(lks_node *x, double slope) { return with_number(LKSI_OP_LEAKY_RELU, x, slope); }
lks_node *lks_gelu(lks_node *x) { return unary(LKSI_OP_GELU, x); }
