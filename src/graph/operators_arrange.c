/* Constructors of the operators that view or move elements. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

lks_node *lks_reshape(lks_node *x, int n_dims, const int64_t *dims) {
    lksi_tensor result = {.type = lks_node_type(x), .n_dims = n_dims};
    if (lksi_node_is_poison(x)) return lksi_node_given(x, "reshape");
    if (n_dims < 0 || n_dims > LKSI_MAX_DIMS)
        return lksi_graph_refuse(
            &x, 1, lksi_error(LKS_ERR_SHAPE, "reshape to %d dimensions; 0 to %d are possible", n_dims, LKSI_MAX_DIMS));
    if (n_dims > 0 && dims == NULL)
        return lksi_graph_refuse(&x, 1,
                                 lksi_error(LKS_ERR_ARGUMENT, "reshape to %d dimensions, but dims is NULL", n_dims));
    for (int i = 0; i < n_dims; i++) result.dims[i] = dims[i];
    return lksi_graph_operate(LKSI_OP_RESHAPE, NULL, &x, 1, &result);
}

lks_node *lks_detach(lks_node *x) {
    if (lksi_node_is_poison(x)) return lksi_node_given(x, "detach");
    return lksi_graph_operate(LKSI_OP_RESHAPE, &(lksi_attributes){.is_detached = 1}, &x, 1, &x->outputs[0]);
}

lks_node *lks_transpose(lks_node *x, const int *order) {
    lksi_attributes attributes = {0};
    if (lksi_node_is_poison(x)) return lksi_node_given(x, "transpose");
    if (order == NULL)
        return lksi_graph_refuse(&x, 1, lksi_error(LKS_ERR_ARGUMENT, "transpose: the order of axes is NULL"));
    for (int i = 0; i < lks_node_n_dims(x); i++) attributes.order[i] = order[i];
    return lksi_graph_operate(LKSI_OP_TRANSPOSE, &attributes, &x, 1, NULL);
}

lks_node *lks_concat(lks_node *const *x, int n, int axis) {
    if (x == NULL) return lksi_graph_poison(NULL, lksi_error(LKS_ERR_ARGUMENT, "concat: x is NULL"));
    if (n < 1 || n > 8)
        return lksi_graph_poison(n < 1 ? NULL : lks_node_graph(x[0]),
                                 lksi_error(LKS_ERR_ARGUMENT, "concat takes 1 to 8 tensors, not %d", n));
    return lksi_graph_operate(LKSI_OP_CONCAT, &(lksi_attributes){.axis = axis}, x, n, NULL);
}

lks_node *lks_slice(lks_node *x, int axis, int64_t begin, int64_t end) {
    return lksi_graph_operate(LKSI_OP_SLICE, &(lksi_attributes){.axis = axis, .begin = begin, .end = end}, &x, 1, NULL);
}

void lks_split(lks_node *x, int axis, int n, lks_node **parts) {
    int64_t dim = lks_node_dim(x, axis);
    if (parts == NULL) {
        (void)lksi_graph_refuse(&x, 1, lksi_error(LKS_ERR_ARGUMENT, "split: parts is NULL"));
        return;
    }
    if (n < 1) {
        (void)lksi_graph_refuse(&x, 1, lksi_error(LKS_ERR_ARGUMENT, "split: %d parts", n));
        return;
    }
    if (!lksi_node_is_poison(x) && dim > 0 && dim % n != 0)
        x = lksi_graph_refuse(&x, 1,
                              lksi_error(LKS_ERR_SHAPE,
                                         "split: axis %d with %lld elements cannot be split into %d equal parts", axis,
                                         (long long)dim, n));
    int64_t count = dim / n;
    for (int i = 0; i < n; i++) parts[i] = lks_slice(x, axis, i * count, (i + 1) * count);
}
