/* What optim/ offers to the rooms above it. */
#ifndef LKSI_OPTIM_H
#define LKSI_OPTIM_H

#include "op/op.h"

#include <lockstep/optim.h>

/* Fills in the update rule for `step` (from 1). `gradient_scale` turns the gradient array into the mean gradient. */
lksi_update lksi_optimizer_update(const lks_optimizer *optimizer, int64_t step, double gradient_scale);
/* LKS_ERR_ARGUMENT, naming the field, for what cannot be meant. */
lks_status lksi_optimizer_check(const lks_optimizer *optimizer);

#endif
