/* Layer normalisation as a layer. */
#include "nn/nn_internal.h"

lks_node *lks_layer_norm(lks_node *x, const char *name) {
    x = lksi_layer_input(x, "layer_norm", name);
    if (lksi_node_is_poison(x)) return x;
    lks_graph *graph = lks_node_graph(x);
    int64_t k = lksi_last_dim(x);
    lks_node *weight = lksi_named_parameter(graph, name, "weight", 1, &k, (lks_initializer){LKS_INITIAL_CONSTANT, 1.0});
    lks_node *bias = lksi_named_parameter(graph, name, "bias", 1, &k, (lks_initializer){LKS_INITIAL_ZERO, 0});
    return lks_layer_norm_function(x, weight, bias, 1e-5);
}
