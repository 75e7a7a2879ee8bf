/* What optim/ offers to the rooms above it. */
#ifndef LKSI_OPTIM_H
#define LKSI_OPTIM_H

#include "op/op.h"

#include <lockstep/optim.h>

/* Fills in the update rule for `step` (from 1). `gradient_scale` turns the gradient array into the mean gradient. */
lksi_update lksi_optimizer_update(const lks_optimizer *optimizer, int64_t step, double gradient_scale);
/* The learning rate of `step`. */
double lksi_optimizer_lr(const lks_optimizer *optimizer, int64_t step);
/* What a mean gradient of this norm is scaled by, at most 1; only where the optimizer clips. */
double lksi_optimizer_clip(const lks_optimizer *optimizer, double norm);
/* LKS_ERR_ARGUMENT, naming the field, for what cannot be meant. */
lks_status lksi_optimizer_check(const lks_optimizer *optimizer);
/* The same of a rate that is set later, which may be 0: in an optimizer, 0 tells that nobody has made it. */
lks_status lksi_learning_rate_check(double lr);
lks_status lksi_schedule_check(const lks_schedule *schedule);

#endif
