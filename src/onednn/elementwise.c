/* Kernels of the element-wise operators. */
#include "onednn/kernels.h"
#include "onednn/libm.h"
#include "onednn/loops.h"

#include <string.h>

lks_status lksi_run_copy(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    memcpy(out[0], in[0], lksi_layout_nbytes(&kernel->lowering.output_layouts[0], &kernel->lowering.outputs[0]));
    return LKS_OK;
}

lks_status lksi_run_libm(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    size_t count = lksi_stored_count(kernel);
    if (out[0] != in[0]) memcpy(out[0], in[0], count * sizeof(float));
    LKSI_ISA_PICK(lksi_libm_loops)->of[kernel->lowering.op]((float)kernel->lowering.attributes.number, out[0], count);
    return LKS_OK;
}

lks_status lksi_run_elementwise(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    const lksi_lowering *l = &kernel->lowering;
    float number = (float)l->attributes.number;
    const float *second = l->n_inputs == 2 ? in[1] : NULL;
    if (l->op == LKSI_OP_SCALE && second != NULL) number *= *second;
    LKSI_ISA_PICK(lksi_elementwise_loops)->of[l->op](lksi_stored_count(kernel), number, in[0], second, out[0]);
    return LKS_OK;
}
