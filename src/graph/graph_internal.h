/* Declarations that the files of graph/ share: nodes, the intermediate representation, the memory plan and the
 * store. */
#ifndef LKSI_GRAPH_INTERNAL_H
#define LKSI_GRAPH_INTERNAL_H

#include "graph/graph.h"

/* --- the graph as the user builds it --- */

typedef struct lksi_custom lksi_custom;

struct lks_node {
    lks_graph *graph;
    int id; /* index in the graph; inputs have smaller ids than their users */
    lksi_op op;
    lksi_attributes attributes;
    char *name; /* of inputs, parameters and buffers; otherwise NULL */
    int n_inputs;
    lks_node *inputs[LKSI_MAX_INPUTS];
    lksi_tensor outputs[LKSI_MAX_OUTPUTS]; /* lksi_op_n_outputs(op) */
    lks_initializer initial;
    double momentum;     /* buffers */
    lksi_custom *custom; /* custom operators: the node owns it */
};

struct lks_graph {
    lks_device *device;
    lks_node **nodes;
    size_t n_nodes, capacity;
    lks_node poison;
    lks_status status; /* the first error of a constructor; its text is below */
    char *error;
};

/* Appends an operator node. `attributes` NULL: all 0. `result`: the output shape, if the catalogue says "given".
 * Returns poison if an input is poison. A NULL input is an error. */
lks_node *lksi_graph_operate(lksi_op op, const lksi_attributes *attributes, lks_node *const *inputs, int n_inputs,
                             const lksi_tensor *result);

/* Returns poison for an operator on these inputs, for the error that was just set. Inputs may be NULL or poison. The
 * error text must begin with the operator's name. The names of the inputs, or of the layers that they come from, are
 * inserted after it, as in "add of 'conv7' and 'conv6' takes ...". */
lks_node *lksi_graph_refuse(lks_node *const *inputs, int n_inputs, lks_status status);

/* LKS_ERR_ARGUMENT if the name is empty or cannot be printed. The text says that `what` has it. */
lks_status lksi_check_name(const char *name, const char *what);
/* LKS_ERR_SHAPE, LKS_ERR_ARGUMENT: not the dimensions of a tensor. Only the first one may be the batch. */
lks_status lksi_check_dims(const char *name, int n_dims, const int64_t *dims, bool may_have_batch);

/* Accepts NULL. */
void lksi_custom_destroy(lksi_custom *custom);
const char *lksi_custom_name(const lksi_custom *custom);
/* LKS_ERR_UNSUPPORTED if a custom operator has no backward function. */
lks_status lksi_custom_check_backward(const lks_graph *graph, const lksi_attributes *attributes);

/* The leaf with the key of dropout's random draws. It is created on first use. */
lks_node *lksi_graph_random(lks_graph *graph);

/* Marks `outputs` and all nodes that they depend on in `is_needed`, which has an element per node of the graph. */
void lksi_graph_mark_needed(const lks_graph *graph, lks_node *const *outputs, int n_outputs, bool *is_needed);

/* Returns the graph's first error, with its text, or LKS_OK. */
lks_status lksi_graph_check(lks_graph *graph);

/* --- the intermediate representation (IR), which is differentiated and lowered --- */

/* The role of a value. Buffers have the role of parameters here: the "gradient" that a gradient rule returns for one is
 * the statistic of this batch. */
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
    int index; /* id of the graph node (input, parameter), or of the parameter's node (gradient) */
    lksi_value
        root; /* the value whose memory it uses: itself, or for a reshape the reshaped value. An alias is row-major */
    lksi_layout layout; /* of a root: its layout in memory */
    bool needs_gradient;
} lksi_ir_value;

typedef struct lksi_ir_node {
    lksi_op op;
    lksi_attributes attributes;
    int n_inputs, n_outputs;
    lksi_value inputs[LKSI_MAX_INPUTS], outputs[LKSI_MAX_OUTPUTS];
    bool is_removed; /* merged as an epilogue, or a reshape, or unused */
} lksi_ir_node;

typedef struct lksi_ir {
    lks_graph *graph;
    int64_t batch;
    bool is_training;
    lksi_ir_value *values;
    size_t n_values, value_capacity;
    lksi_ir_node *nodes;
    size_t n_nodes, node_capacity;
    size_t n_forward;        /* number of forward nodes; backward nodes follow */
    lksi_value *node_values; /* per graph node: its first output value, or LKSI_NO_VALUE */
    /* ids of the parameters' graph nodes: n_final in the order in which their gradients become final, then n_still */
    int *final_order;
    int n_final;
    int n_still;                     /* parameters without a gradient, because their effect is detached */
    lks_node *const *differentiated; /* inputs whose gradients are computed, too; owned by the caller */
    int n_differentiated;
    lksi_value *input_gradients; /* their gradients, n_differentiated of them */
} lksi_ir;

/* Creates the forward pass: `outputs` and everything they depend on, at a batch of options->batch samples, for training
 * or evaluation. In evaluation dropout passes all elements, and batch norm uses its running statistics. `options` also
 * names the inputs to differentiate. The graph and the nodes must outlive the IR. */
lks_status lksi_ir_create(lksi_ir *ir, lks_graph *graph, const lks_program_options *options, lks_node *const *outputs,
                          int n_outputs);
void lksi_ir_destroy(lksi_ir *ir);
/* Appends the backward pass of `loss`. Buffers that receive no statistic are kept unchanged. */
lks_status lksi_ir_differentiate(lksi_ir *ir, const lks_node *loss);

static inline lksi_value lksi_ir_root(const lksi_ir *ir, lksi_value value) { return ir->values[value].root; }
bool lksi_ir_makes(const lksi_ir_node *node, lksi_value value); /* whether `value` is an output of the node */
/* The last of the first `before` nodes that has `value` as output. NULL if there is none. */
lksi_ir_node *lksi_ir_producer(const lksi_ir *ir, lksi_value value, size_t before);

/* Appends a value. Returns LKSI_NO_VALUE if memory is out. */
lksi_value lksi_ir_add_value(lksi_ir *ir, lksi_tensor tensor, lksi_role role, int index);

/* Lowering requests for a device: one for a node, without layouts, and one for a copy from one layout to another. */
lksi_lowering lksi_ir_lowering(const lksi_ir *ir, const lksi_ir_node *node);
lksi_lowering lksi_reorder_lowering(const lksi_tensor *tensor, lksi_layout from, lksi_layout to);

/* --- memory plan --- */

typedef struct lksi_interval {
    size_t nbytes;
    int first, last; /* first and last step that uses the memory, inclusive */
    size_t offset;   /* result */
} lksi_interval;

/* Assigns offsets such that intervals that are live at the same time do not overlap. *nbytes is the total size. */
lks_status lksi_plan_memory(lksi_interval *intervals, size_t n_intervals, size_t *nbytes);

/* --- the store --- */

typedef struct lksi_slot {
    lks_node *node;
    size_t offset;      /* elements, in the flat arrays */
    int64_t count;      /* logical elements */
    lksi_layout layout; /* how the elements are stored there */
    int position;       /* in the order in which gradients, also those of buffers, become final */
    bool is_torn;       /* an update began and has not ended, and the value was not written since */
} lksi_slot;

struct lks_store {
    lks_graph *graph;
    lksi_store_memory memory;
    lksi_slot *slots; /* parameters in gradient-ready order, then buffers */
    int n_slots, n_parameters;
    size_t padded_count, buffer_begin; /* in elements; buffers begin at buffer_begin */
    void *values, *gradients;
    uint64_t n_swaps;     /* number of swaps of these two */
    bool is_trained;      /* a gradient reaches a parameter */
    lksi_pass pass;       /* state of the last pass */
    lksi_keeper *keepers; /* a list */
    lksi_stepper stepper; /* the step that completes what the pass left unfinished; zeros: none */
    lksi_batch_note note; /* note about the first batch since the note was last taken */
    lksi_settle settle;   /* finishes a pending update; NULL: no update is pending */
    void *settle_context;
};

/* LKS_ERR_ARGUMENT if `node` is NULL or of another graph; the first error of its graph. The text says that `what` is.
 */
lks_status lksi_store_check_node(const lks_store *store, const lks_node *node, const char *what);

/* A backward pass is about to write gradients. Returns the error of the current stepper, if there is one. */
lks_status lksi_store_begin_pass(lks_store *store);
/* The pass has written all gradients. Not called after a failed pass. */
void lksi_store_end_pass(lks_store *store);

#endif
