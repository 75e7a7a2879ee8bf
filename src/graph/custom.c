/* Custom operators: their constructor, and the host step that calls the user's functions. */
#include "base/signals.h"
#include "graph/program_internal.h"

#include <lockstep/operators.h>
#include <string.h>

struct lksi_custom {
    lks_custom_options options; /* without the dimensions, which the node holds */
    char *kernel_name;          /* "host:" followed by the name */
};

static const char prefix[] = "host:";

const char *lksi_custom_name(const lksi_custom *custom) { return custom->kernel_name + sizeof prefix - 1; }

void lksi_custom_destroy(lksi_custom *custom) {
    if (custom == NULL) return;
    lksi_free(custom->kernel_name);
    lksi_free(custom);
}

static const lksi_custom *find_custom(const lks_graph *graph, const lksi_attributes *attributes) {
    return graph->nodes[attributes->begin]->custom;
}

lks_status lksi_custom_check_backward(const lks_graph *graph, const lksi_attributes *attributes) {
    const lksi_custom *custom = find_custom(graph, attributes);
    if (custom->options.backward != NULL) return LKS_OK;
    return lksi_error(LKS_ERR_UNSUPPORTED,
                      "the custom operator '%s' has no backward function, and the loss depends on it",
                      lksi_custom_name(custom));
}

/* --- the constructor --- */

static lks_status create_custom(lksi_custom **custom, const lks_custom_options *options) {
    size_t nbytes = sizeof prefix + strlen(options->name);
    *custom = lksi_alloc(sizeof **custom);
    if (*custom == NULL) return LKS_ERR_MEMORY;
    (*custom)->options = *options;
    (*custom)->kernel_name = lksi_alloc(nbytes);
    if ((*custom)->kernel_name == NULL) {
        lksi_custom_destroy(*custom);
        return LKS_ERR_MEMORY;
    }
    snprintf((*custom)->kernel_name, nbytes, "%s%s", prefix, options->name);
    return LKS_OK;
}

static lks_status check_options(lks_node *const *inputs, int n_inputs, const lks_custom_options *options) {
    LKS_TRY(lksi_check_given("custom", "inputs", inputs));
    LKS_TRY(lksi_check_given("custom", "options", options));
    LKS_TRY(lksi_check_name(options->name, "a custom operator"));
    if (options->forward == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "custom: '%s' has no forward function", options->name);
    if (n_inputs < 1 || n_inputs > LKS_MAX_CUSTOM_INPUTS)
        return lksi_error(LKS_ERR_ARGUMENT, "custom: '%s' has %d inputs; 1 to %d are possible", options->name, n_inputs,
                          LKS_MAX_CUSTOM_INPUTS);
    return lksi_check_dims(options->name, options->n_dims, options->dims, true);
}

static lks_node *operate(lks_graph *graph, lks_node *const *inputs, int n_inputs, const lks_custom_options *options) {
    lksi_attributes attributes = {.begin = (int64_t)graph->n_nodes,
                                  .stream = lksi_hash64(LKSI_HASH_START, options->name, strlen(options->name))};
    lksi_tensor result = {.type = graph->device->float_type, .n_dims = options->n_dims};
    for (int i = 0; i < options->n_dims; i++) result.dims[i] = options->dims[i];
    return lksi_graph_operate(LKSI_OP_CUSTOM, &attributes, inputs, n_inputs, &result);
}

lks_node *lks_custom(lks_node *const *inputs, int n_inputs, const lks_custom_options *options) {
    lks_node *first = inputs != NULL && n_inputs > 0 ? inputs[0] : NULL;
    lks_graph *graph = lks_node_graph(first);
    lks_status status = check_options(inputs, n_inputs, options);
    if (status != LKS_OK) return lksi_graph_poison(graph, status);
    if (lksi_node_is_poison(first)) return lksi_node_given(first, options->name);
    lksi_custom *custom;
    status = create_custom(&custom, options);
    if (status != LKS_OK) return lksi_graph_poison(graph, status);
    lks_node *node = operate(graph, inputs, n_inputs, options);
    if (lksi_node_is_poison(node))
        lksi_custom_destroy(custom);
    else
        node->custom = custom;
    return node;
}

/* --- the step on the host --- */

static lks_tensor_view view_of(const lksi_tensor *tensor, void *data) {
    return (lks_tensor_view){.type = tensor->type,
                             .n_dims = tensor->n_dims,
                             .dims = tensor->dims,
                             .count = lksi_tensor_count(tensor, 1),
                             .data = data};
}

static bool is_wanted(const lksi_lowering *lowering, int output) {
    return lowering->op == LKSI_OP_CUSTOM || (lowering->attributes.axes >> output & 1) != 0;
}

/* `in` and `out` are in host memory. */
static lks_status call_user(const lks_program *program, const lksi_lowering *lowering, void *const *in,
                            void *const *out) {
    const lksi_custom *custom = find_custom(program->store->graph, &lowering->attributes);
    bool is_backward = lowering->op == LKSI_OP_CUSTOM_GRAD;
    int n_inputs = lowering->n_inputs - (is_backward ? 2 : 0);
    lks_tensor_view inputs[LKSI_MAX_INPUTS];
    void *gradients[LKSI_MAX_OUTPUTS];
    for (int i = 0; i < n_inputs; i++) inputs[i] = view_of(&lowering->inputs[i], in[i]);
    for (int i = 0; i < lowering->n_outputs; i++) gradients[i] = is_wanted(lowering, i) ? out[i] : NULL;
    lks_custom_call call = {.context = custom->options.context,
                            .is_training = program->is_training,
                            .n_inputs = n_inputs,
                            .inputs = inputs,
                            .output = is_backward ? view_of(&lowering->inputs[n_inputs], in[n_inputs])
                                                  : view_of(&lowering->outputs[0], out[0]),
                            .output_gradient = is_backward ? in[n_inputs + 1] : NULL,
                            .gradients = is_backward ? gradients : NULL};
    uint64_t n_errors = lksi_n_errors();
    lks_status status = (is_backward ? custom->options.backward : custom->options.forward)(&call);
    lksi_program_return(program);
    if (status == LKS_OK) return LKS_OK;
    return lksi_error_of_user(status, n_errors, "the %s function of the custom operator '%s'",
                              is_backward ? "backward" : "forward", lksi_custom_name(custom));
}

static size_t aligned(size_t nbytes) { return (nbytes + 63) / 64 * 64; }

static size_t total_nbytes(const lksi_tensor *tensors, int n_tensors) {
    size_t nbytes = 0;
    for (int i = 0; i < n_tensors; i++) nbytes += aligned(lksi_tensor_nbytes(&tensors[i]));
    return nbytes;
}

/* Assigns each tensor its part of `memory`. */
static void place(const lksi_tensor *tensors, int n_tensors, char *memory, void **placed) {
    for (int i = 0; i < n_tensors; i++) {
        placed[i] = memory;
        memory += aligned(lksi_tensor_nbytes(&tensors[i]));
    }
}

/* For devices with their own memory: copies the tensors to the host and back. */
static lks_status run_there(const lks_program *program, const lksi_lowering *lowering, void *const *in,
                            void *const *out) {
    const lks_device *device = program->store->graph->device;
    void *in_here[LKSI_MAX_INPUTS] = {NULL}, *out_here[LKSI_MAX_OUTPUTS] = {NULL};
    size_t in_nbytes = total_nbytes(lowering->inputs, lowering->n_inputs);
    char *memory = lksi_alloc(in_nbytes + total_nbytes(lowering->outputs, lowering->n_outputs));
    if (memory == NULL) return LKS_ERR_MEMORY;
    place(lowering->inputs, lowering->n_inputs, memory, in_here);
    place(lowering->outputs, lowering->n_outputs, memory + in_nbytes, out_here);
    lks_status status = LKS_OK;
    for (int i = 0; i < lowering->n_inputs && status == LKS_OK; i++)
        status = lksi_device_copy_out(device, in_here[i], in[i], lksi_tensor_nbytes(&lowering->inputs[i]));
    if (status == LKS_OK) status = call_user(program, lowering, in_here, out_here);
    for (int i = 0; i < lowering->n_outputs && status == LKS_OK; i++)
        if (is_wanted(lowering, i))
            status = lksi_device_copy_in(device, out[i], out_here[i], lksi_tensor_nbytes(&lowering->outputs[i]));
    lksi_free(memory);
    return status;
}

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lks_program *program = kernel->state;
    lksi_signals_let_in();
    return (lksi_device_has_memory(program->store->graph->device) ? run_there : call_user)(program, &kernel->lowering,
                                                                                           in, out);
}

void lksi_lower_custom(lks_program *program, const lksi_lowering *lowering, lksi_kernel *kernel) {
    const lksi_custom *custom = find_custom(program->store->graph, &lowering->attributes);
    *kernel = (lksi_kernel){.name = custom->kernel_name, .run = run, .lowering = *lowering, .state = program};
}
