/* Constructors of convolution and pooling. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

/* Attributes for the user's options, in which 0 means the default. */
static lksi_attributes attributes_of(const lks_window_options *options, int64_t stride_height, int64_t stride_width) {
    static const lks_window_options none;
    if (options == NULL) options = &none;
    lksi_attributes a = {.stride = {stride_height, stride_width}, .dilation = {1, 1}, .groups = 1};
    for (int i = 0; i < 2; i++) {
        a.padding[i] = options->padding[i];
        if (options->stride[i] != 0) a.stride[i] = options->stride[i];
        if (options->dilation[i] != 0) a.dilation[i] = options->dilation[i];
    }
    if (options->groups != 0) a.groups = options->groups;
    return a;
}

lks_node *lks_conv2d_function(lks_node *x, lks_node *weight, lks_node *bias, const lks_window_options *options) {
    lksi_attributes a = attributes_of(options, 1, 1);
    return lksi_graph_operate(LKSI_OP_CONV2D, &a, (lks_node *[]){x, weight, bias}, bias != NULL ? 3 : 2, NULL);
}

static lks_node *pool(lksi_op op, lks_node *x, int64_t height, int64_t width, const lks_window_options *options) {
    if (lksi_node_is_poison(x)) return lksi_node_given(x, lksi_op_name(op));
    lksi_attributes a = attributes_of(options, height, width);
    if (a.dilation[0] != 1 || a.dilation[1] != 1 || a.groups != 1)
        return lksi_graph_refuse(&x, 1,
                                 lksi_error(LKS_ERR_ARGUMENT, "%s has neither dilation nor groups", lksi_op_name(op)));
    a.window[0] = height;
    a.window[1] = width;
    return lksi_graph_operate(op, &a, &x, 1, NULL);
}

lks_node *lks_max_pool2d(lks_node *x, int64_t height, int64_t width, const lks_window_options *options) {
    return pool(LKSI_OP_MAX_POOL2D, x, height, width, options);
}

lks_node *lks_avg_pool2d(lks_node *x, int64_t height, int64_t width, const lks_window_options *options) {
    return pool(LKSI_OP_AVG_POOL2D, x, height, width, options);
}

lks_node *lks_global_avg_pool2d(lks_node *x) {
    if (lksi_node_is_poison(x)) return lksi_node_given(x, "global_avg_pool2d");
    if (lks_node_n_dims(x) != 4)
        return lksi_graph_refuse(
            &x, 1,
            lksi_error(LKS_ERR_SHAPE, "global_avg_pool2d takes x (N,C,H,W), not %d dimensions", lks_node_n_dims(x)));
    int64_t height = lks_node_dim(x, 2), width = lks_node_dim(x, 3);
    lks_node *mean = pool(LKSI_OP_AVG_POOL2D, x, height, width, NULL);
    return lks_reshape(mean, 2, (int64_t[]){lks_node_dim(x, 0), lks_node_dim(x, 1)});
}
