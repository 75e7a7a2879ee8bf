/* Products of a few rows with one large matrix that is used many times, as in the steps of a recurrent layer. sgemm
 * packs the matrix in every call, which at 20 rows costs more than the product. Here it is packed once. */
#ifndef LKSI_SKINNY_H
#define LKSI_SKINNY_H

#include "base/isa.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lksi_skinny_kernels {
    int64_t panel; /* number of columns that are stored together in packed form */
    /* Packs B (k,m) into panels. B is stored row-major, or transposed as (m,k). `packed` has lksi_skinny_packed_count
     * floats. */
    void (*pack)(const float *b, int64_t k, int64_t m, bool is_transposed, float *packed);
    /* C (n,m) += A (n,k) B (k,m). lda and ldc are the row strides of A and C. */
    void (*multiply_add)(int64_t n, int64_t m, int64_t k, const float *a, int64_t lda, const float *packed, float *c,
                         int64_t ldc);
} lksi_skinny_kernels;

LKSI_ISA_DECLARE(lksi_skinny_kernels, lksi_skinny_loops);

static inline int64_t lksi_skinny_packed_count(int64_t k, int64_t m) {
    int64_t panel = LKSI_ISA_PICK(lksi_skinny_loops)->panel;
    return (m + panel - 1) / panel * panel * k;
}

#endif
