/* Validation of calls on the calling rank, before anything is sent. */
#ifndef LKSI_VALIDATE_H
#define LKSI_VALIDATE_H

#include "comm/comm_internal.h"

/* LKS_ERR_ARGUMENT if the call is invalid. Sets call->nbytes, and for the -v forms call->count. */
lks_status lksi_call_validate(const lks_group *group, lksi_call *call);

#endif
