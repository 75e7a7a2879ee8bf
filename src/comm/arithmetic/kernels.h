/* The loops of arithmetic/, one table of them per instruction set. Internal to arithmetic/. */
#ifndef LKSI_REDUCE_KERNELS_H
#define LKSI_REDUCE_KERNELS_H

#include "base/isa.h"

#include <lockstep/comm.h>

enum { LKSI_N_TYPES = LKS_I64 + 1, LKSI_N_OPERATORS = LKS_BXOR + 1 };
/* How far ahead an input is prefetched. The hardware prefetches too, but not across the end of a page. */
enum { LKSI_AHEAD_NBYTES = 512 };

/* acc = scale * in */
typedef void (*lksi_contribute_kernel)(void *restrict acc, const void *restrict in, double scale, size_t count);
/* acc = op(scale_a * a, scale_b * b) */
typedef void (*lksi_pair_kernel)(void *restrict acc, const void *a, double scale_a, const void *b, double scale_b,
                                 size_t count);
/* The same, written to two places. Either may be `a` or `b`. */
typedef void (*lksi_pair_twice_kernel)(void *out, void *twin, const void *a, double scale_a, const void *b,
                                       double scale_b, size_t count);
/* acc = op(acc, b), both of the accumulator type */
typedef void (*lksi_combine_kernel)(void *restrict acc, const void *restrict b, size_t count);
/* acc = (s0*a0 + s1*a1) + (s2*a2 + s3*a3): the common case of four ranks in one pass */
typedef void (*lksi_quad_kernel)(void *restrict acc, const void *const *inputs, const double *scales, size_t count);
/* The same, written to four places past the caches. The outputs begin at whole lines. */
typedef void (*lksi_quad_each_kernel)(void *const *outputs, const void *const *inputs, const double *scales,
                                      size_t count);
/* out = acc / divisor, rounded to the type */
typedef void (*lksi_conclude_kernel)(void *restrict out, const void *restrict acc, double divisor, size_t count);

/* Indexed by element type, and by operator if it matters. NULL if the operator is not defined on the type. */
typedef struct lksi_reduce_kernels {
    lksi_contribute_kernel contribute[LKSI_N_TYPES];
    lksi_pair_kernel pair[LKSI_N_TYPES][LKSI_N_OPERATORS];
    lksi_pair_twice_kernel pair_twice[LKSI_N_TYPES][LKSI_N_OPERATORS]; /* also NULL for f16 and bf16 */
    lksi_pair_twice_kernel pair_twice_past[LKSI_N_TYPES]
                                          [LKSI_N_OPERATORS]; /* past the caches; outputs begin at whole lines */
    lksi_combine_kernel combine[LKSI_N_TYPES][LKSI_N_OPERATORS];
    lksi_quad_kernel quad_sum[LKSI_N_TYPES];
    lksi_quad_each_kernel quad_sum_each_past[LKSI_N_TYPES];
    lksi_conclude_kernel conclude[LKSI_N_TYPES];
} lksi_reduce_kernels;

LKSI_ISA_DECLARE(lksi_reduce_kernels, lksi_reduce_loops);

#endif
