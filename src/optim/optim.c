/* Optimizers: options, their checks, and the update rule of a step. All values are doubles on the host. */
#include "optim/optim.h"

#include <float.h>
#include <math.h>

/* 0 means the default and LKS_ZERO means 0. */
static double given(double value, double default_value) {
    if (value == 0) return default_value;
    return value == LKS_ZERO ? 0 : value;
}

lks_optimizer lks_sgd(const lks_sgd_options *options) {
    static const lks_sgd_options none;
    if (options == NULL) options = &none;
    return (lks_optimizer){.kind = LKS_OPTIMIZER_SGD,
                           .lr = given(options->lr, 1e-3),
                           .momentum = given(options->momentum, 0),
                           .weight_decay = given(options->weight_decay, 0),
                           .is_nesterov = options->nesterov != 0,
                           .clip_norm = options->clip_norm,
                           .decays_matrices_only = options->decay_matrices_only != 0,
                           .schedule = options->schedule};
}

lks_optimizer lks_adam(const lks_adam_options *options) {
    static const lks_adam_options none;
    if (options == NULL) options = &none;
    return (lks_optimizer){.kind = LKS_OPTIMIZER_ADAM,
                           .lr = given(options->lr, 1e-3),
                           .weight_decay = given(options->weight_decay, 0),
                           .beta1 = given(options->beta1, 0.9),
                           .beta2 = given(options->beta2, 0.999),
                           .epsilon = given(options->epsilon, 1e-8),
                           .clip_norm = options->clip_norm,
                           .decays_matrices_only = options->decay_matrices_only != 0,
                           .schedule = options->schedule};
}

lks_optimizer lks_adamw(const lks_adamw_options *options) {
    static const lks_adamw_options none;
    if (options == NULL) options = &none;
    return (lks_optimizer){.kind = LKS_OPTIMIZER_ADAMW,
                           .lr = given(options->lr, 1e-3),
                           .weight_decay = given(options->weight_decay, 0.01),
                           .beta1 = given(options->beta1, 0.9),
                           .beta2 = given(options->beta2, 0.999),
                           .epsilon = given(options->epsilon, 1e-8),
                           .clip_norm = options->clip_norm,
                           .decays_matrices_only = options->decay_matrices_only != 0,
                           .schedule = options->schedule};
}

bool lksi_is_factor(double value) { return value >= 0 && value <= (double)FLT_MAX; }

static lks_status check_adam(const lks_optimizer *optimizer) {
    if (!(optimizer->beta1 >= 0 && optimizer->beta1 < 1 && optimizer->beta2 >= 0 && optimizer->beta2 < 1))
        return lksi_error(LKS_ERR_ARGUMENT, "Adam's betas %g and %g are not both in [0, 1)", optimizer->beta1,
                          optimizer->beta2);
    if (!lksi_is_factor(optimizer->epsilon))
        return lksi_error(LKS_ERR_ARGUMENT, "Adam's epsilon %g is not at least 0 and finite in f32",
                          optimizer->epsilon);
    return LKS_OK;
}

lks_status lksi_learning_rate_check(double lr) {
    if (lksi_is_factor(lr)) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "learning rate %g is not at least 0 and finite in f32", lr);
}

lks_status lksi_optimizer_check(const lks_optimizer *optimizer) {
    if (optimizer->kind < LKS_OPTIMIZER_SGD || optimizer->kind > LKS_OPTIMIZER_ADAMW)
        return lksi_error(LKS_ERR_ARGUMENT, "%d is not a kind of optimizer", (int)optimizer->kind);
    if (optimizer->lr == 0)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "the learning rate is 0; set it, and make the optimizer with lks_sgd, lks_adam or lks_adamw");
    if (!lksi_is_factor(optimizer->lr))
        return lksi_error(LKS_ERR_ARGUMENT, "learning rate %g is not above 0 and finite in f32", optimizer->lr);
    if (!(optimizer->momentum >= 0 && optimizer->momentum < 1))
        return lksi_error(LKS_ERR_ARGUMENT, "momentum %g is not in [0, 1)", optimizer->momentum);
    if (optimizer->is_nesterov && optimizer->momentum == 0)
        return lksi_error(LKS_ERR_ARGUMENT, "Nesterov's momentum requires a momentum above 0");
    if (!lksi_is_factor(optimizer->weight_decay))
        return lksi_error(LKS_ERR_ARGUMENT, "weight decay %g is not at least 0 and finite in f32",
                          optimizer->weight_decay);
    if (!(optimizer->clip_norm >= 0) || isinf(optimizer->clip_norm))
        return lksi_error(LKS_ERR_ARGUMENT, "clip_norm %g is not a finite number of at least 0", optimizer->clip_norm);
    LKS_TRY(lksi_schedule_check(&optimizer->schedule));
    return optimizer->kind != LKS_OPTIMIZER_SGD ? check_adam(optimizer) : LKS_OK;
}

static lksi_update_rule rule_of(lks_optimizer_kind kind) {
    switch (kind) {
    case LKS_OPTIMIZER_SGD:
        return LKSI_UPDATE_SGD;
    case LKS_OPTIMIZER_ADAM:
        return LKSI_UPDATE_ADAM;
    case LKS_OPTIMIZER_ADAMW:
        break;
    }
    return LKSI_UPDATE_ADAMW;
}

double lksi_optimizer_lr(const lks_optimizer *optimizer, int64_t step) {
    return optimizer->lr * lks_schedule_factor(&optimizer->schedule, step - 1);
}

lksi_update lksi_optimizer_update(const lks_optimizer *optimizer, int64_t step, double gradient_scale) {
    return (lksi_update){.rule = rule_of(optimizer->kind),
                         .is_nesterov = optimizer->is_nesterov != 0,
                         .step = step,
                         .lr = lksi_optimizer_lr(optimizer, step),
                         .gradient_scale = gradient_scale,
                         .weight_decay = optimizer->weight_decay,
                         .momentum = optimizer->momentum,
                         .beta1 = optimizer->beta1,
                         .beta2 = optimizer->beta2,
                         .epsilon = optimizer->epsilon,
                         .correction1 = 1 - pow(optimizer->beta1, (double)step),
                         .correction2 = 1 - pow(optimizer->beta2, (double)step)};
}

double lksi_optimizer_clip(const lks_optimizer *optimizer, double norm) {
    double factor = optimizer->clip_norm / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}
