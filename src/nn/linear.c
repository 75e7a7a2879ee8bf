/* The linear layer. */
#include "graph/graph.h"

#include <lockstep/nn.h>
#include <math.h>

lks_initializer lks_kaiming_uniform(int64_t fan_in) {
    return (lks_initializer){LKS_INITIAL_UNIFORM, sqrt(6.0 / (double)fan_in)};
}

lks_node *lks_linear_with(lks_node *x, int64_t out_features, const char *name, const lks_linear_options *options) {
    lks_graph *graph = lks_node_graph(x);
    int64_t in_features = lks_node_dim(x, 1);
    if (lksi_node_is_poison(x)) return x;
    if (lks_node_n_dims(x) != 2 || in_features < 1)
        return lksi_graph_poison(
            graph, lksi_error(LKS_ERR_SHAPE, "linear '%s' takes x (N,K), not %d dimensions", name, lks_node_n_dims(x)));
    lks_initializer like_torch = {LKS_INITIAL_UNIFORM, 1.0 / sqrt((double)in_features)};
    char full_name[256];
    snprintf(full_name, sizeof full_name, "%s.weight", name);
    lks_node *weight = lks_parameter(graph, full_name, 2, (int64_t[]){out_features, in_features},
                                     options->weight != NULL ? *options->weight : like_torch);
    if (options->no_bias) return lks_linear_function(x, weight, NULL);
    snprintf(full_name, sizeof full_name, "%s.bias", name);
    lks_node *bias = lks_parameter(graph, full_name, 1, &out_features, like_torch);
    return lks_linear_function(x, weight, bias);
}

lks_node *lks_linear(lks_node *x, int64_t out_features, const char *name) {
    return lks_linear_with(x, out_features, name, &(lks_linear_options){0});
}
