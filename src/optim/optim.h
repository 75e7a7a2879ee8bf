/* Interface of optim/ for the rooms above it. */
#ifndef LKSI_OPTIM_H
#define LKSI_OPTIM_H

#include "op/op.h"

#include <lockstep/optim.h>

/* Returns the update rule of step `step`, counted from 1. `gradient_scale` turns the gradient sum into the mean. */
lksi_update lksi_optimizer_update(const lks_optimizer *optimizer, int64_t step, double gradient_scale);
/* The learning rate of `step`. */
double lksi_optimizer_lr(const lks_optimizer *optimizer, int64_t step);
/* The clipping factor for a mean gradient of this norm, at most 1. Only for an optimizer that clips. */
double lksi_optimizer_clip(const lks_optimizer *optimizer, double norm);
/* LKS_ERR_ARGUMENT, with the name of the field: an invalid hyperparameter. */
lks_status lksi_optimizer_check(const lks_optimizer *optimizer);
/* The same for a learning rate that is set later. It may be 0. In lksi_optimizer_check 0 is an error, because it means
 * that the struct was never filled in. */
lks_status lksi_learning_rate_check(double lr);
/* Whether `value` is at least 0 and finite also as f32: the kernels compute with floats. */
bool lksi_is_factor(double value);
lks_status lksi_schedule_check(const lks_schedule *schedule);

#endif
