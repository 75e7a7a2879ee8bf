#include "onednn/elementwise.h"

#include "onednn/elementwise_loops.h"

#include <string.h>

typedef void (*loop)(const float *a, const float *b, float *y, size_t count);

static loop loop_of(lksi_op op) {
    const lksi_elementwise_loops *loops = LKSI_ISA_PICK(lksi_elementwise_loops);
    return op == LKSI_OP_ADD ? loops->add : op == LKSI_OP_RELU ? loops->relu : loops->relu_grad;
}

static size_t count_of(const lksi_tensor *tensor, const lksi_layout *layout) {
    return lksi_layout_nbytes(layout, tensor) / sizeof(float);
}

void lksi_onednn_relu(float *y, const lksi_tensor *tensor, const lksi_layout *layout) {
    loop_of(LKSI_OP_RELU)(y, NULL, y, count_of(tensor, layout));
}

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    size_t count = count_of(&l->outputs[0], &l->output_layouts[0]);
    if (l->op == LKSI_OP_COPY)
        memcpy(out[0], in[0], count * sizeof(float));
    else
        loop_of(l->op)(in[0], l->n_inputs == 2 ? in[1] : NULL, out[0], count);
    return LKS_OK;
}

bool lksi_onednn_is_elementwise(const lksi_lowering *lowering) {
    switch (lowering->op) {
    case LKSI_OP_COPY:
    case LKSI_OP_RELU:
    case LKSI_OP_RELU_GRAD:
        return lowering->inputs[0].type == LKS_F32;
    case LKSI_OP_ADD: /* broadcasting is another kernel's */
        return lksi_tensor_equal(&lowering->inputs[0], &lowering->inputs[1]);
    default:
        return false;
    }
}

lks_status lksi_onednn_lower_elementwise(const lksi_lowering *lowering, lksi_kernel *kernel) {
    static const char *const names[] = {[LKSI_OP_COPY] = "cpu:copy",
                                        [LKSI_OP_ADD] = "cpu:add",
                                        [LKSI_OP_RELU] = "cpu:relu",
                                        [LKSI_OP_RELU_GRAD] = "cpu:relu_grad"};
    *kernel = (lksi_kernel){.name = names[lowering->op], .run = run, .lowering = *lowering, .is_deterministic = true};
    /* The first input's layout that is not row-major, if there is one, for all. */
    lksi_layout layout = lowering->input_layouts[0];
    if (layout.id == 0 && lowering->n_inputs == 2) layout = lowering->input_layouts[1];
    for (int i = 0; i < lowering->n_inputs; i++) kernel->lowering.input_layouts[i] = layout;
    kernel->lowering.output_layouts[0] = layout;
    return LKS_OK;
}
