/* Describes nodes as text, so that ranks that built different models can find the first difference. */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <string.h>

static const char *leaf_kind(lksi_op op) {
    return op == LKSI_OP_INPUT ? "input" : op == LKSI_OP_BUFFER ? "buffer" : "parameter";
}

static uint64_t hash_of(const lksi_attributes *attributes) {
    return lksi_hash64(LKSI_HASH_START, attributes, sizeof *attributes);
}

static void describe_value(const lks_node *node, char *text, size_t text_nbytes) {
    const lksi_tensor *tensor = &node->outputs[0];
    if (node->name == NULL) lksi_append(text, text_nbytes, "%s ", lksi_op_name(node->op));
    lksi_append(text, text_nbytes, "%s (", lks_type_name(tensor->type));
    for (int i = 0; i < tensor->n_dims; i++) {
        if (i > 0) lksi_append(text, text_nbytes, ",");
        if (tensor->dims[i] == LKS_BATCH)
            lksi_append(text, text_nbytes, "N");
        else
            lksi_append(text, text_nbytes, "%lld", (long long)tensor->dims[i]);
    }
    lksi_append(text, text_nbytes, ")");
    for (int i = 0; i < node->n_inputs; i++)
        lksi_append(text, text_nbytes, "%s%d", i == 0 ? " of " : ",", node->inputs[i]->id);
    uint64_t attributes = hash_of(&node->attributes);
    if (attributes != hash_of(&(lksi_attributes){0}))
        lksi_append(text, text_nbytes, " #%08" PRIx32, (uint32_t)(attributes ^ attributes >> 32));
    if (node->op == LKSI_OP_BUFFER) lksi_append(text, text_nbytes, " %.17g", node->momentum);
    if (node->custom != NULL) lksi_append(text, text_nbytes, " '%s'", lksi_custom_name(node->custom));
}

void lksi_describe_leaf(const char *kind, const char *name, int number, char text[LKSI_NODE_NAME_NBYTES]) {
    char end[24];
    size_t n_end = (size_t)snprintf(end, sizeof end, "... %d", number);
    int length = snprintf(text, LKSI_NODE_NAME_NBYTES, "%s %s", kind, name);
    if (length >= LKSI_NODE_NAME_NBYTES) memcpy(text + LKSI_NODE_NAME_NBYTES - 1 - n_end, end, n_end);
}

bool lksi_graph_describe(const lks_graph *graph, size_t index, lksi_description *description) {
    if (index >= graph->n_nodes) return false;
    const lks_node *node = graph->nodes[index];
    *description = (lksi_description){.is_leaf = node->name != NULL};
    if (node->name != NULL)
        lksi_describe_leaf(leaf_kind(node->op), node->name, node->id, description->name);
    else
        snprintf(description->name, sizeof description->name, "node %d", node->id);
    describe_value(node, description->what, sizeof description->what);
    return true;
}
