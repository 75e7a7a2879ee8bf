/* The update rules as one pass over flat f32 memory. The formulas are at lksi_update in op/op.h. Doubles of the host
 * become floats before the loop, and every loop is element-wise, so each instruction set produces the same bits. */
#include "reference/reference_internal.h"

#include <float.h>
#include <math.h>

/* a / b for many a, given 1 / b rounded to nearest. A quotient that is slightly off is corrected twice by its
 * remainder, which yields the correctly rounded quotient (P. Markstein, Computation of elementary functions on the IBM
 * RISC System/6000 processor, 1990). A fused multiply-add takes an eighth of a division's time or less. Valid for a = 0
 * and for a >= 2^-75. Infinities and NaN are preserved. */
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

/* The numbers of an update as floats. */
typedef struct factors {
    float scale, decay, lr, shrink;
    float keep, ahead;                /* SGD's momentum */
    float beta1, rest1, beta2, rest2; /* Adam's */
    float epsilon, root_correction2, inverse;
} factors;

static factors factors_of(const lksi_update *update) {
    /* AdamW shrinks the parameter itself. Adam adds the decay to the gradient. The unused factor is 1 or 0. */
    const bool is_decoupled = update->rule == LKSI_UPDATE_ADAMW, is_sgd = update->rule == LKSI_UPDATE_SGD;
    factors f = {.scale = (float)update->gradient_scale,
                 .decay = is_decoupled ? 0.0f : (float)update->weight_decay,
                 .lr = (float)(is_sgd ? update->lr : update->lr / update->correction1),
                 .shrink = is_decoupled ? (float)(1 - update->lr * update->weight_decay) : 1.0f,
                 .keep = update->step == 1 ? 0.0f : (float)update->momentum,
                 .ahead = (float)update->momentum,
                 .beta1 = (float)update->beta1,
                 .rest1 = (float)(1 - update->beta1),
                 .beta2 = (float)update->beta2,
                 .rest2 = (float)(1 - update->beta2),
                 .epsilon = (float)update->epsilon};
    if (is_sgd) return f;
    f.root_correction2 = (float)sqrt(update->correction2);
    f.inverse = 1 / f.root_correction2;
    return f;
}

/* Returns the new value of one parameter, from its old value and its gradient. m and v are its state. */
typedef float (*rule_of_one)(factors f, float p, float g, float *m, float *v);

static inline float sgd_of(factors f, float p, float g, float *m, float *v) {
    (void)m, (void)v;
    return p - f.lr * (f.scale * g + f.decay * p);
}

static inline float momentum_of(factors f, float p, float g, float *m, float *v) {
    (void)v;
    *m = f.keep * *m + (f.scale * g + f.decay * p);
    return p - f.lr * *m;
}

static inline float nesterov_of(factors f, float p, float g, float *m, float *v) {
    (void)v;
    float gradient = f.scale * g + f.decay * p;
    *m = f.keep * *m + gradient;
    return p - f.lr * (gradient + f.ahead * *m);
}

/* m / d, but 0 if d is 0, as it may be without an epsilon: in the padding between parameters, whose gradient is 0, and
 * where v was flushed to 0 and m was not. */
static inline float quotient(float m, float d) { return d == 0 ? 0 : m / d; }

/* Divides like PyTorch. Multiplying sqrt(v) by 1 / root_correction2 would be faster, but it rounds differently, Adam
 * magnifies the difference, and the losses of ResNet9 deviate from PyTorch's after 10 steps. */
static inline float adam_of(factors f, float p, float g, float *m, float *v) {
    float gradient = f.scale * g + f.decay * p;
    *m = f.beta1 * *m + f.rest1 * gradient;
    *v = f.beta2 * *v + f.rest2 * gradient * gradient;
    return f.shrink * p - f.lr * quotient(*m, divide(sqrtf(*v), f.root_correction2, f.inverse) + f.epsilon);
}

/* Arrays may be identical: element i is read before it is written, and no other element depends on it, so vectors may
 * be used. */
#if defined(__clang__)
#define ELEMENTS_ARE_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define ELEMENTS_ARE_APART _Pragma("GCC ivdep")
#endif
#define EACH_BY_ITSELF static inline __attribute__((always_inline))

/* The two booleans are constants after inlining: one loop is compiled for each combination. */
EACH_BY_ITSELF void update_each(rule_of_one rule, bool are_two_added, bool are_two_written, factors f, size_t count,
                                const lksi_update_arrays *a) {
    const float *p = a->p, *g = a->g, *h = a->h;
    float *out = a->out, *also = a->also;
    float *m = a->m != NULL ? a->m : out,
          *v = a->v != NULL ? a->v : out; /* any valid address: the rule does not use it */
    ELEMENTS_ARE_APART
    for (size_t i = 0; i < count; i++) {
        float updated = rule(f, p[i], are_two_added ? g[i] + h[i] : g[i], m + i, v + i);
        out[i] = updated;
        if (are_two_written) also[i] = updated;
    }
}

EACH_BY_ITSELF void update_all(rule_of_one rule, const lksi_update *update, size_t count, const lksi_update_arrays *a) {
    factors f = factors_of(update);
    if (a->h == NULL && a->also == NULL)
        update_each(rule, false, false, f, count, a);
    else if (a->h == NULL)
        update_each(rule, false, true, f, count, a);
    else if (a->also == NULL)
        update_each(rule, true, false, f, count, a);
    else
        update_each(rule, true, true, f, count, a);
}

static void sgd(const lksi_update *update, size_t count, const lksi_update_arrays *a) {
    update_all(sgd_of, update, count, a);
}
static void momentum(const lksi_update *update, size_t count, const lksi_update_arrays *a) {
    update_all(momentum_of, update, count, a);
}
static void nesterov(const lksi_update *update, size_t count, const lksi_update_arrays *a) {
    update_all(nesterov_of, update, count, a);
}
static void adam(const lksi_update *update, size_t count, const lksi_update_arrays *a) {
    update_all(adam_of, update, count, a);
}

static void sum(size_t count, const float *g, const float *h, float *out) {
    ELEMENTS_ARE_APART
    for (size_t i = 0; i < count; i++) out[i] = g[i] + h[i];
}

/* Sixteen interleaved sums, added pairwise at the end: one order of additions for every instruction set. Squares of
 * floats are exact in double. */
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

const lksi_update_kernels LKSI_ISA_NAME(lksi_update_kernels) = {sgd, momentum, nesterov, adam, sum, squares};
