/* From an operator to the cpu device's own loop for it. */
#include "onednn/kernels.h"

typedef struct loop_kernel {
    lks_status (*run)(const lksi_kernel *kernel, void *const *inputs, void *const *outputs, void *scratch);
    bool keeps_layout;
} loop_kernel;

static const loop_kernel loop_kernels[LKSI_OP_COUNT] = {
#define LOOP_KERNEL(op, name, keeps_layout) [LKSI_OP_##op] = {lksi_run_##name, keeps_layout},
    LKSI_LOOP_KERNELS(LOOP_KERNEL)
#undef LOOP_KERNEL
};

static const char *const kernel_names[] = {
#define KERNEL_NAME(name, text, least, most, n_outputs, family) "cpu:" text,
    LKSI_OP_TABLE(KERNEL_NAME)
#undef KERNEL_NAME
};

/* Whether all tensors have one shape and the inputs one layout. */
static bool is_uniform(const lksi_lowering *l) {
    for (int i = 0; i < l->n_inputs; i++)
        if (l->input_layouts[i].id != l->input_layouts[0].id || !lksi_tensor_equal(&l->inputs[i], &l->outputs[0]))
            return false;
    return true;
}

static size_t scratch_nbytes(const lksi_lowering *l) {
    return l->op == LKSI_OP_LAYER_NORM_GRAD ? (size_t)lksi_tensor_columns(&l->inputs[0]) * sizeof(float) : 0;
}

bool lksi_onednn_lower_loop(const lksi_lowering *question, lksi_kernel *kernel) {
    const loop_kernel *loop = &loop_kernels[question->op];
    if (loop->run == NULL) return false;
    *kernel = (lksi_kernel){.name = kernel_names[question->op],
                            .run = loop->run,
                            .lowering = *question,
                            .scratch_nbytes = scratch_nbytes(question),
                            .is_deterministic = true};
    if (loop->keeps_layout && is_uniform(question))
        kernel->lowering.output_layouts[0] = question->input_layouts[0];
    else
        lksi_lowering_make_row_major(&kernel->lowering);
    return true;
}

size_t lksi_stored_count(const lksi_kernel *kernel) {
    return lksi_layout_nbytes(&kernel->lowering.output_layouts[0], &kernel->lowering.outputs[0]) / sizeof(float);
}
