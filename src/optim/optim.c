/* Optimizers and schedules: host doubles in, an update rule out. */
#include "optim/optim.h"

#include <math.h>

/* 0 means the default and LKS_ZERO means 0. */
static double given(double value, double default_value) {
    if (value == 0) return default_value;
    return value == LKS_ZERO ? 0 : value;
}

lks_schedule lks_schedule_linear(double first, double last, int64_t n_steps) {
    return (lks_schedule){LKS_SCHEDULE_LINEAR, first, last, n_steps};
}

double lks_schedule_factor(const lks_schedule *schedule, int64_t step) {
    if (schedule->kind == LKS_SCHEDULE_CONSTANT) return 1;
    if (step >= schedule->n_steps) return schedule->last;
    return schedule->first + (schedule->last - schedule->first) * (double)step / (double)schedule->n_steps;
}

lks_optimizer lks_sgd(const lks_sgd_options *options) {
    return (lks_optimizer){.kind = LKS_OPTIMIZER_SGD,
                           .lr = given(options->lr, 1e-3),
                           .momentum = given(options->momentum, 0),
                           .weight_decay = given(options->weight_decay, 0),
                           .schedule = options->schedule};
}

lks_optimizer lks_adam(const lks_adam_options *options) {
    return (lks_optimizer){.kind = LKS_OPTIMIZER_ADAM,
                           .lr = given(options->lr, 1e-3),
                           .weight_decay = given(options->weight_decay, 0),
                           .beta1 = given(options->beta1, 0.9),
                           .beta2 = given(options->beta2, 0.999),
                           .epsilon = given(options->epsilon, 1e-8),
                           .schedule = options->schedule};
}

lks_status lksi_optimizer_check(const lks_optimizer *optimizer) {
    if (optimizer->kind != LKS_OPTIMIZER_SGD && optimizer->kind != LKS_OPTIMIZER_ADAM)
        return lksi_error(LKS_ERR_ARGUMENT, "%d is no kind of optimizer", (int)optimizer->kind);
    if (!(optimizer->lr > 0) || isinf(optimizer->lr)) /* 0 would be an optimizer that nobody filled in */
        return lksi_error(LKS_ERR_ARGUMENT, "learning rate %g is not a finite number above 0", optimizer->lr);
    if (!(optimizer->momentum >= 0 && optimizer->momentum < 1))
        return lksi_error(LKS_ERR_ARGUMENT, "momentum %g is not in [0, 1)", optimizer->momentum);
    if (!(optimizer->weight_decay >= 0) || isinf(optimizer->weight_decay))
        return lksi_error(LKS_ERR_ARGUMENT, "weight decay %g is not a number from 0 on", optimizer->weight_decay);
    if (optimizer->kind != LKS_OPTIMIZER_ADAM) return LKS_OK;
    if (!(optimizer->beta1 >= 0 && optimizer->beta1 < 1 && optimizer->beta2 >= 0 && optimizer->beta2 < 1))
        return lksi_error(LKS_ERR_ARGUMENT, "Adam's betas %g and %g are not both in [0, 1)", optimizer->beta1,
                          optimizer->beta2);
    if (!(optimizer->epsilon >= 0))
        return lksi_error(LKS_ERR_ARGUMENT, "Adam's epsilon %g is not a number from 0 on", optimizer->epsilon);
    return LKS_OK;
}

lksi_update lksi_optimizer_update(const lks_optimizer *optimizer, int64_t step, double gradient_scale) {
    return (lksi_update){.rule = optimizer->kind == LKS_OPTIMIZER_ADAM ? LKSI_UPDATE_ADAM : LKSI_UPDATE_SGD,
                         .step = step,
                         .lr = optimizer->lr * lks_schedule_factor(&optimizer->schedule, step - 1),
                         .gradient_scale = gradient_scale,
                         .weight_decay = optimizer->weight_decay,
                         .momentum = optimizer->momentum,
                         .beta1 = optimizer->beta1,
                         .beta2 = optimizer->beta2,
                         .epsilon = optimizer->epsilon,
                         .correction1 = 1 - pow(optimizer->beta1, (double)step),
                         .correction2 = 1 - pow(optimizer->beta2, (double)step)};
}
