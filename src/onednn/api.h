/* oneDNN as the rest of this room sees it. Its C API differs between 2.x and 3.x; api.c alone knows how. */
#ifndef LKSI_ONEDNN_API_H
#define LKSI_ONEDNN_API_H

#include "onednn/onednn.h"

/* Row-major C (m,n) = op(A) (m,k) op(B) (k,n) + beta C; trans_* is 'N' or 'T'; ld* are row lengths in memory. */
lks_status lksi_dnnl_gemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                          const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* An element-wise operator (TANH, SIGMOID or their gradients) over `count` floats. */
typedef struct lksi_dnnl_eltwise lksi_dnnl_eltwise;
lks_status lksi_dnnl_eltwise_create(lksi_dnnl_eltwise **eltwise, lksi_op op, int64_t count);
void lksi_dnnl_eltwise_destroy(lksi_dnnl_eltwise *eltwise); /* accepts NULL */
/* Forward: y = f(x), `dy` is NULL; x and y may be the same. Gradient: `x` is f's result, y = dy * f'. */
lks_status lksi_dnnl_eltwise_run(lksi_dnnl_eltwise *eltwise, const float *x, const float *dy, float *y);

#endif
