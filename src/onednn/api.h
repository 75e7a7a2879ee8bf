/* oneDNN as the rest of this room sees it. Its C API differs between 2.x and 3.x. Only the files api*.c depend on
 * it. */
#ifndef LKSI_ONEDNN_API_H
#define LKSI_ONEDNN_API_H

#include "onednn/onednn.h"

/* Row-major C (m,n) = op(A) (m,k) op(B) (k,n) + beta C. trans_* is 'N' or 'T'. ld* are row strides in elements. With
 * AVX-512, longer sums are computed LKSI_CHAIN terms at a time, because sgemm cuts them at places that depend on the
 * shape (linear.c). */
enum { LKSI_CHAIN = 384 };
lks_status lksi_dnnl_gemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                          const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* Rounds up to whole cache lines, so that what follows in scratch keeps its alignment. */
static inline size_t lksi_whole_lines(size_t nbytes) { return (nbytes + 63) / 64 * 64; }

/* --- primitives on tensors in oneDNN's layouts --- */

/* A primitive with the memory objects of its arguments. Each run points them at its data. */
typedef struct lksi_dnnl_primitive lksi_dnnl_primitive;
void lksi_dnnl_primitive_destroy(lksi_dnnl_primitive *primitive); /* accepts NULL */
size_t lksi_dnnl_primitive_scratch_nbytes(const lksi_dnnl_primitive *primitive);
/* `data`: the arguments in the order that the creating function names. NULL for an operand that is rounded and whose
 * rounded copy is still in `scratch` from the previous run. */
lks_status lksi_dnnl_primitive_run(lksi_dnnl_primitive *primitive, void *const *data, void *scratch);

/* One of the three convolutions. */
typedef struct lksi_dnnl_convolution {
    lksi_op op; /* CONV2D, CONV2D_GRAD_INPUT or CONV2D_GRAD_WEIGHT */
    const lksi_attributes *attributes;
    const lksi_tensor *x, *w, *y; /* or their gradients */
    bool has_bias;                /* CONV2D */
    lks_type product_type;        /* LKS_BF16: both operands are rounded to it first */
    /* Output: the layouts that the primitive chose. Input for operands that are rounded: their current layouts. */
    lksi_layout x_layout, w_layout, y_layout;
} lksi_dnnl_convolution;

/* Arguments: x, w, y, b. For CONV2D_GRAD_INPUT y is dy, x is dx, and so on. b only if there is one. */
lks_status lksi_dnnl_convolution_create(lksi_dnnl_primitive **primitive, lksi_dnnl_convolution *convolution);

/* `count` consecutive products c (m,n) = a (m,k) b (k,n) [+ bias (n)]. transpose_*: the matrix is stored transposed.
 * Row-major without gaps. */
typedef struct lksi_dnnl_product {
    int64_t count, m, n, k;
    bool transpose_a, transpose_b, has_bias;
    const char *what;
    bool is_exact; /* the operands are used as they are; otherwise they are rounded to bf16 */
} lksi_dnnl_product;

/* Arguments: a, b, c, bias. bias only if there is one. */
lks_status lksi_dnnl_product_create(lksi_dnnl_primitive **primitive, const lksi_dnnl_product *product);

/* LKS_OK if oneDNN multiplies bf16 numbers with native instructions of this CPU. Otherwise LKS_ERR_UNSUPPORTED. */
lks_status lksi_dnnl_check_bf16(void);

/* The best instruction set that oneDNN uses on this CPU for products of f32 or bf16 numbers, for display. */
const char *lksi_dnnl_isa_text(bool is_for_bf16);
/* Whether oneDNN uses AVX-512 on this CPU. */
bool lksi_dnnl_has_avx512(void);

/* Arguments: from, to. */
lks_status lksi_dnnl_reorder_create(lksi_dnnl_primitive **primitive, const lksi_tensor *tensor, uint64_t from,
                                    uint64_t to);

#endif
