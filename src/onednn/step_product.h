/* The product of every step of a recurrent layer with the matrix that all steps share: C (n,m) += A (n,k) B (k,m). By
 * the skinny loops, or, where operands are rounded to bf16, by a primitive. */
#ifndef LKSI_ONEDNN_STEP_PRODUCT_H
#define LKSI_ONEDNN_STEP_PRODUCT_H

#include "onednn/api.h"

typedef struct lksi_step_product {
    int64_t n, m, k;
    bool is_transposed; /* B lies as (m,k) */
    bool is_rounded;
    lksi_dnnl_primitive *primitive; /* where it is */
} lksi_step_product;

/* Makes what `product`, whose other fields are filled in, needs to run. */
lks_status lksi_step_product_prepare(lksi_step_product *product);
void lksi_step_product_release(lksi_step_product *product);
size_t lksi_step_product_scratch_nbytes(const lksi_step_product *product);

/* One run through the steps. */
typedef struct lksi_steps {
    const lksi_step_product *product;
    const float *b;     /* rounded: NULL once it has been */
    float *packed;      /* not rounded: B for the skinny loops */
    float *rows, *sums; /* rounded: A and A B without gaps */
    void *scratch;
} lksi_steps;

/* `scratch` stays the run's until its last step. */
lksi_steps lksi_steps_begin(const lksi_step_product *product, const float *b, void *scratch);
/* Rows of A and C are lda and ldc apart. */
lks_status lksi_steps_multiply_add(lksi_steps *steps, const float *a, int64_t lda, float *c, int64_t ldc);

#endif
