/* Errors of constructors. The names of nearby parameters say where in the model they occurred. */
#include "graph/graph_internal.h"

#include <string.h>

static bool is_stored(const lks_node *node) { return node->op == LKSI_OP_PARAMETER || node->op == LKSI_OP_BUFFER; }

/* The input whose name locates the node best. A parameter belongs to the node's own layer, so it is preferred. Among
 * equal inputs, the one created last is of the nearest layer. */
static const lks_node *nearest_input(const lks_node *node) {
    const lks_node *nearest = NULL;
    for (int i = 0; i < node->n_inputs; i++) {
        const lks_node *input = node->inputs[i];
        if (input->op == LKSI_OP_RANDOM) continue; /* has no name and is shared by all dropouts */
        bool is_nearer = nearest == NULL || is_stored(input) > is_stored(nearest) ||
                         (is_stored(input) == is_stored(nearest) && input->id > nearest->id);
        if (is_nearer) nearest = input;
    }
    return nearest;
}

typedef struct name_part {
    const char *begin; /* NULL: no name */
    size_t nbytes;
} name_part;

/* The name of an input, or of the layer that computes the node: a parameter's name up to its last dot. */
static name_part nearest_name(const lks_node *node) {
    while (node != NULL && node->n_inputs > 0) node = nearest_input(node);
    if (node == NULL || node->name == NULL) return (name_part){NULL, 0};
    const char *dot = is_stored(node) ? strrchr(node->name, '.') : NULL;
    return (name_part){node->name, dot != NULL ? (size_t)(dot - node->name) : strlen(node->name)};
}

static bool is_among(name_part name, const name_part *names, int n_names) {
    for (int i = 0; i < n_names; i++)
        if (names[i].nbytes == name.nbytes && memcmp(names[i].begin, name.begin, name.nbytes) == 0) return true;
    return false;
}

lks_node *lksi_graph_refuse(lks_node *const *inputs, int n_inputs, lks_status status) {
    name_part names[LKSI_MAX_INPUTS];
    int n_names = 0;
    lks_graph *graph = NULL;
    for (int i = 0; i < n_inputs; i++) {
        name_part name = nearest_name(inputs[i]);
        if (graph == NULL) graph = lks_node_graph(inputs[i]);
        if (name.begin != NULL && !is_among(name, names, n_names)) names[n_names++] = name;
    }
    char of[512] = "";
    for (int i = 0; i < n_names; i++) {
        const char *before = i == 0 ? " of " : i + 1 < n_names ? ", " : " and ";
        lksi_append(of, sizeof of, "%s'%.*s'", before, (int)names[i].nbytes, names[i].begin);
    }
    const char *text = lksi_error_text();
    int word = (int)strcspn(text, " :");
    return lksi_graph_poison(graph, lksi_error(status, "%.*s%s%s", word, text, of, text + word));
}
