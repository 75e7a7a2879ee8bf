/* Constructors of losses. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>

lks_node *lks_cross_entropy_with(lks_node *logits, lks_node *labels, const lks_cross_entropy_options *options) {
    static const lks_cross_entropy_options none;
    if (options == NULL) options = &none;
    lksi_attributes attributes = {.has_ignored = options->has_ignored != 0,
                                  .ignored = options->has_ignored != 0 ? options->ignored : 0,
                                  .smoothing = options->label_smoothing};
    return lksi_graph_operate(LKSI_OP_CROSS_ENTROPY, &attributes, (lks_node *[]){logits, labels}, 2, NULL);
}

lks_node *lks_cross_entropy(lks_node *logits, lks_node *labels) { return lks_cross_entropy_with(logits, labels, NULL); }

static bool reads(const lks_node *node, int input, const lks_node *leaf) {
    const lks_node *from = node->inputs[input];
    while (from->op == LKSI_OP_RESHAPE) from = from->inputs[0];
    return from == leaf;
}

bool lksi_node_ignored_label(const lks_node *labels, int32_t *ignored) {
    const lks_graph *graph = labels->graph;
    for (size_t i = 0; graph != NULL && i < graph->n_nodes; i++) {
        const lks_node *node = graph->nodes[i];
        if (node->op != LKSI_OP_CROSS_ENTROPY || !reads(node, 1, labels)) continue;
        *ignored = (int32_t)node->attributes.ignored;
        return node->attributes.has_ignored != 0;
    }
    return false;
}

lks_node *lks_count_correct(lks_node *logits, lks_node *labels) {
    return lksi_graph_operate(LKSI_OP_COUNT_CORRECT, NULL, (lks_node *[]){logits, labels}, 2, NULL);
}

lks_node *lksi_count_correct_of_counted(lks_node *logits, lks_node *labels) {
    int32_t ignored = 0;
    lksi_attributes attributes = {.has_ignored = lksi_node_ignored_label(labels, &ignored)};
    if (attributes.has_ignored != 0) attributes.ignored = ignored;
    return lksi_graph_operate(LKSI_OP_COUNT_CORRECT, &attributes, (lks_node *[]){logits, labels}, 2, NULL);
}

lks_node *lks_mse(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_MSE, NULL, (lks_node *[]){a, b}, 2, NULL);
}

lks_node *lks_bce_with_logits(lks_node *x, lks_node *targets) {
    return lksi_graph_operate(LKSI_OP_BCE_WITH_LOGITS, NULL, (lks_node *[]){x, targets}, 2, NULL);
}
