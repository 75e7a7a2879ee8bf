/* Batch norm as a layer. */
#include "graph/graph.h"

#include <lockstep/nn.h>

static const double EPSILON = 1e-5, MOMENTUM = 0.1; /* as torch.nn.BatchNorm2d */

lks_node *lks_batch_norm(lks_node *x, const char *name) {
    lks_graph *graph = lks_node_graph(x);
    if (lksi_node_is_poison(x)) return x;
    int64_t channels = lks_node_dim(x, 1);
    if (lks_node_n_dims(x) < 2)
        return lksi_graph_poison(graph,
                                 lksi_error(LKS_ERR_SHAPE, "batch_norm '%s' takes x (N,C,...), not %d dimensions", name,
                                            lks_node_n_dims(x)));
    char full_name[256];
    snprintf(full_name, sizeof full_name, "%s.weight", name);
    lks_node *weight = lks_parameter(graph, full_name, 1, &channels, (lks_initializer){LKS_INITIAL_CONSTANT, 1});
    snprintf(full_name, sizeof full_name, "%s.bias", name);
    lks_node *bias = lks_parameter(graph, full_name, 1, &channels, (lks_initializer){LKS_INITIAL_ZERO, 0});
    snprintf(full_name, sizeof full_name, "%s.running_mean", name);
    lks_node *mean = lks_buffer(graph, full_name, 1, &channels, 0, MOMENTUM);
    snprintf(full_name, sizeof full_name, "%s.running_var", name);
    lks_node *variance = lks_buffer(graph, full_name, 1, &channels, 1, MOMENTUM);
    return lks_batch_norm_function(x, weight, bias, mean, variance, EPSILON);
}
