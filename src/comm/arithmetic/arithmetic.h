/* Element-wise reductions inside comm/: rules of validity, accumulator types, and the reducer behind all algorithms.
 *
 * A contribution is one rank's input, scaled and rounded to the accumulator type: f32 for f32, f16 and bf16, else the
 * type itself. Contributions are combined up the canonical tree, divided once (avg), and rounded once to the type.
 */
#ifndef LKSI_ARITHMETIC_H
#define LKSI_ARITHMETIC_H

#include "comm/comm.h"

const char *lksi_operator_name(lks_operator op); /* "?" for a value that is none */
/* LKS_ERR_ARGUMENT where `op`, or a scale other than 1, is not defined on `type`; `operation` is for the text. */
lks_status lksi_reduction_check(const char *operation, lks_type type, lks_operator op, double scale);

static inline lks_type lksi_accumulator_type(lks_type type) {
    return type == LKS_F16 || type == LKS_BF16 ? LKS_F32 : type;
}

/* out = scale * in, in the accumulator type. */
void lksi_contribute(void *out, const void *in, double scale, size_t count, lks_type type);
/* out = contributions / divisor, rounded to `type`. `out` may be `contributions`. */
void lksi_conclude(void *out, const void *contributions, double divisor, size_t count, lks_type type);

/* Combines inputs[k][first..first+count) for all k, writes the result to every outputs[k] from `first` on. `type` is
 * that of inputs and outputs; scales may be NULL. An output may be one of the inputs. */
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
/* The same of `n` contributions (lksi_contribute), which are none of `out`: elements [first, first + count), at most a
 * KiB or two of accumulators, concluded as `type`. For what is so small that every instruction counts. */
void lksi_reduce_contributions(void *out, const void *const *contributions, int n, size_t first, size_t count,
                               lks_type type, lks_operator op, double divisor);

/* Whether the loops take `data`. */
static inline bool lksi_is_aligned(const void *data, lks_type type) {
    return ((uintptr_t)data & (lksi_type_nbytes(type) - 1)) == 0;
}

/* The divisor of `op` over `n` ranks. */
static inline double lksi_divisor(lks_operator op, int n) { return op == LKS_AVG ? (double)n : 1; }

#endif
