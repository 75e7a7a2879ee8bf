/* What the reference device's files share. */
#ifndef LKSI_REFERENCE_INTERNAL_H
#define LKSI_REFERENCE_INTERNAL_H

#include "reference/reference.h"

typedef lks_status (*lksi_reference_run)(const lksi_kernel *kernel, void *const *inputs, void *const *outputs,
                                         void *scratch);

/* One function per operator, NULL where there is nothing to run; made for float, for double, and for float with
 * products of operands that are rounded to bf16. */
extern const lksi_reference_run lksi_reference_kernels_f32[LKSI_OP_COUNT];
extern const lksi_reference_run lksi_reference_kernels_f64[LKSI_OP_COUNT];
extern const lksi_reference_run lksi_reference_kernels_bf16[LKSI_OP_COUNT];

typedef struct lksi_update_kernels {
    void (*sgd)(const lksi_update *update, size_t count, float *p, const float *g);
    void (*momentum)(const lksi_update *update, size_t count, float *p, const float *g, float *m);
    void (*nesterov)(const lksi_update *update, size_t count, float *p, const float *g, float *m);
    void (*adam)(const lksi_update *update, size_t count, float *p, const float *g, float *m, float *v); /* and AdamW */
    double (*squares)(size_t count, const float *g); /* the sum of g^2 */
} lksi_update_kernels;

#endif
