/* The reference device: plain C loops for every operator, in f32 and f64. The oracle of the tests, and what the other
 * devices fall back to where an operator is too small to matter. */
#ifndef LKSI_REFERENCE_H
#define LKSI_REFERENCE_H

#include "device/device.h"

lks_status lksi_reference_lower(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
/* The labels of a CROSS_ENTROPY: how many are not ignored. LKS_ERR_ARGUMENT, naming the first that is no class. */
lks_status lksi_reference_check_labels(const lksi_lowering *lowering, const int32_t *label, int64_t *n_counted);
/* f32 with the widest instruction set, f64 in plain loops; the same bits on every instruction set. */
void lksi_reference_update(const lks_device *device, const lksi_update *update, size_t count,
                           const lksi_update_memory *memory);
double lksi_reference_sum_squares(const lks_device *device, size_t count, const void *gradient);

#endif
