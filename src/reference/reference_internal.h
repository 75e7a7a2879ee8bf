/* Declarations that the files of reference/ share. */
#ifndef LKSI_REFERENCE_INTERNAL_H
#define LKSI_REFERENCE_INTERNAL_H

#include "base/isa.h"
#include "reference/reference.h"

typedef lks_status (*lksi_reference_run)(const lksi_kernel *kernel, void *const *inputs, void *const *outputs,
                                         void *scratch);

/* One function per operator, NULL if there is none. The tables are for float, for double, and for float with the
 * operands of products rounded to bf16. */
extern const lksi_reference_run lksi_reference_kernels_f32[LKSI_OP_COUNT];
extern const lksi_reference_run lksi_reference_kernels_f64[LKSI_OP_COUNT];
extern const lksi_reference_run lksi_reference_kernels_bf16[LKSI_OP_COUNT];

/* The arrays that the loop of an update rule reads and writes. */
typedef struct lksi_update_arrays {
    const float *p, *g;
    const float *h; /* added to g; NULL: none. Set only for rules without state */
    /* out, also: the new parameters, written to one place or two (`also` NULL: one). They may be p, g or h */
    float *out, *also;
    float *m, *v; /* NULL if the rule does not have them */
} lksi_update_arrays;

typedef void (*lksi_update_kernel)(const lksi_update *update, size_t count, const lksi_update_arrays *arrays);
typedef struct lksi_update_kernels {
    lksi_update_kernel sgd, momentum, nesterov, adam;                      /* adam: also AdamW */
    void (*sum)(size_t count, const float *g, const float *h, float *out); /* out = g + h; may be g or h */
    double (*squares)(size_t count, const float *g);                       /* the sum of g^2 */
} lksi_update_kernels;
LKSI_ISA_DECLARE(lksi_update_kernels, lksi_update_kernels);

#endif
