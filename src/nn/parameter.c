/* Names of parameters, as PyTorch gives them: the layer's, a dot, the parameter's. */
#include "nn/nn_internal.h"

enum { NAME_NBYTES = 256 };

lks_node *lksi_named_parameter(lks_graph *graph, const char *name, const char *part, int n_dims, const int64_t *dims,
                               lks_initializer initial) {
    char full_name[NAME_NBYTES];
    if (snprintf(full_name, sizeof full_name, "%s.%s", name, part) >= NAME_NBYTES)
        return lksi_graph_poison(graph, lksi_error(LKS_ERR_ARGUMENT, "the name '%s.%s' is longer than %d bytes", name,
                                                   part, NAME_NBYTES - 1));
    return lks_parameter(graph, full_name, n_dims, dims, initial);
}

int64_t lksi_last_dim(const lks_node *x) { return lks_node_dim(x, lks_node_n_dims(x) - 1); }
