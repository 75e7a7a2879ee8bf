/* The products of the steps of a recurrent layer. */
#include "onednn/step_product.h"

#include "onednn/loops.h"
#include "onednn/skinny.h"

#include <string.h>

/* The size of a matrix, rounded up so that what follows is aligned. */
static size_t matrix_nbytes(int64_t rows, int64_t columns) {
    return lksi_whole_lines((size_t)(rows * columns) * sizeof(float));
}

lks_status lksi_step_product_prepare(lksi_step_product *product) {
    if (!product->is_rounded) return LKS_OK;
    return lksi_dnnl_product_create(&product->primitive, &(lksi_dnnl_product){.count = 1,
                                                                              .m = product->n,
                                                                              .n = product->m,
                                                                              .k = product->k,
                                                                              .transpose_b = product->is_transposed,
                                                                              .what = "recurrent step"});
}

void lksi_step_product_release(lksi_step_product *product) { lksi_dnnl_primitive_destroy(product->primitive); }

size_t lksi_step_product_scratch_nbytes(const lksi_step_product *product) {
    if (!product->is_rounded) return (size_t)lksi_skinny_packed_count(product->k, product->m) * sizeof(float);
    return matrix_nbytes(product->n, product->k) + matrix_nbytes(product->n, product->m) +
           lksi_dnnl_primitive_scratch_nbytes(product->primitive);
}

lksi_steps lksi_steps_begin(const lksi_step_product *product, const float *b, void *scratch) {
    lksi_steps steps = {.product = product, .b = b};
    if (product->is_rounded) {
        steps.rows = scratch;
        steps.sums = (void *)((char *)steps.rows + matrix_nbytes(product->n, product->k));
        steps.scratch = (char *)steps.sums + matrix_nbytes(product->n, product->m);
        return steps;
    }
    steps.packed = scratch;
    LKSI_ISA_PICK(lksi_skinny_loops)->pack(b, product->k, product->m, product->is_transposed, steps.packed);
    return steps;
}

static lks_status multiply_rounded(lksi_steps *steps, const float *a, int64_t lda, float *c, int64_t ldc) {
    const lksi_step_product *p = steps->product;
    void *b = (void *)(uintptr_t)steps->b; /* only read, but oneDNN has no const handles */
    for (int64_t i = 0; i < p->n; i++) memcpy(steps->rows + i * p->k, a + i * lda, (size_t)p->k * sizeof *a);
    LKS_TRY(lksi_dnnl_primitive_run(p->primitive, (void *[]){steps->rows, b, steps->sums}, steps->scratch));
    steps->b = NULL;
    for (int64_t i = 0; i < p->n; i++)
        LKSI_ISA_PICK(lksi_row_loops)->accumulate((size_t)p->m, steps->sums + i * p->m, c + i * ldc);
    return LKS_OK;
}

lks_status lksi_steps_multiply_add(lksi_steps *steps, const float *a, int64_t lda, float *c, int64_t ldc) {
    const lksi_step_product *p = steps->product;
    if (p->is_rounded) return multiply_rounded(steps, a, lda, c, ldc);
    LKSI_ISA_PICK(lksi_skinny_loops)->multiply_add(p->n, p->m, p->k, a, lda, steps->packed, c, ldc);
    return LKS_OK;
}
