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

lks_status lksi_run_relu(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    LKSI_ISA_PICK(lksi_elementwise_loops)->relu(lksi_stored_count(kernel), in[0], out[0]);
    return LKS_OK;
}

lks_status lksi_run_relu_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    LKSI_ISA_PICK(lksi_elementwise_loops)->relu_grad(lksi_stored_count(kernel), in[0], in[1], out[0]);
    return LKS_OK;
}

lks_status lksi_run_leaky_relu(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    float slope = (float)kernel->lowering.attributes.slope;
    LKSI_ISA_PICK(lksi_elementwise_loops)->leaky_relu(lksi_stored_count(kernel), slope, in[0], out[0]);
    return LKS_OK;
}

lks_status lksi_run_leaky_relu_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    float slope = (float)kernel->lowering.attributes.slope;
    LKSI_ISA_PICK(lksi_elementwise_loops)->leaky_relu_grad(lksi_stored_count(kernel), slope, in[0], in[1], out[0]);
    return LKS_OK;
}

lks_status lksi_run_gelu(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    LKSI_ISA_PICK(lksi_elementwise_loops)->gelu(lksi_stored_count(kernel), in[0], out[0]);
    return LKS_OK;
}

lks_status lksi_run_gelu_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    LKSI_ISA_PICK(lksi_elementwise_loops)->gelu_grad(lksi_stored_count(kernel), in[0], in[1], out[0]);
    return LKS_OK;
}

lks_status lksi_run_tanh(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    size_t count = lksi_stored_count(kernel);
    if (out[0] != in[0]) memcpy(out[0], in[0], count * sizeof(float));
    LKSI_ISA_PICK(lksi_tanh_loops)->run(out[0], count);
    return LKS_OK;
}

lks_status lksi_run_tanh_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    LKSI_ISA_PICK(lksi_elementwise_loops)->tanh_grad(lksi_stored_count(kernel), in[0], in[1], out[0]);
    return LKS_OK;
}

lks_status lksi_run_sigmoid(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    LKSI_ISA_PICK(lksi_elementwise_loops)->sigmoid(lksi_stored_count(kernel), in[0], out[0]);
    return LKS_OK;
}

lks_status lksi_run_sigmoid_grad(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    LKSI_ISA_PICK(lksi_elementwise_loops)->sigmoid_grad(lksi_stored_count(kernel), in[0], in[1], out[0]);
    return LKS_OK;
}

lks_status lksi_run_scale(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    (void)scratch;
    float factor = (float)kernel->lowering.attributes.factor;
    if (kernel->lowering.n_inputs == 2) factor *= *(const float *)in[1];
    LKSI_ISA_PICK(lksi_elementwise_loops)->scale(lksi_stored_count(kernel), factor, in[0], out[0]);
    return LKS_OK;
}
