/* Constructor of dropout. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

/* Each dropout of a graph uses its own random stream: its number in the graph. */
static uint64_t next_stream(const lks_graph *graph) {
    uint64_t n_before = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) n_before += graph->nodes[i]->op == LKSI_OP_DROPOUT;
    return n_before;
}

lks_node *lks_dropout(lks_node *x, double probability) {
    lks_graph *graph = lks_node_graph(x);
    if (lksi_node_is_poison(x)) return lksi_node_given(x, "dropout");
    if (lks_node_dim(x, 0) != LKS_BATCH) {
        char shape[128];
        lksi_tensor_format(&x->outputs[0], shape, sizeof shape);
        return lksi_graph_refuse(
            &x, 1,
            lksi_error(LKS_ERR_SHAPE,
                       "dropout takes a tensor (N,...), N the batch, not %s: its random draws depend on the sample",
                       shape));
    }
    if (probability == 0) return x;
    lksi_attributes attributes = {.probability = probability, .stream = next_stream(graph)};
    return lksi_graph_operate(LKSI_OP_DROPOUT, &attributes, (lks_node *[]){x, lksi_graph_random(graph)}, 2, NULL);
}
