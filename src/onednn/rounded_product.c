/* Products of operands rounded to bf16. Each is one primitive, because sgemm, which linear.c and matmul.c use, supports
 * f32 only. */
#include "onednn/rounded_product.h"

#include "device/product.h"
#include "onednn/api.h"
#include "onednn/kernels.h"
#include "onednn/loops.h"

static const char *name_of(lksi_op op) {
    return op == LKSI_OP_LINEAR              ? "onednn:linear (bf16)"
           : op == LKSI_OP_LINEAR_GRAD_INPUT ? "onednn:linear_grad_input (bf16)"
           : op == LKSI_OP_MATMUL            ? "onednn:matmul (bf16)"
                                             : "onednn:linear_grad_weight (bf16)";
}

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    void *bias = kernel->lowering.n_inputs == 3 ? in[2] : NULL;
    LKS_TRY(lksi_dnnl_primitive_run(kernel->state, (void *[]){in[0], in[1], out[0], bias}, scratch));
    if (kernel->n_epilogues > 0) LKSI_ISA_PICK(lksi_row_loops)->relu_in_place(lksi_stored_count(kernel), out[0]);
    return LKS_OK;
}

static void release(lksi_kernel *kernel) { lksi_dnnl_primitive_destroy(kernel->state); }

lks_status lksi_onednn_lower_rounded_product(const lksi_lowering *lowering, lksi_kernel *kernel) {
    const lksi_product p = lksi_product_of(lowering);
    const lksi_dnnl_product product = {.count = p.count,
                                       .m = p.m,
                                       .n = p.n,
                                       .k = p.k,
                                       .transpose_a = p.transpose_a,
                                       .transpose_b = p.transpose_b,
                                       .has_bias = p.has_bias,
                                       .what = lksi_op_name(lowering->op)};
    lksi_dnnl_primitive *primitive;
    LKS_TRY(lksi_dnnl_product_create(&primitive, &product));
    *kernel = (lksi_kernel){.name = name_of(lowering->op),
                            .run = run,
                            .release = release,
                            .lowering = *lowering,
                            .scratch_nbytes = lksi_dnnl_primitive_scratch_nbytes(primitive),
                            .state = primitive};
    lksi_take_epilogue(lowering, LKSI_OP_RELU, kernel);
    return LKS_OK;
}
