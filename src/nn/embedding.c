/* Embedding as a layer: a vector per word. */
#include "nn/nn_internal.h"

lks_node *lks_embedding(lks_node *index, int64_t n_words, int64_t n_features, const char *name,
                        const lks_initializer *weight) {
    index = lksi_layer_input(index, "embedding", name);
    if (lksi_node_is_poison(index)) return index;
    lks_initializer like_torch = {LKS_INITIAL_NORMAL, 1.0};
    lks_node *table = lksi_named_parameter(lks_node_graph(index), name, "weight", 2, (int64_t[]){n_words, n_features},
                                           weight != NULL ? *weight : like_torch);
    return lks_embedding_function(index, table);
}
