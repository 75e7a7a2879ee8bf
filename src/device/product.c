#include "device/product.h"

static lksi_product matmul_of(const lksi_lowering *l) {
    bool ta = l->attributes.transpose_a != 0, tb = l->attributes.transpose_b != 0;
    int last = l->outputs[0].n_dims - 1;
    int64_t m = l->outputs[0].dims[last - 1], n = l->outputs[0].dims[last], k = l->inputs[0].dims[ta ? last - 1 : last];
    return (lksi_product){lksi_tensor_count(&l->outputs[0], 0) / (m * n), m, n, k, ta, tb, false};
}

lksi_product lksi_product_of(const lksi_lowering *l) {
    if (l->op == LKSI_OP_MATMUL) return matmul_of(l);
    const lksi_tensor *in = l->inputs;
    int64_t rows = lksi_tensor_rows(&in[0]), first = lksi_tensor_columns(&in[0]), second = lksi_tensor_columns(&in[1]);
    if (l->op == LKSI_OP_LINEAR) /* (x, W[, b]) */
        return (lksi_product){1, rows, in[1].dims[0], first, false, true, l->n_inputs == 3};
    if (l->op == LKSI_OP_LINEAR_GRAD_INPUT)
        return (lksi_product){1, rows, second, first, false, false, false}; /* (dy, W) */
    return (lksi_product){1, first, second, rows, true, false, false};      /* (dy, x) */
}
