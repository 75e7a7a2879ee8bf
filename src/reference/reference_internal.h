/* What the reference device's files share. */
#ifndef LKSI_REFERENCE_INTERNAL_H
#define LKSI_REFERENCE_INTERNAL_H

#include "base/isa.h"
#include "reference/reference.h"

typedef lks_status (*lksi_reference_run)(const lksi_kernel *kernel, void *const *inputs, void *const *outputs,
                                         void *scratch);

/* One function per operator, NULL where there is nothing to run; made for float, for double, and for float with
 * products of operands that are rounded to bf16. */
extern const lksi_reference_run lksi_reference_kernels_f32[LKSI_OP_COUNT];
extern const lksi_reference_run lksi_reference_kernels_f64[LKSI_OP_COUNT];
extern const lksi_reference_run lksi_reference_kernels_bf16[LKSI_OP_COUNT];

/* Where a rule's loop reads and writes. */
typedef struct lksi_update_arrays {
    const float *p, *g;
    const float *h;    /* added to g; NULL: nothing is. For sgd alone */
    float *out, *also; /* the new parameters, in one place or two (`also` NULL: one), which may be p, g or h */
    float *m, *v;      /* as far as the rule has them */
} lksi_update_arrays;

typedef void (*lksi_update_kernel)(const lksi_update *update, size_t count, const lksi_update_arrays *arrays);
typedef struct lksi_update_kernels {
    lksi_update_kernel sgd, momentum, nesterov, adam;                      /* and AdamW */
    void (*sum)(size_t count, const float *g, const float *h, float *out); /* out = g + h; may be one of them */
    double (*squares)(size_t count, const float *g);                       /* the sum of g^2 */
} lksi_update_kernels;
LKSI_ISA_DECLARE(lksi_update_kernels, lksi_update_kernels);

#endif
