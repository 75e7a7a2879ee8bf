/* Products of a few rows with one large matrix that is used many times, as in a recurrent layer's steps. sgemm packs
 * the matrix anew in every call, which at 20 rows costs more than the product; here it is packed once. */
#ifndef LKSI_SKINNY_H
#define LKSI_SKINNY_H

#include "base/isa.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lksi_skinny_kernels {
    int64_t panel; /* columns that lie together in the packed form */
    /* B (k,m), which lies row-major or, transposed, as (m,k), to panels. Takes lksi_skinny_packed_count floats. */
    void (*pack)(const float *b, int64_t k, int64_t m, bool is_transposed, float *packed);
    /* C (n,m) += A (n,k) B (k,m); rows of A and C are lda and ldc apart. */
    void (*multiply_add)(int64_t n, int64_t m, int64_t k, const float *a, int64_t lda, const float *packed, float *c,
                         int64_t ldc);
} lksi_skinny_kernels;

LKSI_ISA_DECLARE(lksi_skinny_kernels, lksi_skinny_loops);

static inline int64_t lksi_skinny_packed_count(int64_t k, int64_t m) {
    int64_t panel = LKSI_ISA_PICK(lksi_skinny_loops)->panel;
    return (m + panel - 1) / panel * panel * k;
}

#endif
