/* Declarations that the files of device/ share. */
#ifndef LKSI_DEVICE_INTERNAL_H
#define LKSI_DEVICE_INTERNAL_H

#include "device/device.h"

/* --- GPUs (cuda.c), run by the module lockstep-cuda --- */

/* Whether `name` is "cuda" or "cuda:<number>". */
bool lksi_cuda_is_meant(const char *name);
lks_status lksi_cuda_device_create(lks_device **device, const lks_device_options *options);
void lksi_cuda_device_destroy(lks_device *device); /* destroys the module's part of it */

#endif
