/* Element-wise reductions inside comm/: which operator is defined on which type, accumulator types, and the reducer
 * that all algorithms use.
 *
 * A contribution is the input of one rank, converted to the accumulator type and scaled. The accumulator type is f32
 * for f32, f16 and bf16, and the type itself otherwise. Contributions are combined along the canonical tree, divided
 * once (avg) and rounded once to the type.
 */
#ifndef LKSI_ARITHMETIC_H
#define LKSI_ARITHMETIC_H

#include "comm/comm.h"

const char *lksi_operator_name(lks_operator op); /* "?" for an invalid value */
/* Returns LKS_ERR_ARGUMENT if `op`, or a scale other than 1, is not defined on `type`. The text begins with
 * `operation`. */
lks_status lksi_reduction_check(const char *operation, lks_type type, lks_operator op, double scale);

static inline lks_type lksi_accumulator_type(lks_type type) {
    return type == LKS_F16 || type == LKS_BF16 ? LKS_F32 : type;
}

/* out = scale * in, in the accumulator type. */
void lksi_contribute(void *out, const void *in, double scale, size_t count, lks_type type);
/* out = contributions / divisor, rounded to `type`. `out` may be `contributions`. */
void lksi_conclude(void *out, const void *contributions, double divisor, size_t count, lks_type type);

/* Combines inputs[k][first..first+count) for all k and writes the result to every outputs[k], from element `first` on.
 * `type` is the type of inputs and outputs. `scales` may be NULL. An output may be one of the inputs. */
typedef struct lksi_reduction {
    const void *const *inputs;
    const double *scales;
    int n_inputs;
    void *const *outputs;
    int n_outputs;
    lks_type type;
    lks_operator op;
    double divisor; /* 1, or the number of ranks for avg */
} lksi_reduction;
void lksi_reduce_range(const lksi_reduction *reduction, size_t first, size_t count);
/* Combines elements [first, first + count) of `n` contributions (lksi_contribute) and writes the result as `type` to
 * `out`. `out` must not be a contribution. The elements must fit in a block of reduce.c (4 KiB of accumulators). For
 * small reductions, where every instruction counts. */
void lksi_reduce_contributions(void *out, const void *const *contributions, int n, size_t first, size_t count,
                               lks_type type, lks_operator op, double divisor);

/* Whether `data` is aligned to its type. The loops require it. */
static inline bool lksi_is_aligned(const void *data, lks_type type) {
    return ((uintptr_t)data & (lksi_type_nbytes(type) - 1)) == 0;
}

/* The divisor of `op` over `n` ranks. */
static inline double lksi_divisor(lks_operator op, int n) { return op == LKS_AVG ? (double)n : 1; }

#endif
