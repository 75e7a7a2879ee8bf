/* Maps operators to the cpu device's own loops. */
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

/* Whether all tensors have one shape, so that they can be processed in storage order. */
static bool is_uniform(const lksi_lowering *l) {
    for (int i = 0; i < l->n_inputs; i++)
        if (!lksi_tensor_equal(&l->inputs[i], &l->outputs[0])) return false;
    return true;
}

/* Gives all tensors the first layout among the inputs that is not row-major, if there is one. */
static void share_layout(lksi_lowering *l) {
    lksi_layout layout = {0};
    for (int i = l->n_inputs; i-- > 0;)
        if (l->input_layouts[i].id != 0) layout = l->input_layouts[i];
    for (int i = 0; i < l->n_inputs; i++) l->input_layouts[i] = layout;
    l->output_layouts[0] = layout;
}

static size_t scratch_nbytes(const lksi_lowering *l) {
    if (l->op == LKSI_OP_LAYER_NORM_GRAD) return 2 * (size_t)lksi_tensor_columns(&l->inputs[0]) * sizeof(double);
    return l->op == LKSI_OP_SUM || l->op == LKSI_OP_MEAN || l->op == LKSI_OP_SUM_TO ? lksi_sums_nbytes(l) : 0;
}

/* Elements of other sizes than f32 are left to the reference device. */
bool lksi_onednn_lower_loop(const lksi_lowering *question, lksi_kernel *kernel) {
    const loop_kernel *loop = &loop_kernels[question->op];
    if (loop->run == NULL || lks_type_nbytes(question->inputs[0].type) != sizeof(float)) return false;
    *kernel = (lksi_kernel){.name = kernel_names[question->op],
                            .run = loop->run,
                            .lowering = *question,
                            .scratch_nbytes = scratch_nbytes(question)};
    if (loop->keeps_layout && is_uniform(question))
        share_layout(&kernel->lowering);
    else
        lksi_lowering_make_row_major(&kernel->lowering);
    return true;
}

bool lksi_take_epilogue(const lksi_lowering *offer, lksi_op op, lksi_kernel *kernel) {
    if (kernel->n_epilogues >= offer->n_epilogues || offer->epilogues[kernel->n_epilogues] != op) return false;
    kernel->epilogues[kernel->n_epilogues++] = op;
    return true;
}

size_t lksi_stored_count(const lksi_kernel *kernel) {
    return lksi_layout_nbytes(&kernel->lowering.output_layouts[0], &kernel->lowering.outputs[0]) / sizeof(float);
}
