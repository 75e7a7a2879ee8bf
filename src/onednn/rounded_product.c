/* Products of operands rounded to bf16. Each is one primitive, because sgemm, which linear.c and matmul.c use, supports
 * f32 only. */
#include "onednn/rounded_product.h"

#include "onednn/api.h"
#include "onednn/kernels.h"
#include "onednn/loops.h"

static lksi_dnnl_product matmul_of(const lksi_lowering *l) {
    bool ta = l->attributes.transpose_a != 0, tb = l->attributes.transpose_b != 0;
    int last = l->outputs[0].n_dims - 1;
    int64_t m = l->outputs[0].dims[last - 1], n = l->outputs[0].dims[last], k = l->inputs[0].dims[ta ? last - 1 : last];
    return (lksi_dnnl_product){lksi_tensor_count(&l->outputs[0], 0) / (m * n), m, n, k, ta, tb, false, "matmul", false};
}

static lksi_dnnl_product product_of(const lksi_lowering *l) {
    if (l->op == LKSI_OP_MATMUL) return matmul_of(l);
    const lksi_tensor *in = l->inputs;
    int64_t rows = lksi_tensor_rows(&in[0]), first = lksi_tensor_columns(&in[0]), second = lksi_tensor_columns(&in[1]);
    if (l->op == LKSI_OP_LINEAR) /* (x, W[, b]) */
        return (lksi_dnnl_product){1, rows, in[1].dims[0], first, false, true, l->n_inputs == 3, "linear", false};
    if (l->op == LKSI_OP_LINEAR_GRAD_INPUT) /* (dy, W) */
        return (lksi_dnnl_product){1, rows, second, first, false, false, false, "linear_grad_input", false};
    return (lksi_dnnl_product){1, first, second, rows, true, false, false, "linear_grad_weight", false}; /* (dy, x) */
}

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
    lksi_dnnl_product product = product_of(lowering);
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
