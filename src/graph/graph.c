/* Building a graph: nodes, their shapes, and the poison node that carries the first error. */
#include "graph/graph_internal.h"

#include <lockstep/operators.h>
#include <math.h>
#include <string.h>

/* The poison node for errors without a graph, and the error. The error is per thread: one thread builds a model. */
static lks_node no_node;
static _Thread_local lks_status no_node_status;
static _Thread_local char no_node_error[256];

lks_graph *lks_graph_create(lks_device *device) {
    lks_graph *graph = lksi_alloc(sizeof *graph);
    if (graph == NULL) return NULL;
    graph->device = device != NULL ? device : lks_device_default(NULL);
    graph->poison = (lks_node){.graph = graph, .id = -1};
    return graph;
}

void lks_graph_destroy(lks_graph *graph) {
    if (graph == NULL) return;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        lksi_custom_destroy(graph->nodes[i]->custom);
        lksi_free(graph->nodes[i]->name);
        lksi_free(graph->nodes[i]);
    }
    lksi_free(graph->nodes);
    lksi_free(graph->error);
    lksi_free(graph);
}

lks_node *lksi_graph_poison(lks_graph *graph, lks_status status) {
    if (graph == NULL) {
        no_node_status = status;
        snprintf(no_node_error, sizeof no_node_error, "%s", lksi_error_text());
        return &no_node;
    }
    if (graph->status == LKS_OK) {
        graph->status = status;
        graph->error = lksi_strdup(lksi_error_text());
    }
    return &graph->poison;
}

lks_status lksi_graph_check(lks_graph *graph) {
    if (graph->status == LKS_OK) return LKS_OK;
    return lksi_error(graph->status, "%s", graph->error != NULL ? graph->error : lks_status_text(graph->status));
}

lks_status lksi_node_check(const lks_node *node, const char *what) {
    if (node == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s is NULL", what);
    if (node != &no_node) return lksi_graph_check(node->graph);
    if (no_node_status != LKS_OK) return lksi_error(no_node_status, "%s", no_node_error);
    /* no_node came from another thread, or was made from a NULL node. */
    return lksi_error(LKS_ERR_ARGUMENT, "%s was made from a node that is NULL", what);
}

lks_node *lksi_node_given(lks_node *node, const char *what) {
    if (node != NULL) return node;
    return lksi_graph_poison(NULL, lksi_error(LKS_ERR_ARGUMENT, "%s: input 0 is NULL", what));
}

bool lksi_node_is_poison(const lks_node *node) { return node == NULL || node->id < 0 || node->graph == NULL; }
int64_t lksi_row_count(const lks_node *node) {
    int64_t count = 1;
    for (int i = 1; i < lks_node_n_dims(node); i++) count *= lks_node_dim(node, i);
    return count;
}

size_t lksi_row_nbytes(const lks_node *node) {
    return (size_t)lksi_row_count(node) * lks_type_nbytes(lks_node_type(node));
}

bool lksi_node_is_input(const lks_node *node) { return !lksi_node_is_poison(node) && node->op == LKSI_OP_INPUT; }
lks_device *lksi_graph_device(const lks_graph *graph) { return graph->device; }
lks_graph *lks_node_graph(lks_node *node) { return node != NULL ? node->graph : NULL; }
lks_type lks_node_type(const lks_node *node) { return node != NULL ? node->outputs[0].type : (lks_type)0; }
int lks_node_n_dims(const lks_node *node) { return node != NULL ? node->outputs[0].n_dims : 0; }

int64_t lks_node_dim(const lks_node *node, int i) {
    return i >= 0 && i < lks_node_n_dims(node) ? node->outputs[0].dims[i] : 0;
}

/* --- constructors --- */

static lks_node *append(lks_graph *graph, const lks_node *filled) {
    if (lksi_grow((void **)&graph->nodes, &graph->capacity, graph->n_nodes + 1, sizeof *graph->nodes) != LKS_OK)
        return lksi_graph_poison(graph, LKS_ERR_MEMORY);
    lks_node *node = lksi_alloc(sizeof *node);
    if (node == NULL) return lksi_graph_poison(graph, LKS_ERR_MEMORY);
    *node = *filled;
    node->graph = graph;
    node->id = (int)graph->n_nodes;
    graph->nodes[graph->n_nodes++] = node;
    return node;
}

lks_status lksi_check_name(const char *name, const char *what) {
    if (name == NULL || name[0] == '\0') return lksi_error(LKS_ERR_ARGUMENT, "%s has no name", what);
    for (size_t i = 0; name[i] != '\0'; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f) /* not echoed in the error text: terminals interpret it */
            return lksi_error(LKS_ERR_ARGUMENT, "the name of %s has a control character (%d) at %zu", what, name[i], i);
    for (size_t i = 0, end = strlen(name), nbytes; i < end; i += nbytes) {
        nbytes = lksi_utf8_nbytes(name + i, end - i);
        if (nbytes == 0)
            return lksi_error(LKS_ERR_ARGUMENT, "the name of %s has byte 0x%02x at %zu, which is not valid UTF-8", what,
                              (unsigned char)name[i], i);
    }
    return LKS_OK;
}

/* Names become keys in files, and no file could be read back that has one of these. */
static lks_status check_leaf_name(const char *name) {
    LKS_TRY(lksi_check_name(name, "an input or parameter"));
    if (strcmp(name, "__metadata__") == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "no input or parameter can be named '%s': safetensors files need that name",
                          name);
    return LKS_OK;
}

lks_status lksi_check_dims(const char *name, int n_dims, const int64_t *dims, bool may_have_batch) {
    if (n_dims < 0 || n_dims > LKSI_MAX_DIMS)
        return lksi_error(LKS_ERR_SHAPE, "'%s' has %d dimensions; 0 to %d are possible", name, n_dims, LKSI_MAX_DIMS);
    if (n_dims > 0 && dims == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "'%s' has %d dimensions, but dims is NULL", name, n_dims);
    for (int i = 0; i < n_dims; i++)
        if (dims[i] < 1 && !(may_have_batch && i == 0 && dims[i] == LKS_BATCH))
            return lksi_error(LKS_ERR_SHAPE, "dimension %d of '%s' is %lld", i, name, (long long)dims[i]);
    return LKS_OK;
}

static lks_status check_leaf(const lks_graph *graph, const char *name, lks_type type, int n_dims, const int64_t *dims,
                             bool may_have_batch) {
    LKS_TRY(check_leaf_name(name));
    for (size_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i]->name != NULL && strcmp(graph->nodes[i]->name, name) == 0)
            return lksi_error(LKS_ERR_ARGUMENT, "two inputs or parameters are named '%s'", name);
    if (lks_type_nbytes(type) == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "'%s': %d is not an element type", name, (int)type);
    if (type == LKS_F16 || type == LKS_BF16)
        return lksi_error(LKS_ERR_UNSUPPORTED, "'%s': no operator reads %s; floating inputs are f32 or f64", name,
                          lks_type_name(type));
    LKS_TRY(lksi_check_dims(name, n_dims, dims, may_have_batch));
    lksi_tensor tensor = {.type = type, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) tensor.dims[i] = dims[i];
    return lksi_tensor_check(&tensor, 1, name);
}

static lks_status check_initial(const char *name, lks_type type, lks_initializer initial) {
    bool is_finite = isfinite(type == LKS_F64 ? initial.scale : (double)(float)initial.scale);
    switch (initial.kind) {
    case LKS_INITIAL_ZERO:
        return LKS_OK;
    case LKS_INITIAL_UNIFORM:
    case LKS_INITIAL_NORMAL:
        if (is_finite && initial.scale >= 0) return LKS_OK;
        return lksi_error(LKS_ERR_ARGUMENT,
                          "'%s': the scale of its initial values must be finite in %s and at least 0, not %g", name,
                          lks_type_name(type), initial.scale);
    case LKS_INITIAL_CONSTANT:
        if (is_finite) return LKS_OK;
        return lksi_error(LKS_ERR_ARGUMENT, "'%s': its initial value must be finite in %s, not %g", name,
                          lks_type_name(type), initial.scale);
    }
    return lksi_error(LKS_ERR_ARGUMENT, "'%s': %d is not a kind of initial values", name, (int)initial.kind);
}

static lks_status check_momentum(const char *name, double momentum) {
    if (momentum >= 0 && momentum <= 1) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "'%s': its momentum must be 0 to 1, not %g", name, momentum);
}

static lks_node *leaf(lks_graph *graph, lksi_op op, const char *name, lks_type type, int n_dims, const int64_t *dims,
                      lks_initializer initial, double momentum) {
    if (graph == NULL)
        return lksi_graph_poison(NULL, lksi_error(LKS_ERR_MEMORY, "out of memory: the graph could not be made"));
    lks_status status = check_leaf(graph, name, type, n_dims, dims, op == LKSI_OP_INPUT);
    if (status == LKS_OK) status = check_initial(name, type, initial);
    if (status == LKS_OK) status = check_momentum(name, momentum);
    if (status != LKS_OK) return lksi_graph_poison(graph, status);
    lks_node node = {.op = op, .initial = initial};
    node.outputs[0] = (lksi_tensor){.type = type, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) node.outputs[0].dims[i] = dims[i];
    node.momentum = momentum;
    node.name = lksi_strdup(name);
    if (node.name == NULL) return lksi_graph_poison(graph, LKS_ERR_MEMORY);
    lks_node *made = append(graph, &node);
    if (made == &graph->poison) lksi_free(node.name);
    return made;
}

lks_node *lks_input(lks_graph *graph, const char *name, lks_type type, int n_dims, const int64_t *dims) {
    if (graph != NULL && (type == LKS_F32 || type == LKS_F64)) type = graph->device->float_type;
    return leaf(graph, LKSI_OP_INPUT, name, type, n_dims, dims, (lks_initializer){LKS_INITIAL_ZERO, 0}, 0);
}

lks_node *lks_parameter(lks_graph *graph, const char *name, int n_dims, const int64_t *dims, lks_initializer initial) {
    lks_type type = graph != NULL ? graph->device->float_type : LKS_F32;
    return leaf(graph, LKSI_OP_PARAMETER, name, type, n_dims, dims, initial, 0);
}

lks_node *lks_buffer(lks_graph *graph, const char *name, int n_dims, const int64_t *dims, double initial,
                     double momentum) {
    lks_type type = graph != NULL ? graph->device->float_type : LKS_F32;
    return leaf(graph, LKSI_OP_BUFFER, name, type, n_dims, dims, (lks_initializer){LKS_INITIAL_CONSTANT, initial},
                momentum);
}

lks_node *lks_full(lks_graph *graph, double number, int n_dims, const int64_t *dims) {
    if (graph == NULL) return lksi_graph_poison(NULL, lksi_error(LKS_ERR_ARGUMENT, "full: the graph is NULL"));
    lks_node node = {.op = LKSI_OP_FULL, .attributes.number = number};
    node.outputs[0] = (lksi_tensor){.type = graph->device->float_type, .n_dims = n_dims};
    lks_status status = lksi_check_dims("full", n_dims, dims, true);
    for (int i = 0; status == LKS_OK && i < n_dims; i++) node.outputs[0].dims[i] = dims[i];
    if (status == LKS_OK) status = lksi_tensor_check(&node.outputs[0], 1, "full");
    return status == LKS_OK ? append(graph, &node) : lksi_graph_poison(graph, status);
}

lks_node *lksi_graph_random(lks_graph *graph) {
    for (size_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i]->op == LKSI_OP_RANDOM) return graph->nodes[i];
    return append(graph, &(lks_node){.op = LKSI_OP_RANDOM, .outputs[0] = {LKS_I64, 1, {3}}});
}

/* Whether all inputs are non-NULL nodes of one graph, and none is poison. Otherwise *answer is the node to return. */
static bool check_inputs(lksi_op op, lks_node *const *inputs, int n_inputs, lks_node **answer) {
    lks_graph *graph = NULL;
    for (int i = 0; i < n_inputs; i++) {
        if (inputs[i] != NULL && lksi_node_is_poison(inputs[i]))
            return *answer = inputs[i], false; /* poison in, poison out */
        if (inputs[i] != NULL && graph == NULL) graph = inputs[i]->graph;
    }
    lks_status status = LKS_OK;
    for (int i = 0; i < n_inputs && status == LKS_OK; i++) {
        if (inputs[i] == NULL)
            status = lksi_error(LKS_ERR_ARGUMENT, "%s: input %d is NULL", lksi_op_name(op), i);
        else if (inputs[i]->graph != graph)
            status = lksi_error(LKS_ERR_ARGUMENT, "%s: its inputs are nodes of two graphs", lksi_op_name(op));
    }
    if (status != LKS_OK) *answer = lksi_graph_refuse(inputs, n_inputs, status);
    return status == LKS_OK;
}

lks_node *lksi_graph_operate(lksi_op op, const lksi_attributes *attributes, lks_node *const *inputs, int n_inputs,
                             const lksi_tensor *result) {
    lks_node *answer;
    if (!check_inputs(op, inputs, n_inputs, &answer)) return answer;
    lks_graph *graph = inputs[0]->graph;
    lks_node node = {.op = op, .n_inputs = n_inputs};
    if (attributes != NULL) node.attributes = *attributes;
    lksi_tensor shapes[LKSI_MAX_INPUTS];
    for (int i = 0; i < n_inputs; i++) {
        node.inputs[i] = inputs[i];
        shapes[i] = inputs[i]->outputs[0];
    }
    lks_status status = LKS_OK;
    if (result != NULL) {
        node.outputs[0] = *result;
        status = lksi_tensor_check(result, 1, lksi_op_name(op));
    }
    if (status == LKS_OK) status = lksi_op_infer(op, attributes, shapes, n_inputs, node.outputs);
    if (status == LKS_OK) status = lksi_tensor_check(&node.outputs[0], 1, lksi_op_name(op));
    return status == LKS_OK ? append(graph, &node) : lksi_graph_refuse(inputs, n_inputs, status);
}
