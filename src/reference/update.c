/* The update rules: f32 on the widest instruction set, f64 in plain loops. */
#include "base/cache.h"
#include "reference/reference_internal.h"

#include <math.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { LINE = 64 / sizeof(float), BLOCK = 512 }; /* elements; a block of all arrays stays in L1 */

/* A moment whose gradient has become 0 shrinks by a factor in each step. It ends as a few units of the smallest
 * subnormal, which round to themselves forever. On Intel cores a product with a subnormal takes about 150 cycles: the
 * step of ResNet9 took 4.4 ms in its first epoch and 10.8 ms in its ninth. Therefore updates treat subnormals as zeros,
 * as operands and as results. Next to epsilon or to a parameter such numbers are negligible anyway, and without an
 * epsilon Adam takes no step where v is 0. The thread's floating-point mode is restored afterwards. */
#if defined(__SSE2__)
enum { SUBNORMALS_ARE_ZEROS = 0x8040 };
typedef unsigned float_mode;
static float_mode begin_update(void) {
    float_mode mode = _mm_getcsr();
    _mm_setcsr(mode | SUBNORMALS_ARE_ZEROS);
    return mode;
}
static void end_update(float_mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
enum { SUBNORMALS_ARE_ZEROS = 1 << 24 };
typedef uint64_t float_mode;
static void end_update(float_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
static float_mode begin_update(void) {
    float_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    end_update(mode | SUBNORMALS_ARE_ZEROS);
    return mode;
}
#else
typedef int float_mode;
static float_mode begin_update(void) { return 0; }
static void end_update(float_mode mode) { (void)mode; }
#endif

static lksi_update_kernel kernel_of(const lksi_update *update) {
    const lksi_update_kernels *kernels = LKSI_ISA_PICK(lksi_update_kernels);
    if (update->rule != LKSI_UPDATE_SGD) return kernels->adam;
    if (update->momentum == 0) return kernels->sgd;
    return update->is_nesterov ? kernels->nesterov : kernels->momentum;
}

/* The sum of two gradients keeps its subnormals, as in all other paths. It is computed before they are flushed to
 * zero. */
static void update_block(lksi_update_kernel kernel, const lksi_update *update, size_t count,
                         const lksi_update_arrays *arrays) {
    lksi_update_arrays a = *arrays;
    if (a.h != NULL) {
        LKSI_ISA_PICK(lksi_update_kernels)->sum(count, a.g, a.h, a.out);
        a.g = a.out, a.h = NULL;
    }
    const float_mode mode = begin_update();
    kernel(update, count, &a);
    end_update(mode);
}

static void advance(lksi_update_arrays *a, size_t count) {
    a->p += count, a->g += count, a->out += count, a->m += count;
    if (a->h != NULL) a->h += count;
    if (a->also != NULL) a->also += count;
    if (a->v != NULL) a->v += count;
}

/* The second output goes to another core. Its lines are prefetched for writing one block ahead. */
static void ask_ahead(const lksi_update_arrays *a, size_t begin, size_t end) {
    for (size_t i = begin; a->also != NULL && i < end; i += LINE) lksi_ask_to_write(a->also + i);
}

static void update_f32(const lksi_update *update, size_t count, const lksi_update_memory *memory) {
    lksi_update_kernel kernel = kernel_of(update);
    lksi_update_arrays a = {.p = memory->values, .g = memory->gradients[0], .h = memory->gradients[1]};
    a.out = memory->outs[0], a.also = memory->outs[1], a.m = memory->state[0], a.v = memory->state[1];
    if (a.m == NULL) { /* without state no value shrinks from step to step */
        kernel(update, count, &a);
        return;
    }
    size_t n = a.h == NULL ? count : BLOCK;
    for (; count > 0; count -= n) {
        if (n > count) n = count;
        ask_ahead(&a, n, 2 * n < count ? 2 * n : count);
        update_block(kernel, update, n, &a);
        advance(&a, n);
    }
}

static double adam_f64(const lksi_update *update, double gradient, double p, double *m, double *v) {
    double g = update->gradient_scale * gradient;
    if (update->rule == LKSI_UPDATE_ADAMW)
        p *= 1 - update->lr * update->weight_decay;
    else
        g += update->weight_decay * p;
    *m = update->beta1 * *m + (1 - update->beta1) * g;
    *v = update->beta2 * *v + (1 - update->beta2) * g * g;
    double d = sqrt(*v) / sqrt(update->correction2) + update->epsilon;
    return p - update->lr / update->correction1 * (d == 0 ? 0 : *m / d); /* as in update_isa.c */
}

/* m NULL: without momentum. */
static double sgd_f64(const lksi_update *update, double gradient, double p, double *m) {
    double g = update->gradient_scale * gradient + update->weight_decay * p, u = g;
    if (m != NULL) {
        *m = (update->step == 1 ? 0 : update->momentum * *m) + g;
        u = update->is_nesterov ? g + update->momentum * *m : *m;
    }
    return p - update->lr * u;
}

static void update_f64(const lksi_update *update, size_t count, const lksi_update_memory *memory) {
    const double *p = memory->values, *g = memory->gradients[0], *h = memory->gradients[1];
    int n_state = lksi_update_state_count(update);
    double *out = memory->outs[0], *also = memory->outs[1], *m = memory->state[0], *v = memory->state[1];
    for (size_t i = 0; i < count; i++) {
        double gradient = h != NULL ? g[i] + h[i] : g[i];
        out[i] = n_state > 1 ? adam_f64(update, gradient, p[i], &m[i], &v[i])
                             : sgd_f64(update, gradient, p[i], n_state > 0 ? &m[i] : NULL);
        if (also != NULL) also[i] = out[i];
    }
}

/* Rule RUNNING, for buffers. */
static void run_f64(const lksi_update *update, size_t count, const lksi_update_memory *memory) {
    const double *p = memory->values, *g = memory->gradients[0], *h = memory->gradients[1];
    double *out = memory->outs[0], *also = memory->outs[1];
    double keep = 1 - update->momentum, take = update->momentum * update->gradient_scale;
    for (size_t i = 0; i < count; i++) {
        double moved = keep * p[i] + take * (h != NULL ? g[i] + h[i] : g[i]);
        out[i] = take == 0 ? p[i] : moved; /* 0 times an infinite constant would be NaN */
        if (also != NULL) also[i] = out[i];
    }
}

static void run_f32(const lksi_update *update, size_t count, const lksi_update_memory *memory) {
    const float *p = memory->values, *g = memory->gradients[0], *h = memory->gradients[1];
    float *out = memory->outs[0], *also = memory->outs[1];
    double keep = 1 - update->momentum, take = update->momentum * update->gradient_scale;
    for (size_t i = 0; i < count; i++) {
        float statistic = h != NULL ? g[i] + h[i] : g[i];
        float moved = (float)(keep * (double)p[i] + take * (double)statistic);
        out[i] = take == 0 ? p[i] : moved;
        if (also != NULL) also[i] = out[i];
    }
}

void lksi_reference_update(const lks_device *device, const lksi_update *update, size_t count,
                           const lksi_update_memory *memory) {
    bool is_running = update->rule == LKSI_UPDATE_RUNNING;
    if (device->float_type == LKS_F64)
        (is_running ? run_f64 : update_f64)(update, count, memory);
    else
        (is_running ? run_f32 : update_f32)(update, count, memory);
}

double lksi_reference_sum_squares(const lks_device *device, size_t count, const void *gradient) {
    if (device->float_type != LKS_F64) return LKSI_ISA_PICK(lksi_update_kernels)->squares(count, gradient);
    const double *g = gradient;
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += g[i] * g[i];
    return sum;
}
