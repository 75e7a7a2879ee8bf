/* Names of parameters as in PyTorch: the layer's name, a dot, the parameter's name. */
#include "nn/nn_internal.h"

enum { NAME_NBYTES = 256 };

lks_node *lksi_layer_input(lks_node *x, const char *layer, const char *name) {
    if (lksi_node_is_poison(x)) return lksi_node_given(x, layer);
    if (name != NULL && name[0] != '\0') return x;
    return lksi_graph_poison(lks_node_graph(x), lksi_error(LKS_ERR_ARGUMENT, "%s: a layer has no name", layer));
}

static lks_status join(char full_name[NAME_NBYTES], const char *name, const char *part) {
    if (snprintf(full_name, NAME_NBYTES, "%s.%s", name, part) < NAME_NBYTES) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "the name '%s.%s' is longer than %d bytes", name, part, NAME_NBYTES - 1);
}

lks_node *lksi_named_parameter(lks_graph *graph, const char *name, const char *part, int n_dims, const int64_t *dims,
                               lks_initializer initial) {
    char full_name[NAME_NBYTES];
    lks_status status = join(full_name, name, part);
    if (status != LKS_OK) return lksi_graph_poison(graph, status);
    return lks_parameter(graph, full_name, n_dims, dims, initial);
}

lks_node *lksi_named_buffer(lks_graph *graph, const char *name, const char *part, int n_dims, const int64_t *dims,
                            double initial, double momentum) {
    char full_name[NAME_NBYTES];
    lks_status status = join(full_name, name, part);
    if (status != LKS_OK) return lksi_graph_poison(graph, status);
    return lks_buffer(graph, full_name, n_dims, dims, initial, momentum);
}

int64_t lksi_last_dim(const lks_node *x) { return lks_node_dim(x, lks_node_n_dims(x) - 1); }
