/* The reference device: plain C loops for every operator, in f32 and f64. Tests use it as the oracle. Other devices
 * fall back to it for operators that are not worth a faster kernel. */
#ifndef LKSI_REFERENCE_H
#define LKSI_REFERENCE_H

#include "device/device.h"

lks_status lksi_reference_lower(const lks_device *device, const lksi_lowering *lowering, lksi_kernel *kernel);
/* Counts the labels of a CROSS_ENTROPY that are not ignored. LKS_ERR_ARGUMENT, with the first label that is not a
 * class. */
lks_status lksi_reference_check_labels(const lksi_lowering *lowering, const int32_t *label, int64_t *n_counted);
/* LKS_ERR_ARGUMENT, with the first of the `n` indices that is no row of an embedding. */
lks_status lksi_reference_check_indices(const int32_t *index, int64_t n, int64_t n_rows);
/* f32 uses the widest instruction set, f64 plain loops. The bits are the same on every instruction set. */
void lksi_reference_update(const lks_device *device, const lksi_update *update, size_t count,
                           const lksi_update_memory *memory);
double lksi_reference_sum_squares(const lks_device *device, size_t count, const void *gradient);

#endif
