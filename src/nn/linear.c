/* The linear layer. */
#include "nn/nn_internal.h"

#include <math.h>

lks_node *lks_linear_with(lks_node *x, int64_t out_features, const char *name, const lks_linear_options *options) {
    static const lks_linear_options none;
    if (options == NULL) options = &none;
    x = lksi_layer_input(x, "linear", name);
    if (lksi_node_is_poison(x)) return x;
    lks_graph *graph = lks_node_graph(x);
    int64_t in_features = lksi_last_dim(x);
    if (lks_node_n_dims(x) < 2 || in_features < 1)
        return lksi_graph_poison(graph,
                                 lksi_error(LKS_ERR_SHAPE,
                                            "linear '%s' takes x (...,K), \"...\" one or more dimensions, not %d "
                                            "dimensions in all",
                                            name, lks_node_n_dims(x)));
    lks_initializer like_torch = {LKS_INITIAL_UNIFORM, 1.0 / sqrt((double)in_features)};
    lks_node *weight = lksi_named_parameter(graph, name, "weight", 2, (int64_t[]){out_features, in_features},
                                            options->weight != NULL ? *options->weight : like_torch);
    if (options->no_bias) return lks_linear_function(x, weight, NULL);
    lks_node *bias = lksi_named_parameter(graph, name, "bias", 1, &out_features, like_torch);
    return lks_linear_function(x, weight, bias);
}

lks_node *lks_linear(lks_node *x, int64_t out_features, const char *name) {
    return lks_linear_with(x, out_features, name, NULL);
}
