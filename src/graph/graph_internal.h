/* What the files of graph/ share. */
#ifndef LKSI_GRAPH_INTERNAL_H
#define LKSI_GRAPH_INTERNAL_H

#include "graph/graph.h"

/* --- the graph as the user builds it --- */

struct lks_node {
    lks_graph *graph;
    int id; /* position in the graph: inputs come before their users */
    lksi_op op;
    char *name; /* inputs and parameters */
    int n_inputs;
    lks_node *inputs[LKSI_MAX_INPUTS];
    lksi_tensor outputs[LKSI_MAX_OUTPUTS];
    int n_outputs;
    lks_initializer initial;
};

struct lks_graph {
    lks_device *device;
    lks_node **nodes;
    size_t n_nodes, capacity;
    lks_node poison;
    lks_status status; /* the first error of a constructor, and its text */
    char *error;
};

/* The graph's first error again, if it had one. */
lks_status lksi_graph_check(lks_graph *graph);

/* --- the intermediate form that is differentiated and lowered --- */

typedef enum lksi_role { LKSI_TEMPORARY, LKSI_INPUT, LKSI_PARAMETER, LKSI_GRADIENT, LKSI_SEED } lksi_role;

typedef struct lksi_ir_value {
    lksi_tensor tensor;
    lksi_role role;
    int index;       /* of the graph node (input, parameter), or of the parameter's node (gradient) */
    lksi_value root; /* the value whose memory it is: itself, or what was reshaped */
    bool needs_gradient;
} lksi_ir_value;

typedef struct lksi_ir_node {
    lksi_op op;
    int n_inputs, n_outputs;
    lksi_value inputs[LKSI_MAX_INPUTS], outputs[LKSI_MAX_OUTPUTS];
    lksi_op epilogues[4];
    int n_epilogues;
    bool is_removed; /* swallowed as an epilogue, or a reshape, or unused */
} lksi_ir_node;

typedef struct lksi_ir {
    lks_graph *graph;
    int64_t batch;
    lksi_ir_value *values;
    size_t n_values, value_capacity;
    lksi_ir_node *nodes;
    size_t n_nodes, node_capacity;
    size_t n_forward;        /* nodes of the forward pass; backward follows */
    lksi_value *node_values; /* per graph node: its first output here, or LKSI_NO_VALUE */
    int *final_order;        /* graph nodes of the parameters, in the order their gradients become final */
    int n_final;
} lksi_ir;

/* Forward: what `outputs` depend on, at `batch` samples. */
lks_status lksi_ir_create(lksi_ir *ir, lks_graph *graph, int64_t batch, lks_node *const *outputs, int n_outputs);
void lksi_ir_destroy(lksi_ir *ir);
/* Appends the backward pass of `loss`. */
lks_status lksi_ir_differentiate(lksi_ir *ir, const lks_node *loss);

/* Appends; LKSI_NO_VALUE or an error when memory is out. */
lksi_value lksi_ir_add_value(lksi_ir *ir, lksi_tensor tensor, lksi_role role, int index);
lksi_ir_node *lksi_ir_add_node(lksi_ir *ir, lksi_op op, const lksi_value *inputs, int n_inputs);

/* --- memory plan --- */

typedef struct lksi_interval {
    size_t nbytes;
    int first, last; /* steps in which the memory is in use, both included */
    size_t offset;   /* the answer */
} lksi_interval;

/* Places the intervals so that none that live at once overlap; gives the size of the whole. */
lks_status lksi_plan_memory(lksi_interval *intervals, size_t n_intervals, size_t *nbytes);

/* --- the store --- */

typedef struct lksi_slot {
    lks_node *node;
    size_t offset; /* elements, in the flat arrays */
    int64_t count;
} lksi_slot;

struct lks_store {
    lks_graph *graph;
    lksi_store_memory memory;
    lksi_slot *slots; /* gradient-ready order */
    int n_slots;
    size_t padded_count;
    void *values, *gradients;
};

#endif
