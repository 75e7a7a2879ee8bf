/* The product of each step of a recurrent layer with the matrix that all steps share: C (n,m) += A (n,k) B (k,m). By
 * the skinny loops, or by a primitive if operands are rounded to bf16. */
#ifndef LKSI_ONEDNN_STEP_PRODUCT_H
#define LKSI_ONEDNN_STEP_PRODUCT_H

#include "onednn/api.h"

typedef struct lksi_step_product {
    int64_t n, m, k;
    bool is_transposed; /* B is stored as (m,k) */
    bool is_rounded;
    lksi_dnnl_primitive *primitive; /* if is_rounded */
} lksi_step_product;

/* Creates the primitive of `product` if it needs one. The other fields are set before. */
lks_status lksi_step_product_prepare(lksi_step_product *product);
void lksi_step_product_release(lksi_step_product *product);
size_t lksi_step_product_scratch_nbytes(const lksi_step_product *product);

/* The state of one run over the steps. */
typedef struct lksi_steps {
    const lksi_step_product *product;
    const float *b;     /* rounded: NULL after the first product, when its rounded copy is in `scratch` */
    float *packed;      /* not rounded: B for the skinny loops */
    float *rows, *sums; /* rounded: copies of A and of A B without gaps */
    void *scratch;
} lksi_steps;

/* `scratch` belongs to the run until its last step. */
lksi_steps lksi_steps_begin(const lksi_step_product *product, const float *b, void *scratch);
/* lda and ldc are the row strides of A and C. */
lks_status lksi_steps_multiply_add(lksi_steps *steps, const float *a, int64_t lda, float *c, int64_t ldc);

#endif
