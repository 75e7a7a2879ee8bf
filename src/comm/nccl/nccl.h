/* GPU groups, for the other rooms: the operations are those of the public face. */
#ifndef LKSI_NCCL_H
#define LKSI_NCCL_H

#include "comm/comm.h"

#include <lockstep/gpu.h>

enum { LKSI_NCCL_TEXT_NBYTES = 1280 };

/* "2.28.9 (path of the module)", without a GPU; false where there is none, or it cannot be loaded: `text` then says
 * why. */
bool lksi_nccl_describe(char text[LKSI_NCCL_TEXT_NBYTES]);

/* As lksi_group_fail, of the group it was made of, too; what is under way on the GPU is given up: it may wait for a
 * rank that will not come, and whoever frees memory would wait for it. */
lks_status lksi_gpu_fail(lks_gpu_group *gpus, lks_status status);

#endif
