/* Which machine this is, for telling which ranks share one. */
#ifndef LKSI_HOST_H
#define LKSI_HOST_H

#include "base/base.h"

/* The same for two processes that can share memory and local sockets: the same boot of a machine, network namespace
 * and user, and the same `node`; or the same text in LOCKSTEP_HOST_ID where that is set. `node` is the launcher's name
 * for what it divides among ranks, NULL where it has none: several Slurm nodes may be one machine (SLURMD_NODENAME),
 * and are several hosts all the same. */
uint64_t lksi_host_id(const char *node);
/* The CPUs that this process may use: the same for two that may use the same. */
uint64_t lksi_cpus_id(void);
/* The same for two processes that reach each other over loopback: the same boot of a machine and network namespace. */
uint64_t lksi_network_id(void);

#endif
