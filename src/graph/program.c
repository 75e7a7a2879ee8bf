/* Runs a program: a flat list of kernels over memory that was placed at compilation. */
#include "base/signals.h"
#include "base/timeline.h"
#include "graph/program_internal.h"

#include <math.h>
#include <string.h>

void lks_program_destroy(lks_program *program) {
    if (program == NULL) return;
    for (size_t s = 0; program->steps != NULL && s < program->n_steps; s++) {
        if (program->steps[s].kernel.release != NULL) program->steps[s].kernel.release(&program->steps[s].kernel);
        lksi_free(program->steps[s].label);
    }
    const lks_device *device = program->store->graph->device;
    for (int i = 0; i < program->n_inputs; i++) lksi_device_free(device, program->inputs[i].room);
    for (int i = 0; i < program->n_outputs; i++) lksi_free(program->outputs[i].mirror);
    for (int i = 0; i < program->n_input_gradients; i++) lksi_free(program->input_gradients[i].mirror);
    lksi_device_free(device, program->scalars);
    lksi_device_free(device, program->arena);
    lksi_free(program->steps);
    lksi_free(program->memory);
    lksi_free(program->stored);
    lksi_free(program->inputs);
    lksi_free(program->outputs);
    lksi_free(program->input_gradients);
    lksi_free(program->firsts);
    lksi_free(program->finals);
    lksi_free(program->untrained);
    lksi_free(program);
}

/* Finds the binding of an input. *binding is NULL if the program does not read the input. That is not an error, because
 * evaluation may need fewer inputs than training. */
static lks_status find_input(const lks_program *program, const lks_node *node, lksi_binding **binding) {
    *binding = NULL;
    for (int i = 0; i < program->n_inputs; i++)
        if (program->inputs[i].node == node) *binding = &program->inputs[i];
    if (*binding != NULL) return LKS_OK;
    if (lksi_node_is_poison(node)) return lksi_node_check(node, "the input");
    if (node->graph != program->store->graph)
        return lksi_error(LKS_ERR_ARGUMENT, "the input is a node of another graph than the store's");
    return node->op == LKSI_OP_INPUT ? LKS_OK : lksi_error(LKS_ERR_ARGUMENT, "the node is not an input");
}

lks_status lks_program_set_input(lks_program *program, lks_node *node, const void *data) {
    lksi_binding *input;
    LKS_TRY(lksi_check_given("program_set_input", "program", program));
    LKS_TRY(lksi_check_given("program_set_input", "node", node));
    LKS_TRY(find_input(program, node, &input));
    if (input == NULL) return LKS_OK;
    bool is_sent = input->room != NULL && data != NULL;
    input->given = is_sent ? data : NULL;
    input->is_new = true;
    program->memory[input->value] = is_sent ? input->room : (void *)(uintptr_t)data; /* kernels only read inputs */
    return LKS_OK;
}

static size_t nbytes_of(const lks_program *program, const lksi_binding *binding) {
    const lksi_tensor *tensor = &binding->node->outputs[0];
    return (size_t)lksi_tensor_count(tensor, program->batch) * lks_type_nbytes(tensor->type);
}

lks_status lksi_program_set_input_there(lks_program *program, lks_node *node, void *data) {
    lksi_binding *input;
    LKS_TRY(find_input(program, node, &input));
    if (input == NULL) return LKS_OK;
    bool is_copied = input->room != NULL && (uintptr_t)data % LKSI_DEVICE_ALIGNMENT != 0;
    input->given = NULL;
    program->memory[input->value] = is_copied ? input->room : data;
    return is_copied ? lksi_device_copy(program->store->graph->device, input->room, data, nbytes_of(program, input))
                     : LKS_OK;
}

void lks_program_set_random(lks_program *program, uint64_t seed, int64_t step, int64_t first_sample) {
    if (lksi_check_given("program_set_random", "program", program) != LKS_OK) return;
    program->random[0] = (int64_t)seed;
    program->random[1] = step;
    program->random[2] = first_sample;
    program->has_random = true;
}

void lks_program_set_buffer_weight(lks_program *program, double weight) {
    if (lksi_check_given("program_set_buffer_weight", "program", program) != LKS_OK) return;
    program->given_buffer_weight = weight;
}

const lks_store *lksi_program_store(const lks_program *program) { return program->store; }
int64_t lksi_program_batch(const lks_program *program) { return program->batch; }

lksi_batch_note *lksi_program_batch_note(lks_program *program) {
    return program->is_training ? &program->store->note : NULL;
}

void lks_on_gradient(lks_program *program, lks_gradient_callback callback, void *context) {
    if (lksi_check_given("on_gradient", "program", program) != LKS_OK) return;
    program->on_gradient = callback;
    program->on_gradient_context = context;
}

void lksi_program_on_final(lks_program *program, lks_gradient_callback callback, void *context) {
    program->on_final = callback;
    program->on_final_context = context;
}

void lksi_program_offer_factors(lks_program *program, lksi_take_factors take, void *context) {
    program->take_factors = take;
    program->take_factors_context = context;
}

/* Whether the step's factors are taken, so that its product need not be computed. */
static bool are_factors_taken(const lks_program *program, const lksi_step *step, void *const *inputs) {
    if (step->product_of < 0 || program->take_factors == NULL || program->on_gradient != NULL || program->is_absent)
        return false;
    const lksi_tensor *dy = &step->kernel.lowering.inputs[0], *x = &step->kernel.lowering.inputs[1];
    return program->take_factors(program->take_factors_context, &(lksi_factors){.index = step->product_of,
                                                                                .n = lksi_tensor_rows(dy),
                                                                                .m = lksi_tensor_columns(dy),
                                                                                .k = lksi_tensor_columns(x),
                                                                                .dy = inputs[0],
                                                                                .x = inputs[1]});
}

/* --- branches: work beside the rest of the pass --- */

static lks_status set_branch(lks_program *program, bool is_on) {
    const lks_device *device = program->store->graph->device;
    if (program->is_on_branch == is_on) return LKS_OK;
    program->is_on_branch = is_on;
    return is_on ? device->ops->memory->branch(device) : device->ops->memory->leave_branch(device);
}

/* Work that is queued after this call waits for all branches. */
static lks_status merge(lks_program *program) {
    const lks_device *device = program->store->graph->device;
    if (!program->has_branches) return LKS_OK;
    LKS_TRY(set_branch(program, false));
    return device->ops->memory->merge(device);
}

/* --- running --- */

void lksi_program_return(const lks_program *program) {
    lksi_device_enter(program->store->graph->device);
    lksi_signals_keep(true);
}

static lks_status tell_user(lks_program *program, int index) {
    lksi_signals_let_in();
    LKS_TRY(merge(program));
    uint64_t n_errors = lksi_n_errors();
    lks_status status = program->on_gradient(program->on_gradient_context, index);
    lksi_program_return(program);
    if (status == LKS_OK) return LKS_OK;
    return lksi_error_of_user(status, n_errors, "the callback of lks_on_gradient, called for '%s',",
                              program->store->slots[index].node->name);
}

static lks_status tell(lks_program *program, int index) {
    if (program->on_gradient != NULL) LKS_TRY(tell_user(program, index));
    return program->on_final != NULL ? program->on_final(program->on_final_context, index) : LKS_OK;
}

/* Calls the callbacks for the gradients that are final after step `s`. *next counts the calls. */
static lks_status tell_finals(lks_program *program, size_t s, size_t *next) {
    for (; *next < program->n_finals && program->finals[*next].step <= s; ++*next)
        LKS_TRY(tell(program, program->finals[*next].index));
    return LKS_OK;
}

/* Settles the tensors that step `s` is the first to touch. *next counts them. */
static lks_status settle_firsts(const lks_program *program, size_t s, size_t *next) {
    for (; *next < program->n_firsts && program->firsts[*next].step <= s; ++*next)
        LKS_TRY(lksi_store_settle(program->store, program->firsts[*next].index));
    return LKS_OK;
}

static lks_status count_time(const lks_program *program, lksi_step *step, int64_t began_ns) {
    const lks_device *device = program->store->graph->device;
    if (device->ops->memory != NULL) LKS_TRY(device->ops->memory->wait(device));
    if (++step->n_runs > 1)
        step->elapsed_ns += lksi_now_ns() - began_ns; /* the first run is not counted: it also initialises caches */
    return LKS_OK;
}

void lksi_program_bind_stored(lks_program *program) {
    const lks_store *store = program->store;
    for (size_t i = 0; i < program->n_stored; i++) {
        const lksi_stored *stored = &program->stored[i];
        program->memory[stored->value] =
            (char *)(stored->is_gradient ? store->gradients : store->values) + stored->offset;
    }
    program->n_swaps = store->n_swaps;
}

/* Appends the kernel and the shape of its result: "onednn:linear^T f32 (64, 256) + tanh". */
static void describe_step(const lksi_step *step, char *text, size_t nbytes) {
    char shape[128];
    lksi_tensor_format(&step->kernel.lowering.outputs[0], shape, sizeof shape);
    lksi_append(text, nbytes, "%s %s", step->kernel.name, shape);
    for (int i = 0; i < step->kernel.n_epilogues; i++)
        lksi_append(text, nbytes, " + %s", lksi_op_name(step->kernel.epilogues[i]));
}

/* A kernel of a device with its own memory still runs when the call returns. */
static void add_to_timeline(const lks_program *program, lksi_step *step, int64_t began_ns) {
    enum { LABEL_NBYTES = 80 };
    if (began_ns == 0) return;
    if (step->label == NULL) {
        step->label = lksi_alloc(LABEL_NBYTES);
        if (step->label == NULL) return;
        describe_step(step, step->label, LABEL_NBYTES);
    }
    bool is_launch = program->store->graph->device->ops->memory != NULL;
    lksi_timeline_end(began_ns, is_launch ? "launch" : "kernel", step->label);
}

static lks_status run_step(lks_program *program, lksi_step *step) {
    void *inputs[LKSI_MAX_INPUTS], *outputs[LKSI_MAX_OUTPUTS];
    for (int i = 0; i < step->kernel.lowering.n_inputs; i++) inputs[i] = program->memory[step->inputs[i]];
    for (int i = 0; i < step->kernel.lowering.n_outputs; i++) outputs[i] = program->memory[step->outputs[i]];
    int64_t began_ns = program->is_timed ? lksi_now_ns() : 0;
    step->are_factors_left = are_factors_taken(program, step, inputs);
    if (!step->are_factors_left) {
        void *scratch = program->arena + (step->is_branch ? program->branch_scratch_offset : program->scratch_offset);
        if (program->has_branches) LKS_TRY(set_branch(program, step->is_branch));
        int64_t section_ns = lksi_timeline_begin();
        LKS_TRY(step->kernel.run(&step->kernel, inputs, outputs, scratch));
        add_to_timeline(program, step, section_ns);
    }
    return program->is_timed ? count_time(program, step, began_ns) : LKS_OK;
}

static lks_status run_steps(lks_program *program, size_t begin, size_t end) {
    size_t n_told = 0, n_settled = begin == 0 ? 0 : program->n_firsts; /* only the forward pass settles step by step */
    for (size_t s = begin; s < end; s++) {
        LKS_TRY(settle_firsts(program, s, &n_settled));
        LKS_TRY(run_step(program, &program->steps[s]));
        lksi_signals_let_in_if_due();
        if (!program->is_absent) LKS_TRY(tell_finals(program, s, &n_told));
    }
    return LKS_OK;
}

/* `label` names the pass in the timeline. */
static lks_status run(lks_program *program, size_t begin, size_t end, const char *label) {
    int64_t section_ns = lksi_timeline_begin();
    lksi_device_enter(program->store->graph->device);
    if (program->n_swaps != program->store->n_swaps) lksi_program_bind_stored(program);
    lksi_signals_keep(true);
    lks_status status = run_steps(program, begin, end), merged = merge(program);
    lksi_signals_keep(false);
    lksi_timeline_end(section_ns, "pass", label);
    return status != LKS_OK ? status : merged;
}

/* Zeroes the gradients that this program does not write, so that none remains from another program's loss. */
static lks_status clear_untrained(const lks_program *program) {
    const lks_device *device = program->store->graph->device;
    size_t nbytes_each = lks_type_nbytes(device->float_type), offset, count;
    char *gradients = program->store->gradients;
    for (int i = 0; i < program->n_untrained; i++) {
        lksi_store_place(program->store, program->untrained[i], &offset, &count);
        LKS_TRY(lksi_device_zero(device, gradients + offset * nbytes_each, count * nbytes_each));
    }
    return LKS_OK;
}

/* Reports an error to the other ranks, which wait for this rank's sums. */
static lks_status tell_ranks(const lks_program *program, lks_status status) {
    if (status != LKS_OK && program->ranks.fail != NULL) program->ranks.fail(program->ranks.context, status);
    return status;
}

static lks_status check_inputs(const lks_program *program) {
    if (program->needs_ranks && program->ranks.sum == NULL)
        return lksi_error(LKS_ERR_STATE, "a program with synchronised batch norm needs its ranks: call "
                                         "lks_program_synchronise");
    if (program->draws && !program->has_random)
        return lksi_error(LKS_ERR_STATE, "a training program with dropout needs a key for its random draws: "
                                         "call lks_program_set_random before each forward pass");
    for (int i = 0; i < program->n_inputs; i++)
        if (program->memory[program->inputs[i].value] == NULL)
            return lksi_error(LKS_ERR_STATE, "input '%s' has no data", program->inputs[i].node->name);
    return LKS_OK;
}

/* --- data that is sent to a device with its own memory --- */

/* Sends all inputs, or only those that were set since they were last sent. */
static lks_status send_inputs(lks_program *program, bool are_all) {
    const lks_device *device = program->store->graph->device;
    for (int i = 0; i < program->n_inputs; i++) {
        lksi_binding *input = &program->inputs[i];
        if (input->given == NULL || !(are_all || input->is_new)) continue;
        input->is_new = false;
        LKS_TRY(lksi_device_copy_in(device, input->room, input->given, nbytes_of(program, input)));
    }
    return LKS_OK;
}

/* The weight of the batch in the averages of buffers. 0 on an absent rank. A negative factor negates the
 * gradients alone. */
static double buffer_weight(const lks_program *program, double factor) {
    if (program->is_absent) return 0;
    return program->given_buffer_weight >= 0 ? program->given_buffer_weight : fabs(factor);
}

static lks_status send_scalars(const lks_program *program, double factor) {
    lksi_scalars scalars = {.seed = (float)factor, .buffer_weight = (float)buffer_weight(program, factor)};
    memcpy(scalars.random, program->random, sizeof scalars.random);
    return lksi_device_copy_in(program->store->graph->device, program->scalars, &scalars, sizeof scalars);
}

lks_status lksi_program_send(lks_program *program, double factor) {
    LKS_TRY(check_inputs(program));
    LKS_TRY(send_inputs(program, true));
    return send_scalars(program, factor);
}

/* Invalidates the host's copies of the previous run's results. */
static void forget_mirrors(lks_program *program) {
    for (int i = 0; i < program->n_outputs; i++) program->outputs[i].is_mirrored = false;
    for (int i = 0; i < program->n_input_gradients; i++) program->input_gradients[i].is_mirrored = false;
    program->has_run_backward = false;
}

lks_status lksi_program_run(lks_program *program) {
    forget_mirrors(program);
    LKS_TRY(clear_untrained(program));
    LKS_TRY(run(program, 0, program->n_steps, "both passes"));
    program->has_results = program->has_run_backward = true;
    return LKS_OK;
}

bool lksi_program_is_recordable(const lks_program *program) { return !program->has_host_steps && !program->is_timed; }

static lks_status forward(lks_program *program) {
    program->has_run_forward = program->has_results = false;
    if (program->scalars == NULL)
        LKS_TRY(check_inputs(program));
    else
        LKS_TRY(lksi_program_send(program, 1));
    forget_mirrors(program);
    LKS_TRY(run(program, 0, program->n_forward, "forward"));
    program->has_run_forward = program->has_results = true;
    return LKS_OK;
}

static lksi_scalar scalar_of(const lks_program *program, double value) {
    bool is_f64 = program->store->graph->device->float_type == LKS_F64;
    return is_f64 ? (lksi_scalar){.f64 = value} : (lksi_scalar){.f32 = (float)value};
}

static lks_status backward(lks_program *program, double factor) {
    if (!program->is_training)
        return lksi_error(LKS_ERR_STATE, "the program was not compiled for training: it has no backward pass");
    if (!program->has_run_forward) return lksi_error(LKS_ERR_STATE, "backward without a forward before it");
    if (program->n_swaps != program->store->n_swaps)
        return lksi_error(LKS_ERR_STATE, "backward: a step has changed the parameters since the forward pass");
    LKS_TRY(check_inputs(program));
    forget_mirrors(program);
    program->has_run_forward = false; /* the backward pass overwrites results of the forward pass */
    program->seed = scalar_of(program, factor);
    program->buffer_weight = scalar_of(program, buffer_weight(program, factor));
    if (program->scalars != NULL) {
        LKS_TRY(send_inputs(program, false));
        LKS_TRY(send_scalars(program, factor));
    }
    LKS_TRY(lksi_store_settle(program->store, -1));
    LKS_TRY(lksi_store_begin_pass(program->store));
    LKS_TRY(clear_untrained(program));
    LKS_TRY(run(program, program->n_forward, program->n_steps, "backward"));
    lksi_store_end_pass(program->store);
    program->has_run_backward = true;
    return LKS_OK;
}

lks_status lks_program_forward(lks_program *program) {
    LKS_TRY(lksi_check_given("program_forward", "program", program));
    return tell_ranks(program, forward(program));
}

lks_status lks_program_backward(lks_program *program, double factor) {
    LKS_TRY(lksi_check_given("program_backward", "program", program));
    return tell_ranks(program, backward(program, factor));
}

static lksi_binding *find(lksi_binding *bindings, int n_bindings, const lks_node *node) {
    for (int i = 0; i < n_bindings; i++)
        if (bindings[i].node == node) return &bindings[i];
    return NULL;
}

static lksi_binding *find_output(const lks_program *program, const lks_node *node) {
    return find(program->outputs, program->n_outputs, node);
}

const void *lksi_program_output_there(const lks_program *program, const lks_node *node) {
    const lksi_binding *output = find_output(program, node);
    return output != NULL ? program->memory[output->value] : NULL;
}

/* Copies an output of a device with its own memory to the host. NULL after an error, whose text is set. */
static const void *mirror(const lks_program *program, lksi_binding *output) {
    const lks_device *device = program->store->graph->device;
    size_t nbytes = nbytes_of(program, output);
    if (output->mirror == NULL) output->mirror = lksi_alloc(nbytes);
    if (output->mirror == NULL) return NULL;
    if (!output->is_mirrored)
        output->is_mirrored =
            lksi_device_copy_out(device, output->mirror, program->memory[output->value], nbytes) == LKS_OK;
    return output->is_mirrored ? output->mirror : NULL;
}

static const void *read_binding(const lks_program *program, lksi_binding *binding) {
    if (binding == NULL) return NULL;
    return program->scalars != NULL ? mirror(program, binding) : program->memory[binding->value];
}

const void *lks_program_output(const lks_program *program, const lks_node *node) {
    if (lksi_check_given("program_output", "program", program) != LKS_OK) return NULL;
    if (!program->has_results) {
        (void)lksi_error(LKS_ERR_STATE, "the program has no outputs yet: there was no forward pass");
        return NULL;
    }
    return read_binding(program, find_output(program, node));
}

const void *lks_program_input_gradient(const lks_program *program, const lks_node *node) {
    if (lksi_check_given("program_input_gradient", "program", program) != LKS_OK) return NULL;
    if (!program->has_run_backward) {
        (void)lksi_error(LKS_ERR_STATE, "program_input_gradient without a backward pass before it");
        return NULL;
    }
    return read_binding(program, find(program->input_gradients, program->n_input_gradients, node));
}

double lks_program_scalar(const lks_program *program, const lks_node *node) {
    if (lksi_check_given("program_scalar", "program", program) != LKS_OK) return NAN;
    const void *data = lks_program_output(program, node);
    if (data == NULL || node->outputs[0].n_dims != 0) return NAN;
    switch (node->outputs[0].type) {
    case LKS_F32:
        return (double)*(const float *)data;
    case LKS_F64:
        return *(const double *)data;
    case LKS_I8:
        return *(const int8_t *)data;
    case LKS_U8:
        return *(const uint8_t *)data;
    case LKS_I32:
        return *(const int32_t *)data;
    case LKS_I64:
        return (double)*(const int64_t *)data;
    default: /* no operator computes in these types */
        return NAN;
    }
}

size_t lks_program_nbytes(const lks_program *program) {
    return lksi_check_given("program_nbytes", "program", program) == LKS_OK ? program->arena_nbytes : 0;
}

void lks_program_describe(const lks_program *program, char *text, size_t nbytes) {
    if (nbytes == 0 || lksi_check_given("program_describe", "text", text) != LKS_OK) return;
    text[0] = '\0';
    if (lksi_check_given("program_describe", "program", program) != LKS_OK) return;
    const lks_device *device = program->store->graph->device;
    for (size_t s = 0; s < program->n_steps; s++) {
        const lksi_step *step = &program->steps[s];
        const lksi_lowering *lowering = &step->kernel.lowering;
        describe_step(step, text, nbytes);
        size_t written = 0;
        for (int i = 0; i < lowering->n_outputs; i++)
            written += lksi_layout_nbytes(&lowering->output_layouts[i], &lowering->outputs[i]);
        lksi_append(text, nbytes, " | %s | %zu bytes", lksi_layout_name(device, lowering->output_layouts[0].id),
                    written);
        if (step->are_factors_left) lksi_append(text, nbytes, " | left as factors");
        if (step->n_runs > 1)
            lksi_append(text, nbytes, " | %.1f us", (double)step->elapsed_ns / (double)(step->n_runs - 1) / 1e3);
        lksi_append(text, nbytes, "\n");
    }
    lksi_append(text, nbytes, "activations and scratch: %zu bytes, planned by liveness | products in %s\n",
                lks_program_nbytes(program), lks_type_name(device->product_type));
}
