/* Compiles the intermediate representation to a program: removes unused nodes, offers epilogues to the device, lowers
 * the nodes, and places values in memory. */
#include "graph/program_internal.h"

#include <assert.h>
#include <stdlib.h>

/* A copy of a value in another layout. */
typedef struct layout_copy {
    lksi_value of;
    uint64_t layout_id;
    lksi_value copy;
} layout_copy;

typedef struct compiler {
    lksi_ir ir;
    int *n_users; /* per root value: number of nodes that read it, plus one if the user reads it */
    lksi_interval *intervals;
    lks_program *program;
    size_t step_capacity;
    layout_copy *copies;
    size_t n_copies, copy_capacity;
} compiler;

static void count_users(compiler *c) {
    const lks_program *program = c->program;
    for (int i = 0; i < program->n_outputs; i++) c->n_users[lksi_ir_root(&c->ir, program->outputs[i].value)]++;
    for (int i = 0; i < program->n_input_gradients; i++)
        c->n_users[lksi_ir_root(&c->ir, program->input_gradients[i].value)]++;
    for (size_t i = 0; i < c->ir.n_nodes; i++) {
        const lksi_ir_node *node = &c->ir.nodes[i];
        if (node->op == LKSI_OP_RESHAPE) continue; /* an alias reads nothing */
        for (int j = 0; j < node->n_inputs; j++) c->n_users[lksi_ir_root(&c->ir, node->inputs[j])]++;
    }
}

/* Runs backwards, so that values that only unused nodes read become unused, too. */
static void remove_unused(compiler *c) {
    for (size_t i = c->ir.n_nodes; i-- > 0;) {
        lksi_ir_node *node = &c->ir.nodes[i];
        if (node->op == LKSI_OP_RESHAPE) node->is_removed = true;
        if (node->is_removed) continue;
        bool is_used = false;
        for (int j = 0; j < node->n_outputs; j++)
            if (c->n_users[node->outputs[j]] > 0 || c->ir.values[node->outputs[j]].role == LKSI_GRADIENT)
                is_used = true;
        if (is_used) continue;
        node->is_removed = true;
        for (int j = 0; j < node->n_inputs; j++) c->n_users[lksi_ir_root(&c->ir, node->inputs[j])]--;
    }
}

/* An alias counts as row-major: its root is reordered to row-major if necessary. */
static lksi_layout layout_of(const compiler *c, lksi_value value) {
    return lksi_ir_root(&c->ir, value) == value ? c->ir.values[value].layout : (lksi_layout){0};
}

static lksi_lowering lowering_of(const compiler *c, const lksi_ir_node *node) {
    lksi_lowering lowering = lksi_ir_lowering(&c->ir, node);
    for (int i = 0; i < node->n_inputs; i++) lowering.input_layouts[i] = layout_of(c, node->inputs[i]);
    for (int i = 0; i < node->n_outputs; i++) {
        const lksi_ir_value *value = &c->ir.values[node->outputs[i]];
        if (value->role == LKSI_GRADIENT) lowering.output_layouts[i] = value->layout;
        lowering.is_output_unread[i] = value->role != LKSI_GRADIENT && c->n_users[node->outputs[i]] == 0;
    }
    return lowering;
}

static lks_status append_step(compiler *c, const lksi_step *step) {
    lks_program *program = c->program;
    lks_status status = lksi_grow((void **)&program->steps, &c->step_capacity, program->n_steps + 1, sizeof *step);
    if (status == LKS_OK) program->steps[program->n_steps++] = *step;
    return status;
}

/* --- layouts --- */

static lks_status append_copy(compiler *c, const lksi_lowering *lowering, lksi_value from, lksi_value to) {
    const lks_device *device = c->ir.graph->device;
    lksi_step step = {.inputs = {from}, .outputs = {to}};
    LKS_TRY(device->ops->lower(device, lowering, &step.kernel));
    lks_status status = append_step(c, &step);
    if (status != LKS_OK && step.kernel.release != NULL) step.kernel.release(&step.kernel);
    return status;
}

static lks_status append_reorder(compiler *c, const lksi_tensor *tensor, lksi_value from, lksi_layout from_layout,
                                 lksi_value to, lksi_layout to_layout) {
    lksi_lowering lowering = lksi_reorder_lowering(tensor, from_layout, to_layout);
    return append_copy(c, &lowering, from, to);
}

static lks_status add_placed_value(compiler *c, const lksi_tensor *tensor, lksi_layout layout, lksi_value *value) {
    *value = lksi_ir_add_value(&c->ir, *tensor, LKSI_TEMPORARY, 0);
    if (*value == LKSI_NO_VALUE) return LKS_ERR_MEMORY;
    c->ir.values[*value].layout = layout;
    return LKS_OK;
}

/* Sets *result to a value with the elements of `value` in `layout`: `value` itself, or a copy that is made once. */
static lks_status in_layout(compiler *c, lksi_value value, lksi_layout layout, lksi_value *result) {
    if (layout_of(c, value).id == layout.id && lksi_ir_root(&c->ir, value) == value) {
        *result = value;
        return LKS_OK;
    }
    for (size_t i = 0; i < c->n_copies; i++)
        if (c->copies[i].of == value && c->copies[i].layout_id == layout.id) {
            *result = c->copies[i].copy;
            return LKS_OK;
        }
    lksi_tensor tensor = c->ir.values[value].tensor; /* copied, because the array may move */
    lksi_value from = value;
    if (lksi_ir_root(&c->ir, value) != value)
        LKS_TRY(in_layout(c, lksi_ir_root(&c->ir, value), (lksi_layout){0}, &from));
    *result = from;
    if (layout_of(c, value).id != layout.id) {
        LKS_TRY(add_placed_value(c, &tensor, layout, result));
        LKS_TRY(append_reorder(c, &tensor, from, layout_of(c, value), *result, layout));
    }
    LKS_TRY(lksi_grow((void **)&c->copies, &c->copy_capacity, c->n_copies + 1, sizeof *c->copies));
    c->copies[c->n_copies++] = (layout_copy){value, layout.id, *result};
    return LKS_OK;
}

/* Appends the kernel, with reorders before it for inputs in other layouts than it reads. On success the step owns the
 * kernel. */
static lks_status append_kernel(compiler *c, const lksi_ir_node *node, lksi_step *step) {
    const lksi_lowering *answer = &step->kernel.lowering;
    for (int i = 0; i < node->n_inputs; i++)
        LKS_TRY(in_layout(c, node->inputs[i], answer->input_layouts[i], &step->inputs[i]));
    for (int i = 0; i < node->n_outputs; i++) {
        step->outputs[i] = node->outputs[i];
        lksi_ir_value *value = &c->ir.values[node->outputs[i]];
        if (value->role != LKSI_GRADIENT)
            value->layout = answer->output_layouts[i];
        else if (value->layout.id != answer->output_layouts[i].id)
            LKS_TRY(add_placed_value(c, &answer->outputs[i], answer->output_layouts[i], &step->outputs[i]));
    }
    return append_step(c, step);
}

/* Appends reorders after the kernel for parameter gradients that are stored in another layout than it writes. */
static lks_status append_final_reorders(compiler *c, const lksi_ir_node *node, const lksi_step *step) {
    for (int i = 0; i < node->n_outputs; i++)
        if (step->outputs[i] != node->outputs[i])
            LKS_TRY(append_reorder(c, &step->kernel.lowering.outputs[i], step->outputs[i],
                                   c->ir.values[step->outputs[i]].layout, node->outputs[i],
                                   c->ir.values[node->outputs[i]].layout));
    return LKS_OK;
}

/* graph/ lowers host steps. The device lowers all other operators. */
static lks_status lower(const compiler *c, const lksi_lowering *lowering, lksi_kernel *kernel) {
    const lks_device *device = c->ir.graph->device;
    if (!lksi_is_host_step(lowering->op)) return device->ops->lower(device, lowering, kernel);
    lksi_lower_host_step(c->program, lowering, kernel);
    return LKS_OK;
}

static void offer(const compiler *c, const lksi_chain *chain, lksi_lowering *lowering) {
    lowering->epilogues = chain->ops;
    lowering->n_epilogues = chain->n;
    if (chain->addend == LKSI_NO_VALUE) return;
    lowering->inputs[lowering->n_inputs] = c->ir.values[chain->addend].tensor;
    lowering->input_layouts[lowering->n_inputs] = layout_of(c, chain->addend);
    lowering->is_term_read = chain->is_term_read;
    if (chain->is_term_read) lowering->outputs[lowering->n_outputs] = lowering->outputs[0];
}

/* Offers the node's epilogues to the device. The epilogues that it takes are merged into the node. */
static lks_status lower_node(compiler *c, size_t index) {
    lksi_ir_node *node = &c->ir.nodes[index];
    lksi_chain chain;
    lksi_find_epilogues(&c->ir, c->n_users, index, &chain);
    lksi_lowering lowering = lowering_of(c, node);
    offer(c, &chain, &lowering);
    lksi_step step = {0};
    LKS_TRY(lower(c, &lowering, &step.kernel));
    lksi_take_epilogues(&c->ir, c->n_users, &chain, step.kernel.n_epilogues);
    assert(step.kernel.lowering.n_inputs == node->n_inputs && step.kernel.lowering.n_outputs == node->n_outputs);
    lks_status status = append_kernel(c, node, &step);
    if (status != LKS_OK) {
        if (step.kernel.release != NULL) step.kernel.release(&step.kernel);
        return status;
    }
    return append_final_reorders(c, node, &step);
}

/* Adds row-major copies of the values that the user reads. */
static lks_status make_readable(compiler *c, lksi_binding *bindings, int n_bindings) {
    for (int i = 0; i < n_bindings; i++) LKS_TRY(in_layout(c, bindings[i].value, (lksi_layout){0}, &bindings[i].value));
    return LKS_OK;
}

/* Whether the value may change while the user still reads it: a step changes the store, and inputs may be states, or
 * be set again. No device has a kernel that copies integers. */
static bool may_change(const compiler *c, const lksi_ir_value *value) {
    bool is_float = value->tensor.type == c->ir.graph->device->float_type;
    return value->role == LKSI_PARAMETER || (value->role == LKSI_INPUT && is_float);
}

/* Adds copies of the outputs that are parameters, buffers or inputs. */
static lks_status copy_leaf_outputs(compiler *c) {
    for (int i = 0; i < c->program->n_outputs; i++) {
        lksi_value *output = &c->program->outputs[i].value, leaf = *output;
        if (!may_change(c, &c->ir.values[leaf])) continue;
        lksi_tensor tensor = c->ir.values[leaf].tensor; /* copied, because the array may move */
        lksi_lowering lowering = lksi_reorder_lowering(&tensor, (lksi_layout){0}, (lksi_layout){0});
        lowering.op = LKSI_OP_COPY; /* a device without layouts has no kernel for REORDER */
        LKS_TRY(add_placed_value(c, &tensor, (lksi_layout){0}, output));
        LKS_TRY(append_copy(c, &lowering, leaf, *output));
    }
    return LKS_OK;
}

/* The row-major copies are made before the backward pass, while the values are still in the caches. */
static lks_status finish_forward(compiler *c) {
    LKS_TRY(make_readable(c, c->program->outputs, c->program->n_outputs));
    LKS_TRY(copy_leaf_outputs(c));
    c->program->n_forward = c->program->n_steps;
    return LKS_OK;
}

static lks_status lower_all(compiler *c) {
    for (size_t i = 0; i < c->ir.n_nodes; i++) {
        if (i == c->ir.n_forward) LKS_TRY(finish_forward(c));
        if (!c->ir.nodes[i].is_removed) LKS_TRY(lower_node(c, i));
    }
    if (c->ir.n_forward == c->ir.n_nodes) LKS_TRY(finish_forward(c));
    return make_readable(c, c->program->input_gradients, c->program->n_input_gradients);
}

/* --- memory --- */

static void touch(lksi_interval *interval, int step) {
    if (interval->first > step) interval->first = step;
    if (interval->last < step) interval->last = step;
}

/* Extends the lifetime of a temporary to `step`. The intervals of other values stay exact, because find_firsts and
 * find_finals read them. */
static void stay(compiler *c, lksi_value value, int step) {
    if (c->ir.values[value].role == LKSI_TEMPORARY) touch(&c->intervals[value], step);
}

/* Whether the step writes a gradient, no other step uses its outputs, and the device runs it. */
static bool is_leaf(const compiler *c, size_t s) {
    const lksi_step *step = &c->program->steps[s];
    bool has_gradient = false;
    if (lksi_is_host_step(step->kernel.lowering.op)) return false;
    for (int i = 0; i < step->kernel.lowering.n_outputs; i++) {
        const lksi_interval *used = &c->intervals[step->outputs[i]];
        if (used->first != (int)s || used->last != (int)s) return false;
        has_gradient |= c->ir.values[step->outputs[i]].role == LKSI_GRADIENT;
    }
    return has_gradient;
}

/* Marks the steps of the backward pass that run on a branch beside the others. The main stream waits for a branch
 * when the next branch begins, or at the end of the pass. Until then what the branch reads and writes must stay
 * allocated. */
static void find_branches(compiler *c) {
    lks_program *program = c->program;
    int end = (int)program->n_steps;
    if (!c->ir.graph->device->has_branches || program->is_timed) return;
    for (size_t s = program->n_forward; s < program->n_steps; s++) program->steps[s].is_branch = is_leaf(c, s);
    for (size_t s = program->n_steps; s-- > program->n_forward;) {
        const lksi_step *step = &program->steps[s];
        if (!step->is_branch) continue;
        program->has_branches = true;
        for (int i = 0; i < step->kernel.lowering.n_inputs; i++) stay(c, step->inputs[i], end);
        for (int i = 0; i < step->kernel.lowering.n_outputs; i++) stay(c, step->outputs[i], end);
        if (s == program->n_forward || !program->steps[s - 1].is_branch) end = (int)s;
    }
}

/* Computes the lifetimes of the temporaries, in steps. Values outside the arena get no bytes. */
static void find_lifetimes(compiler *c) {
    lks_program *program = c->program;
    for (size_t v = 0; v < c->ir.n_values; v++) c->intervals[v] = (lksi_interval){.first = INT32_MAX, .last = -1};
    for (size_t s = 0; s < program->n_steps; s++) {
        const lksi_step *step = &program->steps[s];
        for (int i = 0; i < step->kernel.lowering.n_inputs; i++) touch(&c->intervals[step->inputs[i]], (int)s);
        for (int i = 0; i < step->kernel.lowering.n_outputs; i++) touch(&c->intervals[step->outputs[i]], (int)s);
    }
    for (int i = 0; i < program->n_outputs; i++) /* they can be read until the next forward */
        touch(&c->intervals[program->outputs[i].value], (int)program->n_steps);
    for (int i = 0; i < program->n_input_gradients; i++)
        stay(c, program->input_gradients[i].value, (int)program->n_steps);
    find_branches(c);
    for (size_t v = 0; v < c->ir.n_values; v++)
        if (c->ir.values[v].role == LKSI_TEMPORARY && c->intervals[v].last >= 0)
            c->intervals[v].nbytes = lksi_layout_nbytes(&c->ir.values[v].layout, &c->ir.values[v].tensor);
}

static size_t aligned(size_t offset) { return (offset + 255) / 256 * 256; }

/* The largest scratch size of the steps on the branch, or of the others. Steps of one kind run one after the other and
 * share one area. */
static size_t most_scratch(const lks_program *program, bool is_branch) {
    size_t most = 0;
    for (size_t s = 0; s < program->n_steps; s++)
        if (program->steps[s].is_branch == is_branch && program->steps[s].kernel.scratch_nbytes > most)
            most = program->steps[s].kernel.scratch_nbytes;
    return most;
}

static lks_status place(compiler *c) {
    lks_program *program = c->program;
    c->intervals = lksi_alloc_array(c->ir.n_values, sizeof *c->intervals);
    program->memory = lksi_alloc_array(c->ir.n_values, sizeof *program->memory);
    if (c->intervals == NULL || program->memory == NULL) return LKS_ERR_MEMORY;
    find_lifetimes(c);
    LKS_TRY(lksi_plan_memory(c->intervals, c->ir.n_values, &program->scratch_offset));
    program->scratch_offset = aligned(program->scratch_offset);
    program->arena_nbytes = program->scratch_offset + most_scratch(program, false);
    if (program->has_branches) {
        program->branch_scratch_offset = aligned(program->arena_nbytes);
        program->arena_nbytes = program->branch_scratch_offset + most_scratch(program, true);
    }
    const lks_device *device = program->store->graph->device;
    if (lksi_device_has_memory(device))
        LKS_TRY(lksi_device_alloc(device, sizeof *program->scalars, (void **)&program->scalars));
    return lksi_device_alloc(device, program->arena_nbytes, (void **)&program->arena);
}

/* The store's index of the parameter that `value` is, or is the gradient of. Negative: not in the store. */
static int slot_of(const compiler *c, const lksi_ir_value *value) {
    return lks_store_find(c->program->store, c->ir.graph->nodes[value->index]->name);
}

static bool is_stored(const lksi_ir_value *value) {
    return value->role == LKSI_PARAMETER || value->role == LKSI_GRADIENT;
}

/* Sets the layouts of parameters and gradients to those of the store. */
static lks_status find_storage(compiler *c) {
    const lks_store *store = c->program->store;
    for (size_t v = 0; v < c->ir.n_values; v++) {
        lksi_ir_value *value = &c->ir.values[v];
        if (!is_stored(value)) continue;
        int index = slot_of(c, value);
        if (index < 0)
            return lksi_error(LKS_ERR_STATE, "parameter '%s' is not in the store",
                              c->ir.graph->nodes[value->index]->name);
        value->layout = store->slots[index].layout;
    }
    return LKS_OK;
}

static lks_status find_stored(compiler *c) {
    lks_program *program = c->program;
    size_t n = 0;
    for (size_t v = 0; v < c->ir.n_values; v++) n += is_stored(&c->ir.values[v]);
    program->stored = lksi_alloc_array(n, sizeof *program->stored);
    if (program->stored == NULL) return LKS_ERR_MEMORY;
    for (size_t v = 0; v < c->ir.n_values; v++) {
        const lksi_ir_value *value = &c->ir.values[v];
        if (!is_stored(value)) continue;
        size_t offset = program->store->slots[slot_of(c, value)].offset * lks_type_nbytes(value->tensor.type);
        program->stored[program->n_stored++] = (lksi_stored){(lksi_value)v, value->role == LKSI_GRADIENT, offset};
    }
    lksi_program_bind_stored(program);
    return LKS_OK;
}

/* Allocates device memory for the inputs, if kernels cannot read host memory. */
static lks_status place_inputs(compiler *c) {
    lks_program *program = c->program;
    const lks_device *device = program->store->graph->device;
    if (!lksi_device_has_memory(device)) return LKS_OK;
    for (int i = 0; i < program->n_inputs; i++) {
        size_t nbytes = lksi_tensor_nbytes(&c->ir.values[program->inputs[i].value].tensor);
        LKS_TRY(lksi_device_alloc(device, nbytes, &program->inputs[i].room));
    }
    return LKS_OK;
}

static void bind_memory(compiler *c) {
    lks_program *program = c->program;
    lksi_scalars *there = program->scalars;
    for (size_t v = 0; v < c->ir.n_values; v++) {
        const lksi_ir_value *value = &c->ir.values[v];
        switch (value->role) {
        case LKSI_PARAMETER:
        case LKSI_GRADIENT: /* find_stored */
            break;
        case LKSI_SEED:
            program->memory[v] = there != NULL ? (void *)&there->seed : &program->seed;
            break;
        case LKSI_BUFFER_WEIGHT:
            program->memory[v] = there != NULL ? (void *)&there->buffer_weight : &program->buffer_weight;
            break;
        case LKSI_RANDOM:
            program->memory[v] = there != NULL ? there->random : program->random;
            program->draws = c->ir.is_training;
            break;
        case LKSI_TEMPORARY:
            program->memory[v] = program->arena + c->intervals[v].offset;
            break;
        case LKSI_INPUT:
            program->inputs[program->n_inputs++] =
                (lksi_binding){.node = c->ir.graph->nodes[value->index], .value = (lksi_value)v};
            break;
        }
    }
}

static int by_step(const void *a, const void *b) {
    const lksi_touch *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Finds the first step of the forward pass that touches each tensor of the store, for lksi_store_settle. */
static lks_status find_firsts(compiler *c) {
    lks_program *program = c->program;
    size_t n_slots = (size_t)program->store->n_slots;
    program->firsts = lksi_alloc_array(n_slots, sizeof *program->firsts);
    if (program->firsts == NULL) return LKS_ERR_MEMORY;
    for (size_t i = 0; i < n_slots; i++) program->firsts[i] = (lksi_touch){program->n_forward, (int)i};
    for (size_t v = 0; v < c->ir.n_values; v++) {
        const lksi_ir_value *value = &c->ir.values[v];
        if (!is_stored(value) || c->intervals[v].last < 0) continue;
        lksi_touch *first = &program->firsts[slot_of(c, value)];
        if ((size_t)c->intervals[v].first < first->step) first->step = (size_t)c->intervals[v].first;
    }
    qsort(program->firsts, n_slots, sizeof *program->firsts, by_step);
    while (program->n_firsts < n_slots && program->firsts[program->n_firsts].step < program->n_forward)
        program->n_firsts++;
    return LKS_OK;
}

/* Finds the step after which each gradient is final: the last step that writes or reads its memory. Reads count,
 * because a callback may change a gradient in place while other gradients are still computed from it: in `tanh(p) + q`,
 * that of p from that of q.
 *
 * The order is that of the store, for ranks may call collectives in the callback. In this program another order may be
 * possible: at batch 1 nothing is summed over the batch, and the CPU decides what is converted at the end. A gradient
 * that is final before those ahead of it in the order waits for them. */
static lks_status find_finals(compiler *c) {
    lks_program *program = c->program;
    const lks_store *store = program->store;
    size_t n_slots = (size_t)store->n_slots, told_last = 0;
    program->finals = lksi_alloc_array(n_slots, sizeof *program->finals);
    if (program->finals == NULL) return LKS_ERR_MEMORY;
    for (size_t i = 0; i < n_slots; i++) program->finals[i].index = -1;
    for (size_t v = 0; v < c->ir.n_values; v++) {
        const lksi_ir_value *value = &c->ir.values[v];
        if (value->role != LKSI_GRADIENT) continue;
        size_t last = (size_t)c->intervals[v].last;                          /* steps read no aliases */
        size_t told = last < program->n_forward ? program->n_forward : last; /* callbacks run in backward */
        int slot = slot_of(c, value);
        program->finals[store->slots[slot].position] = (lksi_touch){told, slot};
    }
    for (size_t i = 0; i < n_slots; i++) {
        lksi_touch final = program->finals[i];
        if (final.index < 0) continue;
        if (final.step > told_last) told_last = final.step;
        program->finals[program->n_finals++] = (lksi_touch){told_last, final.index};
    }
    return LKS_OK;
}

/* Finds the steps whose factors may be taken instead of their product. */
static void find_products(compiler *c) {
    for (size_t s = 0; s < c->program->n_steps; s++) {
        lksi_step *step = &c->program->steps[s];
        const lksi_ir_value *value = &c->ir.values[step->outputs[0]];
        const lksi_interval *used = &c->intervals[step->outputs[0]];
        bool is_product = step->kernel.lowering.op == LKSI_OP_LINEAR_GRAD_WEIGHT && value->role == LKSI_GRADIENT &&
                          used->first == (int)s && used->last == (int)s;
        step->product_of = is_product ? slot_of(c, value) : -1;
    }
}

/* Lists the parameters whose gradient no step writes. */
static lks_status find_untrained(compiler *c) {
    lks_program *program = c->program;
    const lks_store *store = program->store;
    program->untrained = lksi_alloc_array((size_t)store->n_parameters, sizeof *program->untrained);
    if (program->untrained == NULL) return LKS_ERR_MEMORY;
    for (int index = 0; index < store->n_parameters; index++) {
        size_t i = 0;
        while (i < program->n_finals && program->finals[i].index != index) i++;
        if (i == program->n_finals) program->untrained[program->n_untrained++] = index;
    }
    if (program->n_untrained < store->n_parameters || program->n_input_gradients > 0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "the loss depends on no parameter");
}

/* `outputs` has room for the store's buffers, too: a training step updates every buffer, even if the loss does not
 * depend on it. */
static lks_status build_ir(compiler *c, const lks_program_options *options, lks_node **outputs, int n_outputs) {
    lks_program *program = c->program;
    int n_needed = n_outputs;
    for (int i = program->store->n_parameters; i < program->store->n_slots && options->is_training; i++)
        outputs[n_needed++] = program->store->slots[i].node;
    LKS_TRY(lksi_ir_create(&c->ir, program->store->graph, options, outputs, n_needed));
    if (options->is_training) LKS_TRY(lksi_ir_differentiate(&c->ir, options->loss));
    c->n_users = lksi_alloc_array(c->ir.n_values, sizeof *c->n_users);
    program->inputs = lksi_alloc_array(c->ir.graph->n_nodes, sizeof *program->inputs);
    program->outputs = lksi_alloc_array((size_t)n_outputs, sizeof *program->outputs);
    size_t n_differentiated = (size_t)options->n_differentiated;
    program->input_gradients = lksi_alloc_array(n_differentiated, sizeof *program->input_gradients);
    bool has_all = program->inputs != NULL && program->outputs != NULL && program->input_gradients != NULL;
    if (c->n_users == NULL || !has_all) return LKS_ERR_MEMORY;
    for (int i = 0; i < n_outputs; i++)
        program->outputs[program->n_outputs++] =
            (lksi_binding){.node = outputs[i], .value = c->ir.node_values[outputs[i]->id]};
    for (int i = 0; i < options->n_differentiated; i++)
        program->input_gradients[program->n_input_gradients++] =
            (lksi_binding){.node = options->differentiated[i], .value = c->ir.input_gradients[i]};
    return LKS_OK;
}

static lks_status compile(compiler *c, const lks_program_options *options, lks_node **outputs, int n_outputs) {
    LKS_TRY(build_ir(c, options, outputs, n_outputs));
    LKS_TRY(find_storage(c));
    count_users(c);
    lksi_fuse(&c->ir, c->n_users);
    remove_unused(c);
    LKS_TRY(lower_all(c));
    LKS_TRY(place(c));
    bind_memory(c);
    LKS_TRY(find_stored(c));
    LKS_TRY(place_inputs(c));
    LKS_TRY(find_firsts(c));
    LKS_TRY(find_finals(c));
    find_products(c);
    return options->is_training ? find_untrained(c) : LKS_OK;
}

static lks_status check_differentiated(const lks_store *store, const lks_program_options *options) {
    if (options->n_differentiated < 0 || (options->n_differentiated > 0 && options->differentiated == NULL))
        return lksi_error(LKS_ERR_ARGUMENT, "a program with %d differentiated inputs%s", options->n_differentiated,
                          options->n_differentiated > 0 ? ", but differentiated is NULL" : "");
    if (options->n_differentiated > 0 && !options->is_training)
        return lksi_error(LKS_ERR_ARGUMENT, "only a training program can differentiate inputs");
    for (int i = 0; i < options->n_differentiated; i++) {
        char what[48];
        const lks_node *node = options->differentiated[i];
        snprintf(what, sizeof what, "differentiated input %d", i);
        LKS_TRY(lksi_store_check_node(store, node, what));
        if (node->op != LKSI_OP_INPUT || node->outputs[0].type != store->graph->device->float_type)
            return lksi_error(LKS_ERR_ARGUMENT, "%s is not an input of a floating type", what);
    }
    return LKS_OK;
}

static lks_status check_options(const lks_store *store, const lks_program_options *options) {
    LKS_TRY(lksi_graph_check(store->graph));
    if (options->batch < 1 || options->batch > INT32_MAX)
        return lksi_error(LKS_ERR_ARGUMENT, "a program's batch must be 1 to %d, not %lld", INT32_MAX,
                          (long long)options->batch);
    if (options->is_training && options->loss == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "a training program needs a loss");
    if (options->n_outputs < 0) return lksi_error(LKS_ERR_ARGUMENT, "a program with %d outputs", options->n_outputs);
    if (options->loss == NULL && options->n_outputs == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "a program without loss and outputs computes nothing");
    if (options->loss != NULL && options->loss->outputs[0].n_dims != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "the loss has %d dimensions; it must be a scalar",
                          options->loss->outputs[0].n_dims);
    if (options->n_outputs > 0 && options->outputs == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "a program with %d outputs, but outputs is NULL", options->n_outputs);
    if (options->loss != NULL) LKS_TRY(lksi_store_check_node(store, options->loss, "the loss"));
    for (int i = 0; i < options->n_outputs; i++) {
        char what[32];
        snprintf(what, sizeof what, "output %d", i);
        LKS_TRY(lksi_store_check_node(store, options->outputs[i], what));
    }
    return check_differentiated(store, options);
}

lks_status lks_program_create(lks_program **program, lks_store *store, const lks_program_options *options) {
    static const lks_program_options none;
    if (options == NULL) options = &none;
    LKS_TRY(lksi_check_given("program_create", "program", program));
    LKS_TRY(lksi_check_given("program_create", "store", store));
    LKS_TRY(check_options(store, options));
    lks_status status = LKS_ERR_MEMORY;
    int n_outputs = 0;
    size_t most_outputs = (size_t)options->n_outputs + 1 + (size_t)(store->n_slots - store->n_parameters);
    lks_node **outputs = lksi_alloc_array(most_outputs, sizeof(lks_node *));
    compiler c = {.program = lksi_alloc(sizeof(lks_program))};
    if (c.program != NULL) c.program->store = store;
    if (outputs == NULL || c.program == NULL) goto free_compiler;
    if (options->loss != NULL) outputs[n_outputs++] = options->loss;
    for (int i = 0; i < options->n_outputs; i++) outputs[n_outputs++] = options->outputs[i];
    c.program->batch = options->batch;
    c.program->given_buffer_weight = -1;
    c.program->is_training = options->is_training != 0;
    c.program->is_timed = options->is_timed != 0;
    status = compile(&c, options, outputs, n_outputs);
free_compiler:
    if (status == LKS_OK)
        *program = c.program;
    else
        lks_program_destroy(c.program);
    lksi_free(outputs);
    lksi_free(c.n_users);
    lksi_free(c.intervals);
    lksi_free(c.copies);
    lksi_ir_destroy(&c.ir);
    return status;
}
