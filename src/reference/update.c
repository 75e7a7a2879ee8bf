/* The update rules: f32 on the widest instruction set, f64 in plain loops. */
#include "base/isa.h"
#include "reference/reference_internal.h"

#include <math.h>

LKSI_ISA_DECLARE(lksi_update_kernels, lksi_update_kernels);

static void update_f32(const lksi_update *update, size_t count, void *parameters, const void *gradient,
                       void *const *state) {
    const lksi_update_kernels *kernels = LKSI_ISA_PICK(lksi_update_kernels);
    if (update->rule == LKSI_UPDATE_ADAM)
        kernels->adam(update, count, parameters, gradient, state[0], state[1]);
    else if (update->momentum != 0)
        kernels->momentum(update, count, parameters, gradient, state[0]);
    else
        kernels->sgd(update, count, parameters, gradient);
}

static double adam_f64(const lksi_update *update, double gradient, double *m, double *v) {
    *m = update->beta1 * *m + (1 - update->beta1) * gradient;
    *v = update->beta2 * *v + (1 - update->beta2) * gradient * gradient;
    return update->lr / update->correction1 * (*m / (sqrt(*v) / sqrt(update->correction2) + update->epsilon));
}

static double sgd_f64(const lksi_update *update, double gradient, double *m) {
    if (m == NULL) return update->lr * gradient;
    *m = (update->step == 1 ? 0 : update->momentum * *m) + gradient;
    return update->lr * *m;
}

static void update_f64(const lksi_update *update, size_t count, void *parameters, const void *gradient,
                       void *const *state) {
    double *p = parameters;
    const double *g = gradient;
    int n_state = lksi_update_state_count(update);
    double *m = n_state > 0 ? state[0] : NULL, *v = n_state > 1 ? state[1] : NULL;
    for (size_t i = 0; i < count; i++) {
        double scaled = update->gradient_scale * g[i] + update->weight_decay * p[i];
        p[i] -= v != NULL ? adam_f64(update, scaled, &m[i], &v[i]) : sgd_f64(update, scaled, m != NULL ? &m[i] : NULL);
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
