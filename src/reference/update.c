/* The update rules: f32 on the widest instruction set, f64 in plain loops. */
#include "base/isa.h"
#include "reference/reference_internal.h"

#include <math.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

LKSI_ISA_DECLARE(lksi_update_kernels, lksi_update_kernels);

/* A moment whose gradient has become 0 shrinks by a factor in each step, and ends at a few units of the smallest float,
 * which round to themselves for ever. Intel's cores take some 150 cycles for a product with one: ResNet9's step
 * took 4.4 ms in its first epoch and 10.8 in its ninth. So in updates such numbers are zeros, as operands and as
 * results; next to epsilon or a parameter they were nothing before. What was asked of the thread elsewhere holds again
 * afterwards. */
#if defined(__SSE2__)
enum { SUBNORMALS_ARE_ZEROS = 0x8040 };
static unsigned begin_update(void) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | SUBNORMALS_ARE_ZEROS);
    return mode;
}
static void end_update(unsigned mode) { _mm_setcsr(mode); }
#else
static unsigned begin_update(void) { return 0; }
static void end_update(unsigned mode) { (void)mode; }
#endif

static void update_f32(const lksi_update *update, size_t count, void *parameters, const void *gradient,
                       void *const *state) {
    const lksi_update_kernels *kernels = LKSI_ISA_PICK(lksi_update_kernels);
    unsigned mode = begin_update();
    if (update->rule != LKSI_UPDATE_SGD)
        kernels->adam(update, count, parameters, gradient, state[0], state[1]);
    else if (update->momentum != 0 && update->is_nesterov)
        kernels->nesterov(update, count, parameters, gradient, state[0]);
    else if (update->momentum != 0)
        kernels->momentum(update, count, parameters, gradient, state[0]);
    else
        kernels->sgd(update, count, parameters, gradient);
    end_update(mode);
}

static void adam_f64(const lksi_update *update, double gradient, double *p, double *m, double *v) {
    double g = update->gradient_scale * gradient;
    if (update->rule == LKSI_UPDATE_ADAMW)
        *p *= 1 - update->lr * update->weight_decay;
    else
        g += update->weight_decay * *p;
    *m = update->beta1 * *m + (1 - update->beta1) * g;
    *v = update->beta2 * *v + (1 - update->beta2) * g * g;
    *p -= update->lr / update->correction1 * (*m / (sqrt(*v) / sqrt(update->correction2) + update->epsilon));
}

/* m NULL: without momentum. */
static void sgd_f64(const lksi_update *update, double gradient, double *p, double *m) {
    double g = update->gradient_scale * gradient + update->weight_decay * *p, u = g;
    if (m != NULL) {
        *m = (update->step == 1 ? 0 : update->momentum * *m) + g;
        u = update->is_nesterov ? g + update->momentum * *m : *m;
    }
    *p -= update->lr * u;
}

static void update_f64(const lksi_update *update, size_t count, void *parameters, const void *gradient,
                       void *const *state) {
    double *p = parameters;
    const double *g = gradient;
    int n_state = lksi_update_state_count(update);
    double *m = n_state > 0 ? state[0] : NULL, *v = n_state > 1 ? state[1] : NULL;
    for (size_t i = 0; i < count; i++) {
        if (v != NULL)
            adam_f64(update, g[i], &p[i], &m[i], &v[i]);
        else
            sgd_f64(update, g[i], &p[i], m != NULL ? &m[i] : NULL);
    }
}

static void update_running(lks_type type, const lksi_update *update, size_t count, void *buffers,
                           const void *statistics) {
    double keep = 1 - update->momentum, take = update->momentum * update->gradient_scale;
    for (size_t i = 0; i < count; i++) {
        if (type == LKS_F64)
            ((double *)buffers)[i] = keep * ((double *)buffers)[i] + take * ((const double *)statistics)[i];
        else
            ((float *)buffers)[i] =
                (float)(keep * (double)((float *)buffers)[i] + take * (double)((const float *)statistics)[i]);
    }
}

void lksi_reference_update(const lks_device *device, const lksi_update *update, size_t count, void *parameters,
                           const void *gradient, void *const *state) {
    if (update->rule == LKSI_UPDATE_RUNNING)
        update_running(device->float_type, update, count, parameters, gradient);
    else if (device->float_type == LKS_F64)
        update_f64(update, count, parameters, gradient, state);
    else
        update_f32(update, count, parameters, gradient, state);
}

double lksi_reference_sum_squares(const lks_device *device, size_t count, const void *gradient) {
    if (device->float_type != LKS_F64) return LKSI_ISA_PICK(lksi_update_kernels)->squares(count, gradient);
    const double *g = gradient;
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += g[i] * g[i];
    return sum;
}
