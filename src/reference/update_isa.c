/* The update rules as one pass over flat f32 memory; formulas at lksi_update in op/op.h. Host doubles become floats
 * before the loop, and every loop is element-wise, so each instruction set gives the same bits. */
#include "base/isa.h"
#include "reference/reference_internal.h"

#include <float.h>
#include <math.h>

/* a / b for many a: with 1 / b rounded to nearest, a quotient that is off by little is corrected twice by what it
 * leaves over, which is the rounded quotient itself (P. Markstein, Computation of elementary functions on the IBM RISC
 * System/6000 processor, 1990). Each fused multiply-add takes an eighth of a division's time or less. For a = 0 or
 * 2^-75 and more; infinities and NaN stay. */
static inline float divide(float a, float b, float inverse) {
#if defined(__FMA__)
    float about = a * inverse, nearer = fmaf(fmaf(-about, b, a), inverse, about);
    float exact = fmaf(fmaf(-nearer, b, a), inverse, nearer);
    return about <= FLT_MAX ? exact : about;
#else
    (void)inverse;
    return a / b;
#endif
}

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

static void nesterov(const lksi_update *update, size_t count, float *restrict p, const float *restrict g,
                     float *restrict m) {
    const float scale = (float)update->gradient_scale, decay = (float)update->weight_decay, lr = (float)update->lr;
    const float keep = update->step == 1 ? 0.0f : (float)update->momentum, ahead = (float)update->momentum;
    for (size_t i = 0; i < count; i++) {
        float gradient = scale * g[i] + decay * p[i];
        m[i] = keep * m[i] + gradient;
        p[i] -= lr * (gradient + ahead * m[i]);
    }
}

/* AdamW shrinks the parameter itself, Adam adds its decay to the gradient: the other factor is then 1 or 0. Divided as
 * PyTorch divides: sqrt(v) times 1 / root_correction2 would be quicker (24 to 18 us for mnist), but Adam magnifies what
 * rounds differently, and ResNet9's losses leave PyTorch's after 10 steps. */
static void adam(const lksi_update *update, size_t count, float *restrict p, const float *restrict g, float *restrict m,
                 float *restrict v) {
    const int is_decoupled = update->rule == LKSI_UPDATE_ADAMW;
    const float scale = (float)update->gradient_scale, decay = is_decoupled ? 0.0f : (float)update->weight_decay;
    const float shrink = is_decoupled ? (float)(1 - update->lr * update->weight_decay) : 1.0f;
    const float beta1 = (float)update->beta1, rest1 = (float)(1 - update->beta1);
    const float beta2 = (float)update->beta2, rest2 = (float)(1 - update->beta2);
    const float epsilon = (float)update->epsilon, step_size = (float)(update->lr / update->correction1);
    const float root_correction2 = (float)sqrt(update->correction2), inverse = 1 / root_correction2;
    for (size_t i = 0; i < count; i++) {
        float gradient = scale * g[i] + decay * p[i];
        m[i] = beta1 * m[i] + rest1 * gradient;
        v[i] = beta2 * v[i] + rest2 * gradient * gradient;
        p[i] = shrink * p[i] - step_size * (m[i] / (divide(sqrtf(v[i]), root_correction2, inverse) + epsilon));
    }
}

/* Sixteen sums side by side, added up two by two at the end: one order for every instruction set. Squares of floats are
 * exact in double. */
static double squares(size_t count, const float *g) {
    double sums[16] = {0};
    size_t whole = count / 16 * 16;
    for (size_t i = 0; i < whole; i += 16)
        for (size_t j = 0; j < 16; j++) sums[j] += (double)g[i + j] * (double)g[i + j];
    for (size_t i = whole; i < count; i++) sums[i - whole] += (double)g[i] * (double)g[i];
    for (size_t n = 8; n > 0; n /= 2)
        for (size_t j = 0; j < n; j++) sums[j] += sums[j + n];
    return sums[0];
}

extern const lksi_update_kernels LKSI_ISA_NAME(lksi_update_kernels);
const lksi_update_kernels LKSI_ISA_NAME(lksi_update_kernels) = {sgd, momentum, nesterov, adam, squares};
