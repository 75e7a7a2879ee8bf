/* Batch norm as a layer. */
#include "nn/nn_internal.h"

static const double EPSILON = 1e-5, MOMENTUM = 0.1; /* as torch.nn.BatchNorm2d */

lks_node *lks_batch_norm(lks_node *x, const char *name) { return lks_batch_norm_with(x, name, NULL); }

lks_node *lks_batch_norm_with(lks_node *x, const char *name, const lks_batch_norm_options *options) {
    static const lks_batch_norm_options none;
    if (options == NULL) options = &none;
    x = lksi_layer_input(x, "batch_norm", name);
    if (lksi_node_is_poison(x)) return x;
    lks_graph *graph = lks_node_graph(x);
    int64_t channels = lks_node_dim(x, 1);
    if (lks_node_n_dims(x) < 2)
        return lksi_graph_poison(graph,
                                 lksi_error(LKS_ERR_SHAPE, "batch_norm '%s' takes x (N,C,...), not %d dimensions", name,
                                            lks_node_n_dims(x)));
    lks_node *weight =
        lksi_named_parameter(graph, name, "weight", 1, &channels, (lks_initializer){LKS_INITIAL_CONSTANT, 1});
    lks_node *bias = lksi_named_parameter(graph, name, "bias", 1, &channels, (lks_initializer){LKS_INITIAL_ZERO, 0});
    lks_node *mean = lksi_named_buffer(graph, name, "running_mean", 1, &channels, 0, MOMENTUM);
    lks_node *variance = lksi_named_buffer(graph, name, "running_var", 1, &channels, 1, MOMENTUM);
    if (options->is_synchronised) return lks_synchronised_batch_norm_function(x, weight, bias, mean, variance, EPSILON);
    return lks_batch_norm_function(x, weight, bias, mean, variance, EPSILON);
}
