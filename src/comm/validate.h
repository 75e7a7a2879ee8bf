/* Bad calls are refused on the caller, before anything is sent. */
#ifndef LKSI_VALIDATE_H
#define LKSI_VALIDATE_H

#include "comm/comm_internal.h"

/* LKS_ERR_ARGUMENT with the fact; sets call->nbytes, and call->count of the -v forms. */
lks_status lksi_call_validate(const lks_group *group, lksi_call *call);

#endif
