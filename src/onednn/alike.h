/* Products of rows with one matrix in which a row has the same bits in a batch of any size. Otherwise later layers that
 * compute small differences could tell batches apart (tests/onednn/test_rows_alike.c). With AVX-512:
 *
 * - A sum of up to LKSI_CHAIN terms is one chain, by sgemm as by the matmul primitive. Longer ones are cut: by the
 *   primitive in the same way for any number of rows, by lksi_dnnl_gemm after every LKSI_CHAIN terms. So the primitive
 *   computes all of them, or none if there are very many columns, where it is slower.
 * - sgemm computes products with a vector differently, and y = x W^T with fewer than 16 rows of its second operand: of
 *   x, or for y^T of W. The primitive is different with 1 to 3 rows, depending on the version. Rows of zeros are added
 *   there. */
#ifndef LKSI_ONEDNN_ALIKE_H
#define LKSI_ONEDNN_ALIKE_H

#include "base/isa.h"
#include "onednn/api.h"

#include <string.h>

enum { LKSI_MANY_OUTPUTS = 2048, LKSI_PRIMITIVE_ROWS = 4, LKSI_GEMM_ROWS = 16, LKSI_GEMM_BACK_ROWS = 2 };

static inline bool lksi_has_avx512(void) { return lksi_isa_level() == 2; }

/* Whether y (n,m) = x (n,k) W (m,k)^T must be computed by the primitive. */
static inline bool lksi_needs_primitive(int64_t n, int64_t m, int64_t k) {
    if (!lksi_has_avx512()) return false;
    return k > LKSI_CHAIN ? m <= LKSI_MANY_OUTPUTS : m == 1 || n < LKSI_GEMM_ROWS;
}

/* The number of rows to multiply: n, or LKSI_*_ROWS if that is more. */
static inline int64_t lksi_rows_alike(int64_t n, int64_t least) { return lksi_has_avx512() && n < least ? least : n; }

/* Copies the n rows of x (n,k) to `rows` (n_all,k) and adds rows of zeros. Returns the end of `rows`. */
static inline float *lksi_add_zeros(const float *x, int64_t n, int64_t k, int64_t n_all, float *rows) {
    memcpy(rows, x, (size_t)(n * k) * sizeof *x);
    memset(rows + n * k, 0, (size_t)((n_all - n) * k) * sizeof *rows);
    return rows + n_all * k;
}

#endif
