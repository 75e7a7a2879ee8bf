/* Nodes in words, for ranks that built different models and are to see where. */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <string.h>

static const char *leaf_kind(lksi_op op) {
    return op == LKSI_OP_INPUT ? "input" : op == LKSI_OP_BUFFER ? "buffer" : "parameter";
}

static size_t append(char *text, size_t text_nbytes, size_t used, const char *format, ...) LKS_PRINTF(4, 5);
static size_t append(char *text, size_t text_nbytes, size_t used, const char *format, ...) {
    if (used >= text_nbytes) return used;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + used, text_nbytes - used, format, arguments);
    va_end(arguments);
    return used + (size_t)length;
}

static uint64_t hash_of(const lksi_attributes *attributes) {
    return lksi_hash64(LKSI_HASH_START, attributes, sizeof *attributes);
}

static void describe_value(const lks_node *node, char *text, size_t text_nbytes) {
    const lksi_tensor *tensor = &node->outputs[0];
    size_t used = 0;
    if (node->name == NULL) used = append(text, text_nbytes, used, "%s ", lksi_op_name(node->op));
    used = append(text, text_nbytes, used, "%s (", lks_type_name(tensor->type));
    for (int i = 0; i < tensor->n_dims; i++) {
        if (i > 0) used = append(text, text_nbytes, used, ",");
        used = tensor->dims[i] == LKS_BATCH ? append(text, text_nbytes, used, "N")
                                            : append(text, text_nbytes, used, "%lld", (long long)tensor->dims[i]);
    }
    used = append(text, text_nbytes, used, ")");
    for (int i = 0; i < node->n_inputs; i++)
        used = append(text, text_nbytes, used, "%s%d", i == 0 ? " of " : ",", node->inputs[i]->id);
    uint64_t attributes = hash_of(&node->attributes);
    if (attributes != hash_of(&(lksi_attributes){0}))
        used = append(text, text_nbytes, used, " #%08" PRIx32, (uint32_t)(attributes ^ attributes >> 32));
    if (node->op == LKSI_OP_BUFFER) (void)append(text, text_nbytes, used, " %.17g", node->momentum);
}

bool lksi_graph_describe(const lks_graph *graph, size_t index, lksi_description *description) {
    if (index >= graph->n_nodes) return false;
    const lks_node *node = graph->nodes[index];
    *description = (lksi_description){.is_leaf = node->name != NULL};
    if (node->name != NULL)
        snprintf(description->name, sizeof description->name, "%s %s", leaf_kind(node->op), node->name);
    else
        snprintf(description->name, sizeof description->name, "node %d", node->id);
    describe_value(node, description->what, sizeof description->what);
    return true;
}
