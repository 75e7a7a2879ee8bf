/* Identifies the machine, to find out which ranks share one. */
#ifndef LKSI_HOST_H
#define LKSI_HOST_H

#include "base/base.h"

/* Equal for two processes that can share memory and local sockets: those with the same boot of a machine, network
 * namespace, user and `node`. If LOCKSTEP_HOST_ID is set, only its text counts. `node` is the launcher's name of the
 * node, or NULL. Several Slurm nodes (SLURMD_NODENAME) may be on one machine. They count as several hosts. */
uint64_t lksi_host_id(const char *node);
/* Identifies the set of CPUs that this process may use. Equal for equal sets. */
uint64_t lksi_cpus_id(void);
/* Equal for two processes that reach each other over loopback: same boot of a machine and same network namespace. */
uint64_t lksi_network_id(void);

#endif
