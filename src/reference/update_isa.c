/* The update rules as one pass over flat f32 memory; formulas at lksi_update in op/op.h. Host doubles become floats
 * before the loop, and every loop is element-wise, so each instruction set gives the same bits. */
#include "base/isa.h"
#include "reference/reference_internal.h"

#include <math.h>

/* No aliasing but p with p: tells the compiler that it may use vectors. */
static void sgd(const lksi_update *update, size_t count, float *restrict p, const float *restrict g) {
    const float scale = (float)update->gradient_scale, decay = (float)update->weight_decay, lr = (float)update->lr;
    for (size_t i = 0; i < count; i++) p[i] -= lr * (scale * g[i] + decay * p[i]);
}

static void momentum(const lksi_update *update, size_t count, float *restrict p, const float *restrict g,
                     float *restrict m) {
    const float scale = (float)update->gradient_scale, decay = (float)update->weight_decay, lr = (float)update->lr;
    const float keep = update->step == 1 ? 0.0f : (float)update->momentum;
    for (size_t i = 0; i < count; i++) {
        m[i] = keep * m[i] + (scale * g[i] + decay * p[i]);
        p[i] -= lr * m[i];
    }
}

static void adam(const lksi_update *update, size_t count, float *restrict p, const float *restrict g, float *restrict m,
                 float *restrict v) {
    const float scale = (float)update->gradient_scale, decay = (float)update->weight_decay;
    const float beta1 = (float)update->beta1, rest1 = (float)(1 - update->beta1);
    const float beta2 = (float)update->beta2, rest2 = (float)(1 - update->beta2);
    const float epsilon = (float)update->epsilon, step_size = (float)(update->lr / update->correction1);
    const float root_correction2 = (float)sqrt(update->correction2);
    for (size_t i = 0; i < count; i++) {
        float gradient = scale * g[i] + decay * p[i];
        m[i] = beta1 * m[i] + rest1 * gradient;
        v[i] = beta2 * v[i] + rest2 * gradient * gradient;
        p[i] -= step_size * (m[i] / (sqrtf(v[i]) / root_correction2 + epsilon));
    }
}

extern const lksi_update_kernels LKSI_ISA_NAME(lksi_update_kernels);
const lksi_update_kernels LKSI_ISA_NAME(lksi_update_kernels) = {sgd, momentum, adam};
