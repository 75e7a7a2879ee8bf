/* Convolution as a layer. */
#include "nn/nn_internal.h"

#include <math.h>

static const lks_conv2d_options defaults;

lks_node *lks_conv2d(lks_node *x, int64_t out_channels, int64_t kernel, const char *name,
                     const lks_conv2d_options *options) {
    x = lksi_layer_input(x, "conv2d", name);
    if (lksi_node_is_poison(x)) return x;
    lks_graph *graph = lks_node_graph(x);
    if (options == NULL) options = &defaults;
    int64_t groups = options->window.groups != 0 ? options->window.groups : 1, channels = lks_node_dim(x, 1);
    if (lks_node_n_dims(x) != 4 || groups < 1 || channels % groups != 0)
        return lksi_graph_poison(
            graph,
            lksi_error(
                LKS_ERR_SHAPE,
                "conv2d '%s' takes x (N,C,H,W) with C a multiple of its %lld groups; it got %d dimensions, C %lld",
                name, (long long)groups, lks_node_n_dims(x), (long long)channels));
    /* As torch.nn.Conv2d begins: both uniform in +-1/sqrt(fan_in), fan_in = C/groups kernel^2. */
    int64_t group_channels = channels / groups;
    lks_initializer like_torch = {LKS_INITIAL_UNIFORM, 1.0 / ((double)kernel * sqrt((double)group_channels))};
    lks_node *weight =
        lksi_named_parameter(graph, name, "weight", 4, (int64_t[]){out_channels, group_channels, kernel, kernel},
                             options->weight != NULL ? *options->weight : like_torch);
    if (options->no_bias) return lks_conv2d_function(x, weight, NULL, &options->window);
    lks_node *bias = lksi_named_parameter(graph, name, "bias", 1, &out_channels, like_torch);
    return lks_conv2d_function(x, weight, bias, &options->window);
}
