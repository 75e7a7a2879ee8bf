/* A warning about parameters that a model has and that nothing trains. */
#include "graph/graph_internal.h"

/* Other scalars may be losses of other stores, or metrics: what they depend on was not forgotten. */
static bool may_be_loss(const lks_node *node) { return node->n_inputs > 0 && node->outputs[0].n_dims == 0; }

static void warn(const lks_graph *graph, const bool *is_needed) {
    enum { MOST_NAMES = 4 };
    char names[512] = "";
    int n = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->op != LKSI_OP_PARAMETER || is_needed[i]) continue;
        if (n++ < MOST_NAMES) lksi_append(names, sizeof names, "%s'%s'", n == 1 ? "" : ", ", graph->nodes[i]->name);
    }
    if (n == 0) return;
    lksi_log(LKS_LOG_WARNING, "no loss made so far depends on %d parameter%s of the model, which %s not trained: %s%s",
             n, n == 1 ? "" : "s", n == 1 ? "is" : "are", names, n > MOST_NAMES ? ", ..." : "");
}

lks_status lksi_graph_warn_of_unused(lks_node *loss) {
    const lks_graph *graph = loss->graph;
    bool *is_needed = lksi_alloc_array(graph->n_nodes, sizeof *is_needed);
    if (is_needed == NULL) return LKS_ERR_MEMORY;
    for (size_t i = 0; i < graph->n_nodes; i++) is_needed[i] = may_be_loss(graph->nodes[i]);
    lksi_graph_mark_needed(graph, &loss, 1, is_needed);
    warn(graph, is_needed);
    lksi_free(is_needed);
    return LKS_OK;
}
