/* What a message between the hosts of a group costs. */
#ifndef LKSI_TUNE_H
#define LKSI_TUNE_H

#include "comm/comm_internal.h"

/* Sets group->selection's latency and time per byte, the same on all ranks: from the file that LOCKSTEP_TUNING names on
 * rank 0, or where it names none, or one that says nothing of the transport, measured in a few ms. Collective.
 * Errors: LKS_ERR_FILE, LKS_ERR_FORMAT on all ranks where the file is not as it should be, and as any collective. */
lks_status lksi_tune(lks_group *group);

#endif
