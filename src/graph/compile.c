/* From the intermediate form to a program: drop what nothing needs, offer epilogues, lower, place in memory. */
#include "graph/program_internal.h"

typedef struct compiler {
    lksi_ir ir;
    int *n_users; /* per value (root): nodes that read it, one more for what the user reads */
    lksi_interval *intervals;
    lks_program *program;
} compiler;

static lksi_value root_of(const lksi_ir *ir, lksi_value value) { return ir->values[value].root; }

static void count_users(compiler *c) {
    for (int i = 0; i < c->program->n_outputs; i++) c->n_users[c->program->outputs[i].value]++;
    for (size_t i = 0; i < c->ir.n_nodes; i++) {
        const lksi_ir_node *node = &c->ir.nodes[i];
        if (node->op == LKSI_OP_RESHAPE) continue; /* an alias reads nothing */
        for (int j = 0; j < node->n_inputs; j++) c->n_users[root_of(&c->ir, node->inputs[j])]++;
    }
}

/* Backwards, so that what only unused nodes read becomes unused too. */
static void remove_unused(compiler *c) {
    for (size_t i = c->ir.n_nodes; i-- > 0;) {
        lksi_ir_node *node = &c->ir.nodes[i];
        if (node->op == LKSI_OP_RESHAPE) {
            node->is_removed = true;
            continue;
        }
        bool is_used = false;
        for (int j = 0; j < node->n_outputs; j++)
            if (c->n_users[node->outputs[j]] > 0 || c->ir.values[node->outputs[j]].role == LKSI_GRADIENT)
                is_used = true;
        if (is_used) continue;
        node->is_removed = true;
        for (int j = 0; j < node->n_inputs; j++) c->n_users[root_of(&c->ir, node->inputs[j])]--;
    }
}

/* The node that alone reads `value`, if it is element-wise and could run in the same kernel. */
static lksi_ir_node *find_epilogue(compiler *c, lksi_value value, size_t after) {
    if (c->n_users[value] != 1 || c->ir.values[value].role != LKSI_TEMPORARY) return NULL;
    for (size_t i = after + 1; i < c->ir.n_forward; i++) {
        lksi_ir_node *node = &c->ir.nodes[i];
        if (!node->is_removed && lksi_op_is_epilogue(node->op) && node->inputs[0] == value) return node;
    }
    return NULL;
}

static void lowering_of(const compiler *c, const lksi_ir_node *node, lksi_lowering *lowering) {
    *lowering = (lksi_lowering){.op = node->op, .n_inputs = node->n_inputs, .n_outputs = node->n_outputs};
    for (int i = 0; i < node->n_inputs; i++) lowering->inputs[i] = c->ir.values[node->inputs[i]].tensor;
    for (int i = 0; i < node->n_outputs; i++) lowering->outputs[i] = c->ir.values[node->outputs[i]].tensor;
}

/* Offers the chain of element-wise nodes behind `node` to the device and lets those it takes write in its place. */
static lks_status lower_node(compiler *c, size_t index) {
    lksi_ir_node *node = &c->ir.nodes[index];
    lksi_ir_node *chain[4];
    lksi_op offered[4];
    int n_offered = 0;
    for (lksi_value value = node->outputs[0]; n_offered < 4; value = chain[n_offered - 1]->outputs[0]) {
        lksi_ir_node *next = find_epilogue(c, value, index);
        if (next == NULL) break;
        chain[n_offered] = next;
        offered[n_offered++] = next->op;
    }
    lksi_lowering lowering;
    lowering_of(c, node, &lowering);
    lowering.epilogues = offered;
    lowering.n_epilogues = n_offered;
    const lks_device *device = c->ir.graph->device;
    lksi_step *step = &c->program->steps[c->program->n_steps];
    LKS_TRY(device->ops->lower(device, &lowering, &step->kernel));
    c->program->n_steps++;
    for (int i = 0; i < step->kernel.n_epilogues && i < n_offered; i++) {
        chain[i]->is_removed = true;
        c->n_users[node->outputs[0]]--;
        node->outputs[0] = chain[i]->outputs[0];
    }
    for (int i = 0; i < node->n_inputs; i++) step->inputs[i] = root_of(&c->ir, node->inputs[i]);
    for (int i = 0; i < node->n_outputs; i++) step->outputs[i] = node->outputs[i];
    return LKS_OK;
}

static lks_status lower_all(compiler *c) {
    for (size_t i = 0; i < c->ir.n_nodes; i++) {
        if (i == c->ir.n_forward) c->program->n_forward = c->program->n_steps;
        if (!c->ir.nodes[i].is_removed) LKS_TRY(lower_node(c, i));
    }
    if (c->ir.n_forward == c->ir.n_nodes) c->program->n_forward = c->program->n_steps;
    return LKS_OK;
}

static void touch(lksi_interval *interval, int step) {
    if (interval->first > step) interval->first = step;
    if (interval->last < step) interval->last = step;
}

/* Lifetimes of the temporaries, in steps. Values that live elsewhere get no bytes. */
static void find_lifetimes(compiler *c) {
    lks_program *program = c->program;
    for (size_t v = 0; v < c->ir.n_values; v++) c->intervals[v] = (lksi_interval){.first = INT32_MAX, .last = -1};
    for (size_t s = 0; s < program->n_steps; s++) {
        const lksi_step *step = &program->steps[s];
        for (int i = 0; i < step->kernel.lowering.n_inputs; i++) touch(&c->intervals[step->inputs[i]], (int)s);
        for (int i = 0; i < step->kernel.lowering.n_outputs; i++) touch(&c->intervals[step->outputs[i]], (int)s);
    }
    for (int i = 0; i < program->n_outputs; i++) /* readable until the next forward */
        touch(&c->intervals[program->outputs[i].value], (int)program->n_steps);
    for (size_t v = 0; v < c->ir.n_values; v++)
        if (c->ir.values[v].role == LKSI_TEMPORARY && c->intervals[v].last >= 0)
            c->intervals[v].nbytes = lksi_tensor_nbytes(&c->ir.values[v].tensor);
}

static lks_status place(compiler *c) {
    lks_program *program = c->program;
    find_lifetimes(c);
    LKS_TRY(lksi_plan_memory(c->intervals, c->ir.n_values, &program->scratch_offset));
    program->scratch_offset = (program->scratch_offset + 63) / 64 * 64;
    size_t scratch_nbytes = 0; /* one scratch area: steps run one after the other */
    for (size_t s = 0; s < program->n_steps; s++)
        if (program->steps[s].kernel.scratch_nbytes > scratch_nbytes)
            scratch_nbytes = program->steps[s].kernel.scratch_nbytes;
    program->arena_nbytes = program->scratch_offset + scratch_nbytes;
    program->arena = lksi_alloc(program->arena_nbytes);
    return program->arena != NULL ? LKS_OK : LKS_ERR_MEMORY;
}

static lks_status find_parameter(const lks_store *store, const lks_node *node, lks_parameter_view *view) {
    int index = lks_store_find(store, node->name);
    if (index < 0) return lksi_error(LKS_ERR_STATE, "parameter '%s' is not in the store", node->name);
    *view = lks_store_parameter(store, index);
    return LKS_OK;
}

static lks_status bind_memory(compiler *c) {
    lks_program *program = c->program;
    for (size_t v = 0; v < c->ir.n_values; v++) {
        const lksi_ir_value *value = &c->ir.values[v];
        lks_parameter_view view;
        switch (value->role) {
        case LKSI_PARAMETER:
        case LKSI_GRADIENT:
            LKS_TRY(find_parameter(program->store, c->ir.graph->nodes[value->index], &view));
            program->memory[v] = value->role == LKSI_PARAMETER ? view.value : view.gradient;
            break;
        case LKSI_SEED:
            program->memory[v] = &program->seed;
            break;
        case LKSI_TEMPORARY:
            program->memory[v] = program->arena + c->intervals[v].offset;
            break;
        case LKSI_INPUT:
            program->inputs[program->n_inputs++] = (lksi_binding){c->ir.graph->nodes[value->index], (lksi_value)v};
            break;
        }
    }
    return LKS_OK;
}

static lks_status build_ir(compiler *c, const lks_program_options *options, lks_node *const *outputs, int n_outputs) {
    lks_program *program = c->program;
    LKS_TRY(lksi_ir_create(&c->ir, program->store->graph, options->batch, outputs, n_outputs));
    if (options->is_training) LKS_TRY(lksi_ir_differentiate(&c->ir, options->loss));
    if (options->is_training && c->ir.n_final == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "the loss depends on no parameter");
    c->n_users = lksi_alloc_array(c->ir.n_values, sizeof *c->n_users);
    c->intervals = lksi_alloc_array(c->ir.n_values, sizeof *c->intervals);
    program->steps = lksi_alloc_array(c->ir.n_nodes, sizeof *program->steps);
    program->memory = lksi_alloc_array(c->ir.n_values, sizeof *program->memory);
    program->inputs = lksi_alloc_array(c->ir.graph->n_nodes, sizeof *program->inputs);
    program->outputs = lksi_alloc_array((size_t)n_outputs, sizeof *program->outputs);
    if (c->n_users == NULL || c->intervals == NULL || program->steps == NULL || program->memory == NULL ||
        program->inputs == NULL || program->outputs == NULL)
        return LKS_ERR_MEMORY;
    for (int i = 0; i < n_outputs; i++)
        program->outputs[program->n_outputs++] =
            (lksi_binding){outputs[i], root_of(&c->ir, c->ir.node_values[outputs[i]->id])};
    return LKS_OK;
}

static lks_status compile(compiler *c, const lks_program_options *options, lks_node *const *outputs, int n_outputs) {
    LKS_TRY(build_ir(c, options, outputs, n_outputs));
    count_users(c);
    remove_unused(c);
    LKS_TRY(lower_all(c));
    LKS_TRY(place(c));
    return bind_memory(c);
}

static lks_status check_options(const lks_store *store, const lks_program_options *options) {
    LKS_TRY(lksi_graph_check(store->graph));
    if (options->batch < 1 || options->batch > INT32_MAX)
        return lksi_error(LKS_ERR_ARGUMENT, "a program's batch must be 1 to %d, not %lld", INT32_MAX,
                          (long long)options->batch);
    if (options->is_training && options->loss == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "a training program needs a loss");
    if (options->loss == NULL && options->n_outputs == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "a program without loss and outputs computes nothing");
    if (options->loss != NULL && options->loss->outputs[0].n_dims != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "the loss has %d dimensions; it must be a scalar",
                          options->loss->outputs[0].n_dims);
    for (int i = -1; i < options->n_outputs; i++) {
        const lks_node *node = i < 0 ? options->loss : options->outputs[i];
        if (node != NULL && node->graph != store->graph)
            return lksi_error(LKS_ERR_ARGUMENT, "output %d is a node of another graph than the store's", i);
    }
    return LKS_OK;
}

lks_status lks_program_create(lks_program **program, lks_store *store, const lks_program_options *options) {
    LKS_TRY(check_options(store, options));
    lks_status status = LKS_ERR_MEMORY;
    int n_outputs = 0;
    lks_node **outputs = lksi_alloc_array((size_t)options->n_outputs + 1, sizeof(lks_node *));
    compiler c = {.program = lksi_alloc(sizeof(lks_program))};
    if (outputs == NULL || c.program == NULL) goto free_compiler;
    if (options->loss != NULL) outputs[n_outputs++] = options->loss;
    for (int i = 0; i < options->n_outputs; i++) outputs[n_outputs++] = options->outputs[i];
    c.program->store = store;
    c.program->batch = options->batch;
    status = compile(&c, options, outputs, n_outputs);
free_compiler:
    if (status == LKS_OK)
        *program = c.program;
    else
        lks_program_destroy(c.program);
    lksi_free(outputs);
    lksi_free(c.n_users);
    lksi_free(c.intervals);
    lksi_ir_destroy(&c.ir);
    return status;
}
