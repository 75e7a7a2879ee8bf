/* How ranks that an MPI launcher has started find each other. */
#ifndef LKSI_MPI_BOOTSTRAP_H
#define LKSI_MPI_BOOTSTRAP_H

#include "comm/bootstrap/environment.h"

/* For more than one rank, whose launcher has said rank and size but not where they meet: starts MPI and fills in
 * master_address, master_port and job_key, the same on all ranks, and local_rank and local_size, counted by what tells
 * hosts apart (lksi_host_id), which the launcher need not know. Collective over all ranks of the launcher, once: later
 * calls get the same answers.
 * Errors: those of lksi_mpi_start; LKS_ERR_TIMEOUT; LKS_ERR_ARGUMENT where rank 0 has no address that all can reach. */
lks_status lksi_mpi_bootstrap(int64_t timeout_ms, lksi_environment *environment);

#endif
