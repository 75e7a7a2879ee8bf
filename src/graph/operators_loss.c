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

/* Whether the elements of `node` are those of `leaf`, in any order. */
static bool has_elements_of(const lks_node *node, const lks_node *leaf) {
    while (node->op == LKSI_OP_RESHAPE || node->op == LKSI_OP_TRANSPOSE) node = node->inputs[0];
    return node == leaf;
}

static lks_status depends_on(lks_node *node, const lks_node *leaf, bool *answer) {
    const lks_graph *graph = node->graph;
    bool *is_needed = lksi_alloc_array(graph->n_nodes, sizeof *is_needed);
    if (is_needed == NULL) return LKS_ERR_MEMORY;
    lksi_graph_mark_needed(graph, &node, 1, is_needed);
    *answer = is_needed[leaf->id];
    lksi_free(is_needed);
    return LKS_OK;
}

/* Adds what one cross entropy ignores. `first` is the first one that reads the labels themselves, or NULL. */
static lks_status add_ignored(const lks_node *entropy, const lks_node *labels, const lks_node **first,
                              lksi_ignored *ignored) {
    const lksi_attributes *a = &entropy->attributes;
    bool has_ignored = a->has_ignored != 0, is_computed;
    if (!has_elements_of(entropy->inputs[1], labels)) {
        LKS_TRY(depends_on(entropy->inputs[1], labels, &is_computed));
        if (is_computed && has_ignored)
            ignored->obstacle = "the loss ignores a label in a tensor that is computed from them; let the batches have "
                                "the labels that the loss reads";
        return LKS_OK;
    }
    if (*first != NULL && (ignored->is_any != has_ignored || ignored->label != a->ignored))
        ignored->obstacle = "the loss depends on two cross entropies that do not ignore the same label";
    *first = entropy;
    ignored->is_any = has_ignored;
    ignored->label = (int32_t)a->ignored;
    return LKS_OK;
}

lks_status lksi_loss_find_ignored(lks_node *loss, const lks_node *labels, lksi_ignored *ignored) {
    LKS_TRY(lksi_node_check(labels, "the labels"));
    const lks_graph *graph = loss->graph;
    const lks_node *first = NULL;
    lks_status status = LKS_OK;
    bool *is_needed = lksi_alloc_array(graph->n_nodes, sizeof *is_needed);
    if (is_needed == NULL) return LKS_ERR_MEMORY;
    *ignored = (lksi_ignored){0};
    lksi_graph_mark_needed(graph, &loss, 1, is_needed);
    for (size_t i = 0; i < graph->n_nodes && status == LKS_OK; i++)
        if (is_needed[i] && graph->nodes[i]->op == LKSI_OP_CROSS_ENTROPY)
            status = add_ignored(graph->nodes[i], labels, &first, ignored);
    lksi_free(is_needed);
    return status;
}

lks_node *lks_count_correct(lks_node *logits, lks_node *labels) {
    return lksi_graph_operate(LKSI_OP_COUNT_CORRECT, NULL, (lks_node *[]){logits, labels}, 2, NULL);
}

lks_node *lksi_count_correct_of_counted(lks_node *logits, lks_node *labels, const lksi_ignored *ignored) {
    lksi_attributes attributes = {.has_ignored = ignored->is_any, .ignored = ignored->label};
    return lksi_graph_operate(LKSI_OP_COUNT_CORRECT, &attributes, (lks_node *[]){logits, labels}, 2, NULL);
}

lks_node *lks_mse(lks_node *a, lks_node *b) {
    return lksi_graph_operate(LKSI_OP_MSE, NULL, (lks_node *[]){a, b}, 2, NULL);
}

lks_node *lks_bce_with_logits(lks_node *x, lks_node *targets) {
    return lksi_graph_operate(LKSI_OP_BCE_WITH_LOGITS, NULL, (lks_node *[]){x, targets}, 2, NULL);
}
