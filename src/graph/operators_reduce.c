/* Constructors of sums, means and softmax. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

static lks_node *reduce(lksi_op op, lks_node *x, int n_axes, const int *axes, int keep_dims) {
    int n_dims = lks_node_n_dims(x);
    lksi_attributes attributes = {.keep_dims = keep_dims != 0};
    if (lksi_node_is_poison(x)) return lksi_node_given(x, lksi_op_name(op));
    if (n_axes < 0)
        return lksi_graph_refuse(
            &x, 1,
            lksi_error(LKS_ERR_ARGUMENT, "%s: %d axes; 0 (all) to %d are possible", lksi_op_name(op), n_axes, n_dims));
    if (n_axes > 0 && axes == NULL)
        return lksi_graph_refuse(
            &x, 1, lksi_error(LKS_ERR_ARGUMENT, "%s: %d axes, but axes is NULL", lksi_op_name(op), n_axes));
    if (n_axes == 0) attributes.axes = (INT64_C(1) << n_dims) - 1;
    for (int i = 0; i < n_axes; i++) {
        bool is_axis = axes[i] >= 0 && axes[i] < n_dims;
        if (!is_axis || (attributes.axes >> axes[i] & 1) != 0)
            return lksi_graph_refuse(&x, 1,
                                     lksi_error(LKS_ERR_ARGUMENT, "%s: axis %d is %s %d", lksi_op_name(op), axes[i],
                                                is_axis ? "listed twice, of" : "not one of the tensor's", n_dims));
        attributes.axes |= INT64_C(1) << axes[i];
    }
    return lksi_graph_operate(op, &attributes, &x, 1, NULL);
}

lks_node *lks_sum(lks_node *x, int n_axes, const int *axes, int keep_dims) {
    return reduce(LKSI_OP_SUM, x, n_axes, axes, keep_dims);
}
lks_node *lks_mean(lks_node *x, int n_axes, const int *axes, int keep_dims) {
    return reduce(LKSI_OP_MEAN, x, n_axes, axes, keep_dims);
}

lks_node *lks_softmax(lks_node *x) { return lksi_graph_operate(LKSI_OP_SOFTMAX, NULL, &x, 1, NULL); }
lks_node *lks_log_softmax(lks_node *x) { return lksi_graph_operate(LKSI_OP_LOG_SOFTMAX, NULL, &x, 1, NULL); }
lks_node *lks_causal_softmax(lks_node *x) {
    return lksi_graph_operate(LKSI_OP_SOFTMAX, &(lksi_attributes){.is_causal = 1}, &x, 1, NULL);
}
