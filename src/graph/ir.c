/* Builds the intermediate representation from the user's nodes, and differentiates it in reverse mode. */
#include "graph/graph_internal.h"
#include "op/batch_norm.h"

#include <string.h>

lksi_value lksi_ir_add_value(lksi_ir *ir, lksi_tensor tensor, lksi_role role, int index) {
    if (lksi_grow((void **)&ir->values, &ir->value_capacity, ir->n_values + 1, sizeof *ir->values) != LKS_OK)
        return LKSI_NO_VALUE;
    lksi_value value = (lksi_value)ir->n_values++;
    ir->values[value] = (lksi_ir_value){.tensor = tensor, .role = role, .index = index, .root = value};
    return value;
}

bool lksi_ir_makes(const lksi_ir_node *node, lksi_value value) {
    for (int k = 0; k < node->n_outputs; k++)
        if (node->outputs[k] == value) return true;
    return false;
}

lksi_ir_node *lksi_ir_producer(const lksi_ir *ir, lksi_value value, size_t before) {
    for (size_t i = before; i-- > 0;)
        if (lksi_ir_makes(&ir->nodes[i], value)) return &ir->nodes[i];
    return NULL;
}

static lksi_ir_node *add_node(lksi_ir *ir, lksi_op op, const lksi_value *inputs, int n_inputs) {
    if (lksi_grow((void **)&ir->nodes, &ir->node_capacity, ir->n_nodes + 1, sizeof *ir->nodes) != LKS_OK) return NULL;
    lksi_ir_node *node = &ir->nodes[ir->n_nodes++];
    *node = (lksi_ir_node){.op = op, .n_inputs = n_inputs};
    memcpy(node->inputs, inputs, (size_t)n_inputs * sizeof *inputs);
    return node;
}

/* Appends an operator and its output values, at known shapes. Returns the first output. The other outputs have the next
 * numbers. LKSI_NO_VALUE after an error. */
static lksi_value add_operator(lksi_ir *ir, const lksi_emission *e) {
    lksi_tensor shapes[LKSI_MAX_INPUTS], outputs[LKSI_MAX_OUTPUTS];
    bool needs_gradient = false;
    for (int i = 0; i < e->n_inputs; i++) {
        shapes[i] = ir->values[e->inputs[i]].tensor;
        if (ir->values[e->inputs[i]].needs_gradient) needs_gradient = true;
    }
    if (e->attributes != NULL && e->attributes->is_detached != 0) needs_gradient = false;
    if (e->result != NULL) outputs[0] = *e->result;
    if (lksi_op_infer(e->op, e->attributes, shapes, e->n_inputs, outputs) != LKS_OK) return LKSI_NO_VALUE;
    lksi_ir_node *node = add_node(ir, e->op, e->inputs, e->n_inputs);
    if (node == NULL) return LKSI_NO_VALUE;
    if (e->attributes != NULL) node->attributes = *e->attributes;
    node->n_outputs = lksi_op_n_outputs(e->op);
    for (int i = 0; i < node->n_outputs; i++) {
        node->outputs[i] = lksi_ir_add_value(ir, outputs[i], LKSI_TEMPORARY, 0);
        if (node->outputs[i] == LKSI_NO_VALUE) return LKSI_NO_VALUE;
        ir->values[node->outputs[i]].needs_gradient = needs_gradient;
    }
    if (e->op == LKSI_OP_RESHAPE) ir->values[node->outputs[0]].root = ir->values[e->inputs[0]].root;
    return node->outputs[0];
}

static lksi_tensor at_batch(const lksi_tensor *tensor, int64_t batch) {
    lksi_tensor fixed = *tensor;
    for (int i = 0; i < fixed.n_dims; i++)
        if (fixed.dims[i] == LKSI_BATCH) fixed.dims[i] = batch;
    return fixed;
}

static lksi_value add_leaf(lksi_ir *ir, const lks_node *node, const lksi_tensor *result) {
    static const lksi_role roles[] = {[LKSI_OP_INPUT] = LKSI_INPUT,
                                      [LKSI_OP_PARAMETER] = LKSI_PARAMETER,
                                      [LKSI_OP_BUFFER] = LKSI_PARAMETER,
                                      [LKSI_OP_RANDOM] = LKSI_RANDOM};
    lksi_value value = lksi_ir_add_value(ir, *result, roles[node->op], node->id);
    bool needs_gradient = roles[node->op] == LKSI_PARAMETER;
    for (int i = 0; i < ir->n_differentiated; i++) needs_gradient |= ir->differentiated[i] == node;
    if (value != LKSI_NO_VALUE) ir->values[value].needs_gradient = needs_gradient;
    return value;
}

/* Synchronised batch norm in training: this rank's sums, an all-reduce of them, and the normalisation by the result.
 * The sums count as constants, because the gradient rule of BATCH_NORM_BY_SUMS includes the path through them. */
static lksi_value add_synchronised_norm(lksi_ir *ir, const lksi_emission *norm) {
    lksi_value sums = add_operator(
        ir,
        &(lksi_emission){.op = LKSI_OP_BATCH_NORM_SUMS, .n_inputs = 2, .inputs = {norm->inputs[0], norm->inputs[3]}});
    if (sums == LKSI_NO_VALUE) return LKSI_NO_VALUE;
    ir->values[sums].needs_gradient = false;
    lksi_value all = add_operator(ir, &(lksi_emission){.op = LKSI_OP_ALL_REDUCE, .n_inputs = 1, .inputs = {sums}});
    if (all == LKSI_NO_VALUE) return LKSI_NO_VALUE;
    lksi_emission e = *norm;
    e.op = LKSI_OP_BATCH_NORM_BY_SUMS;
    e.inputs[e.n_inputs++] = all;
    return add_operator(ir, &e);
}

static lksi_value add_inner(lksi_ir *ir, const lks_node *node, const lksi_tensor *result) {
    lksi_emission e = {.op = node->op, .attributes = &node->attributes, .n_inputs = node->n_inputs, .result = result};
    for (int i = 0; i < node->n_inputs; i++) e.inputs[i] = ir->node_values[node->inputs[i]->id];
    if (node->op == LKSI_OP_RESULT) return e.inputs[0] + (lksi_value)node->attributes.axis;
    if (!ir->is_training && node->op == LKSI_OP_DROPOUT) return e.inputs[0];
    if (!ir->is_training && node->op == LKSI_OP_BATCH_NORM) e.op = LKSI_OP_BATCH_NORM_INFERENCE;
    if (e.op == LKSI_OP_BATCH_NORM && node->attributes.is_synchronised) return add_synchronised_norm(ir, &e);
    return add_operator(ir, &e);
}

static lks_status add_graph_node(lksi_ir *ir, const lks_node *node) {
    LKS_TRY(lksi_tensor_check(&node->outputs[0], ir->batch, node->name != NULL ? node->name : lksi_op_name(node->op)));
    lksi_tensor result = at_batch(&node->outputs[0], ir->batch);
    bool is_leaf = node->n_inputs == 0 && node->op != LKSI_OP_FULL;
    lksi_value value = is_leaf ? add_leaf(ir, node, &result) : add_inner(ir, node, &result);
    ir->node_values[node->id] = value;
    return value != LKSI_NO_VALUE ? LKS_OK : LKS_ERR_MEMORY; /* shapes were checked by the constructor */
}

/* One backward scan is enough, because inputs come before their users. */
void lksi_graph_mark_needed(const lks_graph *graph, lks_node *const *outputs, int n_outputs, bool *is_needed) {
    for (int i = 0; i < n_outputs; i++) is_needed[outputs[i]->id] = true;
    for (size_t i = graph->n_nodes; i-- > 0;)
        for (int k = 0; is_needed[i] && k < graph->nodes[i]->n_inputs; k++)
            is_needed[graph->nodes[i]->inputs[k]->id] = true;
}

lks_status lksi_graph_find_missing_input(const lks_graph *graph, lks_node *const *outputs, int n_outputs,
                                         bool (*is_given)(const void *context, const lks_node *input),
                                         const void *context, const char **name) {
    bool *is_needed = lksi_alloc_array(graph->n_nodes, sizeof *is_needed);
    if (is_needed == NULL) return LKS_ERR_MEMORY;
    for (int i = 0; i < n_outputs; i++)
        if (!lksi_node_is_poison(outputs[i]) && outputs[i]->graph == graph)
            lksi_graph_mark_needed(graph, &outputs[i], 1, is_needed);
    *name = NULL;
    for (size_t i = 0; i < graph->n_nodes && *name == NULL; i++) {
        const lks_node *node = graph->nodes[i];
        if (is_needed[i] && lksi_node_is_input(node) && !is_given(context, node)) *name = node->name;
    }
    lksi_free(is_needed);
    return LKS_OK;
}

lks_status lksi_ir_create(lksi_ir *ir, lks_graph *graph, const lks_program_options *options, lks_node *const *outputs,
                          int n_outputs) {
    *ir = (lksi_ir){.graph = graph,
                    .batch = options->batch,
                    .is_training = options->is_training != 0,
                    .differentiated = options->differentiated,
                    .n_differentiated = options->n_differentiated};
    lks_status status = LKS_ERR_MEMORY;
    bool *is_needed = lksi_alloc_array(graph->n_nodes, sizeof *is_needed);
    ir->node_values = lksi_alloc_array(graph->n_nodes, sizeof *ir->node_values);
    ir->final_order = lksi_alloc_array(graph->n_nodes, sizeof *ir->final_order);
    ir->input_gradients = lksi_alloc_array((size_t)ir->n_differentiated, sizeof *ir->input_gradients);
    bool has_all = ir->node_values != NULL && ir->final_order != NULL && ir->input_gradients != NULL;
    if (is_needed == NULL || !has_all) goto destroy;
    lksi_graph_mark_needed(graph, outputs, n_outputs, is_needed);
    for (size_t i = 0; i < graph->n_nodes; i++) {
        ir->node_values[i] = LKSI_NO_VALUE;
        if (is_needed[i]) LKS_TRY_GOTO(add_graph_node(ir, graph->nodes[i]), destroy);
    }
    ir->n_forward = ir->n_nodes;
    lksi_free(is_needed);
    return LKS_OK;
destroy:
    lksi_free(is_needed);
    lksi_ir_destroy(ir);
    return status;
}

void lksi_ir_destroy(lksi_ir *ir) {
    lksi_free(ir->values);
    lksi_free(ir->nodes);
    lksi_free(ir->node_values);
    lksi_free(ir->final_order);
    lksi_free(ir->input_gradients);
    *ir = (lksi_ir){0};
}

lksi_lowering lksi_ir_lowering(const lksi_ir *ir, const lksi_ir_node *node) {
    lksi_lowering lowering = {
        .op = node->op, .attributes = node->attributes, .n_inputs = node->n_inputs, .n_outputs = node->n_outputs};
    for (int i = 0; i < node->n_inputs; i++) lowering.inputs[i] = ir->values[node->inputs[i]].tensor;
    for (int i = 0; i < node->n_outputs; i++) lowering.outputs[i] = ir->values[node->outputs[i]].tensor;
    return lowering;
}

lksi_lowering lksi_reorder_lowering(const lksi_tensor *tensor, lksi_layout from, lksi_layout to) {
    return (lksi_lowering){.op = LKSI_OP_REORDER,
                           .n_inputs = 1,
                           .n_outputs = 1,
                           .inputs = {*tensor},
                           .outputs = {*tensor},
                           .input_layouts = {from},
                           .output_layouts = {to}};
}

/* --- reverse mode --- */

typedef struct builder {
    lksi_op_builder base;
    lksi_ir *ir;
} builder;

static lksi_value emit(lksi_op_builder *base, const lksi_emission *emission) {
    for (int i = 0; i < emission->n_inputs; i++)
        if (emission->inputs[i] == LKSI_NO_VALUE) return LKSI_NO_VALUE;
    return add_operator(((builder *)base)->ir, emission);
}

static lksi_value emit_plain(builder *b, lksi_op op, const lksi_value *inputs, int n_inputs) {
    lksi_emission e = {.op = op, .n_inputs = n_inputs};
    memcpy(e.inputs, inputs, (size_t)n_inputs * sizeof *inputs);
    return emit(&b->base, &e);
}

static const lksi_ir_node *find_slice_grad(const lksi_ir *ir, lksi_value value) {
    const lksi_ir_node *node = lksi_ir_producer(ir, value, ir->n_nodes);
    return node != NULL && node->op == LKSI_OP_SLICE_GRAD ? node : NULL;
}

/* Merges two gradients that are 0 outside of adjacent slices into one SLICE_GRAD, instead of two and an ADD. The
 * gradient of a split is then written in one pass. Returns LKSI_NO_VALUE if they are not of this kind. */
static lksi_value join_slices(builder *b, lksi_value some, lksi_value other) {
    const lksi_ir_node *first = find_slice_grad(b->ir, some), *second = find_slice_grad(b->ir, other);
    if (first == NULL || second == NULL || first->attributes.axis != second->attributes.axis) return LKSI_NO_VALUE;
    if (first->attributes.begin > second->attributes.begin) return join_slices(b, other, some);
    if (first->attributes.end != second->attributes.begin || first->n_inputs + second->n_inputs > 8)
        return LKSI_NO_VALUE;
    lksi_attributes attributes = first->attributes;
    attributes.end = second->attributes.end;
    lksi_tensor result = b->ir->values[some].tensor;
    lksi_emission joined = {.op = LKSI_OP_SLICE_GRAD,
                            .attributes = &attributes,
                            .n_inputs = first->n_inputs + second->n_inputs,
                            .result = &result};
    memcpy(joined.inputs, first->inputs, (size_t)first->n_inputs * sizeof *joined.inputs);
    memcpy(joined.inputs + first->n_inputs, second->inputs, (size_t)second->n_inputs * sizeof *joined.inputs);
    return emit(&b->base, &joined);
}

/* Adds one more contribution to the gradient of `value`. */
static lks_status contribute(builder *b, lksi_value *gradients, lksi_value value, lksi_value contribution) {
    if (gradients[value] != LKSI_NO_VALUE && contribution != LKSI_NO_VALUE) {
        lksi_value joined = join_slices(b, gradients[value], contribution);
        if (joined == LKSI_NO_VALUE)
            joined = emit_plain(b, LKSI_OP_ADD, (lksi_value[]){gradients[value], contribution}, 2);
        contribution = joined;
    }
    gradients[value] = contribution;
    return contribution != LKSI_NO_VALUE ? LKS_OK : LKS_ERR_MEMORY;
}

/* Whether the loss depends on any of the node's outputs. */
static bool has_gradient(const lksi_ir *ir, const lksi_ir_node *node, const lksi_value *gradients) {
    if (!ir->values[node->outputs[0]].needs_gradient) return false;
    for (int i = 0; i < node->n_outputs; i++)
        if (gradients[node->outputs[i]] != LKSI_NO_VALUE) return true;
    return false;
}

static bool is_buffer(const lksi_ir *ir, lksi_value value) {
    const lksi_ir_value *v = &ir->values[value];
    return v->role == LKSI_PARAMETER && ir->graph->nodes[v->index]->op == LKSI_OP_BUFFER;
}

/* The inputs of a batch norm that are its running mean and variance, in this order. */
enum { FIRST_STATISTIC = 3, N_STATISTICS = 2 };

static bool has_statistics(const lksi_ir_node *node) {
    return node->op == LKSI_OP_BATCH_NORM || node->op == LKSI_OP_BATCH_NORM_BY_SUMS;
}

/* Only batch norm's rule returns something for buffers: their statistics. For other operators, and as another input of
 * a batch norm, a buffer is a constant. */
static bool needs_gradient(const lksi_ir *ir, const lksi_ir_node *node, int input) {
    bool is_statistic = has_statistics(node) && input >= FIRST_STATISTIC;
    return ir->values[node->inputs[input]].needs_gradient && (is_statistic || !is_buffer(ir, node->inputs[input]));
}

static lks_status differentiate_node(builder *b, const lksi_ir_node *node, lksi_value *gradients) {
    lksi_op_instance instance = {.op = node->op, .attributes = &node->attributes, .n_inputs = node->n_inputs};
    bool is_needed = false;
    for (int i = 0; i < node->n_inputs; i++) {
        instance.inputs[i] = node->inputs[i];
        instance.input_tensors[i] = b->ir->values[node->inputs[i]].tensor;
        instance.needs_gradient[i] = needs_gradient(b->ir, node, i);
        is_needed |= instance.needs_gradient[i];
    }
    if (!is_needed) return LKS_OK; /* it reads only buffers */
    for (int i = 0; i < node->n_outputs; i++) {
        instance.outputs[i] = node->outputs[i];
        instance.output_tensors[i] = b->ir->values[node->outputs[i]].tensor;
        instance.output_gradients[i] = gradients[node->outputs[i]];
    }
    lksi_value input_gradients[LKSI_MAX_INPUTS];
    if (node->op == LKSI_OP_CUSTOM) LKS_TRY(lksi_custom_check_backward(b->ir->graph, &node->attributes));
    LKS_TRY(lksi_op_differentiate(&instance, &b->base, input_gradients));
    for (int i = 0; i < instance.n_inputs; i++)
        if (instance.needs_gradient[i]) LKS_TRY(contribute(b, gradients, instance.inputs[i], input_gradients[i]));
    return LKS_OK;
}

/* Moves the last node directly behind the node that makes its input 0, or to the beginning of the backward pass if the
 * forward pass made that. */
static void move_behind_source(lksi_ir *ir) {
    size_t last = ir->n_nodes - 1, at = last;
    lksi_ir_node node = ir->nodes[last];
    while (at > ir->n_forward && !lksi_ir_makes(&ir->nodes[at - 1], node.inputs[0])) at--;
    memmove(&ir->nodes[at + 1], &ir->nodes[at], (last - at) * sizeof node);
    ir->nodes[at] = node;
}

/* Whether value `other` has the same gradient as `value`, or one in the same memory. */
static bool has_same(const lksi_ir *ir, const lksi_value *gradients, size_t value, size_t other) {
    return gradients[other] != LKSI_NO_VALUE &&
           lksi_ir_root(ir, gradients[other]) == lksi_ir_root(ir, gradients[value]);
}

/* A parameter's gradient is stored in the store, so it must be a value of its own. It is copied if it is also the
 * gradient of another parameter (both sides of a sum) or of an input, or if it is an alias. The copy is made
 * immediately after its source, before any step can change the source. */
static lks_status separate_parameters(builder *b, lksi_value *gradients, size_t n_values) {
    for (size_t v = 0; v < n_values; v++) {
        lksi_value gradient = gradients[v];
        if (b->ir->values[v].role != LKSI_PARAMETER || gradient == LKSI_NO_VALUE) continue;
        bool is_taken = b->ir->values[gradient].root != gradient || b->ir->values[gradient].role != LKSI_TEMPORARY;
        for (size_t w = 0; w < v; w++)
            if (b->ir->values[w].role == LKSI_PARAMETER && gradients[w] == gradient) is_taken = true;
        for (size_t w = 0; w < n_values; w++)
            if (b->ir->values[w].role == LKSI_INPUT && has_same(b->ir, gradients, v, w)) is_taken = true;
        if (!is_taken) continue;
        gradients[v] = emit_plain(b, LKSI_OP_COPY, &gradient, 1);
        if (gradients[v] == LKSI_NO_VALUE) return LKS_ERR_MEMORY;
        move_behind_source(b->ir);
    }
    return LKS_OK;
}

/* Adds the statistics of a batch norm on which the loss does not depend. */
static lks_status give_statistics(builder *b, const lksi_ir_node *node, lksi_value *gradients) {
    const lksi_tensor *x = &b->ir->values[node->inputs[0]].tensor;
    int64_t n = lksi_tensor_count(x, 0) / x->dims[1];
    for (int i = 0; i < N_STATISTICS; i++) {
        lksi_value buffer = node->inputs[FIRST_STATISTIC + i];
        bool is_whole = node->op == LKSI_OP_BATCH_NORM_BY_SUMS; /* its last output is already the unbiased variance */
        lksi_attributes factor = {.number = i == 1 && !is_whole ? lksi_norm_correction(n) : 1};
        lksi_emission e = {.op = LKSI_OP_SCALE, .attributes = &factor, .n_inputs = 2};
        e.inputs[0] = node->outputs[i == 0 ? 1 : node->n_outputs - 1], e.inputs[1] = b->base.buffer_weight;
        if (!is_buffer(b->ir, buffer)) continue;
        LKS_TRY(contribute(b, gradients, buffer, emit(&b->base, &e)));
    }
    return LKS_OK;
}

/* A buffer without a statistic averages its own value, and so stays unchanged. */
static lks_status keep_buffers(builder *b, lksi_value *gradients, size_t n_values) {
    for (size_t v = 0; v < n_values; v++) {
        if (!is_buffer(b->ir, (lksi_value)v) || gradients[v] != LKSI_NO_VALUE) continue;
        gradients[v] = emit_plain(b, LKSI_OP_MUL, (lksi_value[]){(lksi_value)v, b->base.buffer_weight}, 2);
        if (gradients[v] == LKSI_NO_VALUE) return LKS_ERR_MEMORY;
    }
    return LKS_OK;
}

/* Gives the parameters' gradients their role, and lists the parameters in the order in which the gradients become
 * final. */
static void finish_parameters(lksi_ir *ir, const lksi_value *gradients, size_t n_values) {
    for (size_t v = 0; v < n_values; v++) {
        if (ir->values[v].role != LKSI_PARAMETER || gradients[v] == LKSI_NO_VALUE) continue;
        ir->values[gradients[v]].role = LKSI_GRADIENT;
        ir->values[gradients[v]].index = ir->values[v].index;
    }
    for (size_t i = ir->n_forward; i < ir->n_nodes; i++)
        for (int k = 0; k < ir->nodes[i].n_outputs; k++) {
            const lksi_ir_value *made = &ir->values[ir->nodes[i].outputs[k]];
            if (made->role == LKSI_GRADIENT) ir->final_order[ir->n_final++] = made->index;
        }
}

/* Lists the parameters that no gradient reaches. */
static void list_still_parameters(lksi_ir *ir, const lksi_value *gradients, size_t n_values) {
    for (size_t v = 0; v < n_values; v++)
        if (ir->values[v].role == LKSI_PARAMETER && gradients[v] == LKSI_NO_VALUE)
            ir->final_order[ir->n_final + ir->n_still++] = ir->values[v].index;
}

static lks_status find_input_gradients(lksi_ir *ir, const lksi_value *gradients) {
    for (int i = 0; i < ir->n_differentiated; i++) {
        lksi_value value = ir->node_values[ir->differentiated[i]->id];
        ir->input_gradients[i] = value != LKSI_NO_VALUE ? gradients[value] : LKSI_NO_VALUE;
        if (ir->input_gradients[i] == LKSI_NO_VALUE)
            return lksi_error(LKS_ERR_ARGUMENT,
                              "no gradient flows from the loss to input '%s', which is to be differentiated",
                              ir->differentiated[i]->name);
    }
    return LKS_OK;
}

lks_status lksi_ir_differentiate(lksi_ir *ir, const lks_node *loss) {
    lksi_value loss_value = ir->node_values[loss->id];
    lksi_value seed = lksi_ir_add_value(ir, ir->values[loss_value].tensor, LKSI_SEED, 0);
    lksi_value weight = lksi_ir_add_value(ir, ir->values[loss_value].tensor, LKSI_BUFFER_WEIGHT, 0);
    if (seed == LKSI_NO_VALUE || weight == LKSI_NO_VALUE) return LKS_ERR_MEMORY;
    builder b = {.base = {.emit = emit, .buffer_weight = weight}, .ir = ir};
    size_t n_forward_values = ir->n_values;
    lksi_value *gradients = lksi_alloc_array(n_forward_values, sizeof *gradients);
    if (gradients == NULL) return LKS_ERR_MEMORY;
    for (size_t i = 0; i < n_forward_values; i++) gradients[i] = LKSI_NO_VALUE;
    gradients[loss_value] = seed;
    lks_status status = LKS_OK;
    for (size_t i = ir->n_forward; i-- > 0 && status == LKS_OK;) {
        lksi_ir_node node = ir->nodes[i]; /* copied, because the array may move while the backward pass is appended */
        if (has_gradient(ir, &node, gradients))
            status = differentiate_node(&b, &node, gradients);
        else if (has_statistics(&node))
            status = give_statistics(&b, &node, gradients);
    }
    if (status == LKS_OK) status = separate_parameters(&b, gradients, n_forward_values);
    if (status == LKS_OK) status = keep_buffers(&b, gradients, n_forward_values);
    if (status == LKS_OK) finish_parameters(ir, gradients, n_forward_values);
    if (status == LKS_OK) list_still_parameters(ir, gradients, n_forward_values);
    if (status == LKS_OK) status = find_input_gradients(ir, gradients);
    lksi_free(gradients);
    return status;
}
