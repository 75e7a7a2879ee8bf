/* GPU groups, for the other rooms. The operations are in the public header. */
#ifndef LKSI_NCCL_H
#define LKSI_NCCL_H

#include "comm/comm.h"

#include <lockstep/gpu.h>

enum { LKSI_NCCL_TEXT_NBYTES = 1280 };

/* Writes "2.28.9 (path of the module)". No GPU is needed. Returns false if there is no module or it cannot be loaded.
 * `text` then says why. */
bool lksi_nccl_describe(char text[LKSI_NCCL_TEXT_NBYTES]);

/* Fails the GPU group and the group that it was created from, as lksi_group_fail does. Operations in progress on the
 * GPU are aborted. Otherwise they might wait for a rank that is lost, and freeing memory would wait for them. */
lks_status lksi_gpu_fail(lks_gpu_group *gpus, lks_status status);

#endif
