/* Kernels of the operators that map each element by itself. */
#include "onednn/kernels.h"
#include "onednn/loops.h"
#include "onednn/tanh.h"

#include <string.h>

lks_status lksi_run_copy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    memcpy(out[0], in[0], lksi_layout_nbytes(&kernel->lowering.output_layouts[0], &kernel->lowering.outputs[0]));
    return LKS_OK;
}

lks_status lksi_run_tanh(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    size_t count = lksi_stored_count(kernel);
    if (out[0] != in[0]) memcpy(out[0], in[0], count * sizeof(float));
    LKSI_ISA_PICK(lksi_tanh_loops)->run(out[0], count);
    return LKS_OK;
}

lks_status lksi_run_elementwise(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    float parameter = (float)(l->op == LKSI_OP_SCALE ? l->attributes.factor : l->attributes.slope);
    const float *second = l->n_inputs == 2 ? in[1] : NULL;
    if (l->op == LKSI_OP_SCALE && second != NULL) parameter *= *second;
    LKSI_ISA_PICK(lksi_elementwise_loops)->of[l->op](lksi_stored_count(kernel), parameter, in[0], second, out[0]);
    return LKS_OK;
}
