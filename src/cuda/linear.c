/* The linear layer's three products, and MATMUL, by cuBLASLt. */
#include "cuda/product.h"

#include "device/product.h"

static const char *name_of(lksi_op op) {
    return op == LKSI_OP_LINEAR              ? "cuda:linear"
           : op == LKSI_OP_LINEAR_GRAD_INPUT ? "cuda:linear_grad_input"
           : op == LKSI_OP_MATMUL            ? "cuda:matmul"
                                             : "cuda:linear_grad_weight";
}

static size_t count_of(const lksi_lowering *l, int input) { return (size_t)lksi_tensor_count(&l->inputs[input], 0); }

static lks_status run(const lksi_kernel *kernel, void *const *in, void *const *out, void *scratch) {
    const lksi_lowering *l = &kernel->lowering;
    const lksi_cuda_product *product = kernel->state;
    const void *operands[2];
    char *room = scratch;
    for (int i = 0; i < 2; i++) LKS_TRY(lksi_cuda_product_operand(product, in[i], count_of(l, i), &room, &operands[i]));
    return lksi_cuda_product_run(product, operands[0], operands[1], l->n_inputs == 3 ? in[2] : NULL, out[0]);
}

static void release(lksi_kernel *kernel) { lksi_cuda_product_destroy(kernel->state); }

lks_status lksi_cuda_lower_linear(const lks_device *device, const lksi_lowering *question, lksi_kernel *kernel) {
    bool is_relu = question->n_epilogues > 0 && question->epilogues[0] == LKSI_OP_RELU;
    const lksi_product p = lksi_product_of(question);
    lksi_cuda_product_shape shape = {.op = question->op,
                                     .n_products = p.count,
                                     .m = p.m,
                                     .n = p.n,
                                     .k = p.k,
                                     .transpose_a = p.transpose_a,
                                     .transpose_b = p.transpose_b,
                                     .is_rounded = device->product_type == LKS_BF16,
                                     .has_bias = p.has_bias,
                                     .is_relu = is_relu};
    lksi_cuda_product *product = NULL;
    LKS_TRY(lksi_cuda_product_create(lksi_cuda_of(device), &shape, &product));
    *kernel = (lksi_kernel){.name = name_of(question->op),
                            .run = run,
                            .release = release,
                            .lowering = *question,
                            .epilogues = {LKSI_OP_RELU},
                            .n_epilogues = is_relu,
                            .scratch_nbytes = lksi_cuda_operand_nbytes(shape.is_rounded, count_of(question, 0)) +
                                              lksi_cuda_operand_nbytes(shape.is_rounded, count_of(question, 1)),
                            .state = product};
    lksi_lowering_make_row_major(&kernel->lowering);
    return LKS_OK;
}
