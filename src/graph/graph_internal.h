/* What the files of graph/ share. */
#ifndef LKSI_GRAPH_INTERNAL_H
#define LKSI_GRAPH_INTERNAL_H

#include "graph/graph.h"

/* --- the graph as the user builds it --- */

typedef struct lksi_custom lksi_custom;

struct lks_node {
    lks_graph *graph;
    int id; /* position in the graph: inputs come before their users */
    lksi_op op;
    lksi_attributes attributes;
    char *name; /* inputs, parameters and buffers */
    int n_inputs;
    lks_node *inputs[LKSI_MAX_INPUTS];
    lksi_tensor outputs[LKSI_MAX_OUTPUTS];
    int n_outputs;
    lks_initializer initial;
    double momentum;     /* buffers */
    lksi_custom *custom; /* custom operators: the node owns it */
};

struct lks_graph {
    lks_device *device;
    lks_node **nodes;
    size_t n_nodes, capacity;
    lks_node poison;
    lks_status status; /* the first error of a constructor, and its text */
    char *error;
};

/* An operator node. `attributes` NULL: all 0; `result`: its shape where the catalogue says "given". Poison in, poison
 * out; an input that is NULL is an error of its own. */
lks_node *lksi_graph_operate(lksi_op op, const lksi_attributes *attributes, lks_node *const *inputs, int n_inputs,
                             const lksi_tensor *result);

/* Poison for an operator on these inputs (NULL and poison may be among them), for the error that has just been made:
 * its text, which begins with the operator's name, goes on with theirs or those of the layers that they come from, as
 * in "add of 'conv7' and 'conv6' takes ...". */
lks_node *lksi_graph_refuse(lks_node *const *inputs, int n_inputs, lks_status status);

/* A name that can be printed. LKS_ERR_ARGUMENT, which says `what` has it. */
lks_status lksi_check_name(const char *name, const char *what);

/* Accepts NULL. */
void lksi_custom_destroy(lksi_custom *custom);
const char *lksi_custom_name(const lksi_custom *custom);
/* LKS_ERR_UNSUPPORTED if a custom operator has no backward function. */
lks_status lksi_custom_check_backward(const lks_graph *graph, const lksi_attributes *attributes);

/* The graph's leaf that tells dropout where in training it is; made when first asked for. */
lks_node *lksi_graph_random(lks_graph *graph);

/* The graph's first error again, if it had one. */
lks_status lksi_graph_check(lks_graph *graph);

/* --- the intermediate form that is differentiated and lowered --- */

/* Buffers are parameters here: what a gradient rule gives for one is the statistic of this batch. */
typedef enum lksi_role {
    LKSI_TEMPORARY,
    LKSI_INPUT,
    LKSI_PARAMETER,
    LKSI_GRADIENT,
    LKSI_SEED,
    LKSI_BUFFER_WEIGHT,
    LKSI_RANDOM
} lksi_role;

typedef struct lksi_ir_value {
    lksi_tensor tensor;
    lksi_role role;
    int index;          /* of the graph node (input, parameter), or of the parameter's node (gradient) */
    lksi_value root;    /* the value whose memory it is: itself, or what was reshaped; an alias is row-major */
    lksi_layout layout; /* of a root: how it lies in memory */
    bool needs_gradient;
} lksi_ir_value;

typedef struct lksi_ir_node {
    lksi_op op;
    lksi_attributes attributes;
    int n_inputs, n_outputs;
    lksi_value inputs[LKSI_MAX_INPUTS], outputs[LKSI_MAX_OUTPUTS];
    bool is_removed; /* swallowed as an epilogue, or a reshape, or unused */
} lksi_ir_node;

typedef struct lksi_ir {
    lks_graph *graph;
    int64_t batch;
    bool is_training;
    lksi_ir_value *values;
    size_t n_values, value_capacity;
    lksi_ir_node *nodes;
    size_t n_nodes, node_capacity;
    size_t n_forward;        /* nodes of the forward pass; backward follows */
    lksi_value *node_values; /* per graph node: its first output here, or LKSI_NO_VALUE */
    int *final_order;        /* graph nodes of the parameters, in the order their gradients become final, */
    int n_final;
    int n_still;                     /* and behind them those that have none: what they do is detached */
    lks_node *const *differentiated; /* the caller's: inputs that have a gradient, too, */
    int n_differentiated;
    lksi_value *input_gradients; /* which is this */
} lksi_ir;

/* Forward: `outputs` and what they depend on, at `batch` samples, as it is in training or in evaluation (where dropout
 * passes everything and batch norm goes by its running statistics). `options`: which inputs are differentiated; the
 * graph and the nodes must live as long. */
lks_status lksi_ir_create(lksi_ir *ir, lks_graph *graph, const lks_program_options *options, lks_node *const *outputs,
                          int n_outputs);
void lksi_ir_destroy(lksi_ir *ir);
/* Appends the backward pass of `loss`, and what keeps other buffers as they are. */
lks_status lksi_ir_differentiate(lksi_ir *ir, const lks_node *loss);

static inline lksi_value lksi_ir_root(const lksi_ir *ir, lksi_value value) { return ir->values[value].root; }
bool lksi_ir_makes(const lksi_ir_node *node, lksi_value value); /* whether it is one of the node's outputs */
/* The node that makes the value, of the first `before`; NULL: none. */
lksi_ir_node *lksi_ir_producer(const lksi_ir *ir, lksi_value value, size_t before);

/* Appends; LKSI_NO_VALUE when memory is out. */
lksi_value lksi_ir_add_value(lksi_ir *ir, lksi_tensor tensor, lksi_role role, int index);

/* Questions to a device: the node as it is, without layouts; a tensor from one layout into another. */
lksi_lowering lksi_ir_lowering(const lksi_ir *ir, const lksi_ir_node *node);
lksi_lowering lksi_reorder_lowering(const lksi_tensor *tensor, lksi_layout from, lksi_layout to);

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
    size_t offset;      /* elements, in the flat arrays */
    int64_t count;      /* logical elements */
    lksi_layout layout; /* how they lie there */
} lksi_slot;

struct lks_store {
    lks_graph *graph;
    lksi_store_memory memory;
    lksi_slot *slots; /* parameters in gradient-ready order, then buffers */
    int n_slots, n_parameters;
    size_t padded_count, buffer_begin; /* elements; buffers lie from buffer_begin on */
    void *values, *gradients;
    uint64_t n_swaps;     /* of these two */
    bool is_trained;      /* a gradient reaches a parameter */
    bool is_torn;         /* an update of the values began and has not ended */
    lksi_pass pass;       /* the last one */
    lksi_stepper stepper; /* to whom it left something; zeros: nobody */
    lksi_batch_note note; /* of the first batch since it was taken */
    lksi_settle settle;   /* what is still to come of one; NULL: nothing */
    void *settle_context;
};

/* A backward pass is about to write gradients; an error of whom the last one left some to. */
lks_status lksi_store_begin_pass(lks_store *store);
/* It has written them; not called where it failed. */
void lksi_store_end_pass(lks_store *store);

#endif
