/* Host steps: operators that no device computes, because they communicate with other ranks or call functions of the
 * user (custom.c). */
#include "base/signals.h"
#include "graph/program_internal.h"

#include <string.h>

/* An absent rank contributes zeros and receives zeros. Otherwise the sums of the other ranks would produce gradients
 * from no data. */
static lks_status sum(const lks_program *program, const lksi_tensor *tensor, void *data) {
    size_t nbytes = lksi_tensor_nbytes(tensor);
    if (program->is_absent) memset(data, 0, nbytes);
    lksi_signals_let_in();
    LKS_TRY(program->ranks.sum(program->ranks.context, data, nbytes / lks_type_nbytes(tensor->type), tensor->type));
    if (program->is_absent) memset(data, 0, nbytes);
    return LKS_OK;
}

static lks_status all_reduce(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lks_program *program = kernel->state;
    const lksi_tensor *tensor = &kernel->lowering.outputs[0];
    const lks_device *device = program->store->graph->device;
    void *here = lksi_device_has_memory(device) ? lksi_alloc(lksi_tensor_nbytes(tensor)) : out[0];
    if (here == NULL) return LKS_ERR_MEMORY;
    lks_status status =
        program->is_absent ? LKS_OK : lksi_device_copy_out(device, here, in[0], lksi_tensor_nbytes(tensor));
    if (status == LKS_OK) status = sum(program, tensor, here);
    if (here == out[0]) return status;
    if (status == LKS_OK) status = lksi_device_copy_in(device, out[0], here, lksi_tensor_nbytes(tensor));
    lksi_free(here);
    return status;
}

static void lower_all_reduce(lks_program *program, const lksi_lowering *lowering, lksi_kernel *kernel) {
    *kernel = (lksi_kernel){.name = "host:all_reduce", .run = all_reduce, .lowering = *lowering, .state = program};
    program->needs_ranks = true;
}

bool lksi_is_host_step(lksi_op op) {
    return op == LKSI_OP_ALL_REDUCE || op == LKSI_OP_CUSTOM || op == LKSI_OP_CUSTOM_GRAD;
}

void lksi_lower_host_step(lks_program *program, const lksi_lowering *lowering, lksi_kernel *kernel) {
    (lowering->op == LKSI_OP_ALL_REDUCE ? lower_all_reduce : lksi_lower_custom)(program, lowering, kernel);
    lksi_lowering_make_row_major(&kernel->lowering);
    program->has_host_steps = true;
}

void lksi_program_set_ranks(lks_program *program, const lksi_program_ranks *ranks) { program->ranks = *ranks; }
void lksi_program_set_absent(lks_program *program, bool is_absent) { program->is_absent = is_absent; }

bool lksi_graph_is_synchronised(const lks_graph *graph) {
    for (size_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i]->attributes.is_synchronised) return true;
    return false;
}
