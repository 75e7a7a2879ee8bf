/* Matrix products by cuBLASLt, rounding of operands to bf16, bias and activation, and sums of rows. */
#ifndef LKSI_CUDA_PRODUCT_H
#define LKSI_CUDA_PRODUCT_H

#include "cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y (m,n) = a (m,k) b (k,n), all row-major. `n_products` such matrices follow each other in memory. */
typedef struct lksi_cuda_product_shape {
    lksi_op op; /* for errors: what the product is part of */
    int64_t n_products, m, n, k;
    bool transpose_a, transpose_b;  /* a is stored as (k,m), b as (n,k) */
    int64_t a_row, b_row, y_row;    /* elements from the beginning of a row to that of the next; 0: no gaps */
    int64_t a_unit, b_unit, y_unit; /* operands begin at multiples of so many elements; 0: aligned to 16 bytes */
    bool is_rounded;                /* a and b are bf16: see lksi_cuda_product_operand */
    bool is_tf32;                   /* f32 operands are multiplied as TF32, as cuDNN does */
    bool has_bias, is_relu;         /* y = relu (a b + bias (n)), only for y without gaps */
    bool adds;                      /* y += instead of y = */
} lksi_cuda_product_shape;

typedef struct lksi_cuda_product lksi_cuda_product;

/* Errors: LKS_ERR_UNSUPPORTED: cuBLAS has no algorithm. The text has the shapes. */
lks_status lksi_cuda_product_create(lksi_cuda *cuda, const lksi_cuda_product_shape *shape, lksi_cuda_product **product);
void lksi_cuda_product_destroy(lksi_cuda_product *product); /* accepts NULL */
/* Sets *operand to what the product reads for the `count` elements of `from`: `from` itself, or if the product is
 * rounded, their bf16 values in *scratch, which advances by lksi_cuda_operand_nbytes. */
lks_status lksi_cuda_product_operand(const lksi_cuda_product *product, const float *from, size_t count, char **scratch,
                                     const void **operand);
size_t lksi_cuda_operand_nbytes(bool is_rounded, size_t count);
/* `bias` is NULL if there is none. */
lks_status lksi_cuda_product_run(const lksi_cuda_product *product, const void *a, const void *b, const float *bias,
                                 float *y);

/* --- products.cu --- */

/* to (bf16) = from, rounded. */
lks_status lksi_cuda_round(lksi_cuda *cuda, const float *from, size_t count, void *to);
/* What follows a product: y = relu (x + bias). The bias has `n_columns` elements, along the last axis. */
typedef struct lksi_cuda_ending {
    const void *x;     /* may be y, unless it is_rounded */
    bool is_rounded;   /* x is bf16, as its operands were */
    const float *bias; /* NULL: none */
    int64_t n_columns;
    bool is_relu;
} lksi_cuda_ending;
lks_status lksi_cuda_end_product(lksi_cuda *cuda, const lksi_cuda_ending *ending, size_t count, float *y);

/* sum (n_columns) = the sum of all rows of x (n_rows, n_columns), in a fixed order. */
lks_status lksi_cuda_sum_columns(lksi_cuda *cuda, const float *x, int64_t n_rows, int64_t n_columns, void *scratch,
                                 float *sum);
size_t lksi_cuda_sum_columns_nbytes(int64_t n_rows, int64_t n_columns); /* of its scratch */

/* Rounds up to 256 bytes, the alignment of parts of a scratch buffer, at which kernels and libraries read fastest. */
static inline size_t lksi_cuda_aligned(size_t nbytes) { return (nbytes + 255) / 256 * 256; }

#ifdef __cplusplus
}
#endif

#endif
