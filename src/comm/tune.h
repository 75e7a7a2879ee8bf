/* The cost of a message between the hosts of a group. */
#ifndef LKSI_TUNE_H
#define LKSI_TUNE_H

#include "comm/comm_internal.h"

/* Sets latency and time per byte in group->selection, the same on all ranks. They come from the file that
 * LOCKSTEP_TUNING names on rank 0. Without a file, or if it has no entry for the transport, they are measured in a few
 * ms. Collective.
 * Errors: LKS_ERR_FILE, LKS_ERR_FORMAT on all ranks if the file is invalid; otherwise as any collective. */
lks_status lksi_tune(lks_group *group);

#endif
