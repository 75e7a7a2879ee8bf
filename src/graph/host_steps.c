/* Host steps: what no device computes, because it takes other ranks. */
#include "graph/program_internal.h"

#include <string.h>

/* An absent rank gets zeros, too: what the others' sums tell would make gradients of nothing. */
static lks_status all_reduce(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lks_program *program = kernel->state;
    const lksi_tensor *tensor = &kernel->lowering.outputs[0];
    size_t nbytes = lksi_tensor_nbytes(tensor), count = nbytes / lks_type_nbytes(tensor->type);
    if (program->is_absent)
        memset(out[0], 0, nbytes);
    else
        memcpy(out[0], in[0], nbytes);
    LKS_TRY(program->ranks.sum(program->ranks.context, out[0], count, tensor->type));
    if (program->is_absent) memset(out[0], 0, nbytes);
    return LKS_OK;
}

void lksi_lower_all_reduce(lks_program *program, const lksi_lowering *lowering, lksi_kernel *kernel) {
    *kernel = (lksi_kernel){.name = "host:all_reduce",
                            .run = all_reduce,
                            .lowering = *lowering,
                            .is_deterministic = true,
                            .state = program};
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
