/* Which machine this is, for telling which ranks share one. */
#ifndef LKSI_HOST_H
#define LKSI_HOST_H

#include "base/base.h"

/* The same for two processes that can share memory and local sockets: the same boot of a machine, network namespace
 * and user; or the same text in LOCKSTEP_HOST_ID where that is set. */
uint64_t lksi_host_id(void);
/* The same for two processes that reach each other over loopback: the same boot of a machine and network namespace. */
uint64_t lksi_network_id(void);

#endif
