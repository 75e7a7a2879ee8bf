/* Describes nodes as text, so that ranks that built different models can find the first difference. */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

/* A field of the attributes: `count` values of 8 bytes; 0: as many as the result has dimensions. From `number` on they
 * are doubles. */
typedef struct field {
    const char *name;
    size_t offset;
    int count;
} field;

#define FIELD(name, count)                                                                                             \
    { #name, offsetof(lksi_attributes, name), count }
static const field fields[] = {
    FIELD(stride, 2),      FIELD(padding, 2),     FIELD(dilation, 2),    FIELD(window, 2),
    FIELD(groups, 1),      FIELD(axis, 1),        FIELD(begin, 1),       FIELD(end, 1),
    FIELD(order, 0),       FIELD(axes, 1),        FIELD(keep_dims, 1),   FIELD(transpose_a, 1),
    FIELD(transpose_b, 1), FIELD(is_causal, 1),   FIELD(is_relu, 1),     FIELD(is_synchronised, 1),
    FIELD(is_detached, 1), FIELD(has_ignored, 1), FIELD(ignored, 1),     FIELD(stream, 1),
    FIELD(number, 1),      FIELD(epsilon, 1),     FIELD(probability, 1), FIELD(smoothing, 1),
    FIELD(scale, 4),       FIELD(shift, 4),
};

static const char *leaf_kind(lksi_op op) {
    return op == LKSI_OP_INPUT ? "input" : op == LKSI_OP_BUFFER ? "buffer" : "parameter";
}

static uint64_t hash_of(const lksi_attributes *attributes) {
    return lksi_hash64(LKSI_HASH_START, attributes, sizeof *attributes);
}

/* Appends the field's values if one of them is not 0. */
static void append_field(const field *f, const lks_node *node, char *text, size_t text_nbytes) {
    const char *at = (const char *)&node->attributes + f->offset;
    int count = f->count > 0 ? f->count : node->outputs[0].n_dims;
    int64_t integers[LKSI_MAX_DIMS] = {0};
    double reals[LKSI_MAX_DIMS];
    memcpy(integers, at, (size_t)count * sizeof *integers);
    memcpy(reals, at, (size_t)count * sizeof *reals);
    bool is_set = false;
    for (int i = 0; i < count; i++) is_set = is_set || integers[i] != 0;
    if (!is_set) return;
    lksi_append(text, text_nbytes, " %s", f->name);
    for (int i = 0; i < count; i++) {
        if (f->offset >= offsetof(lksi_attributes, number))
            lksi_append(text, text_nbytes, "%s%g", i == 0 ? " " : ",", reals[i]);
        else
            lksi_append(text, text_nbytes, "%s%" PRId64, i == 0 ? " " : ",", integers[i]);
    }
}

/* Their values, and their hash, because numbers are rounded. */
static void append_attributes(const lks_node *node, char *text, size_t text_nbytes) {
    uint64_t hash = hash_of(&node->attributes);
    if (hash == hash_of(&(lksi_attributes){0})) return;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) append_field(&fields[i], node, text, text_nbytes);
    lksi_append(text, text_nbytes, " #%08" PRIx32, (uint32_t)(hash ^ hash >> 32));
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
    append_attributes(node, text, text_nbytes);
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
