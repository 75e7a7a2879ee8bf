/* How ranks that were started by an MPI launcher find each other. */
#ifndef LKSI_MPI_BOOTSTRAP_H
#define LKSI_MPI_BOOTSTRAP_H

#include "comm/bootstrap/environment.h"

/* Starts MPI and fills in master_address, master_port and job_key, the same on all ranks, and local_rank and
 * local_size. For more than one rank, if the launcher has given rank and size but no address. Hosts are told apart by
 * lksi_host_id, which the launcher need not know. The first call is collective over all ranks of the launcher. Later
 * calls get the same answers. Errors: those of lksi_mpi_start; LKS_ERR_TIMEOUT; LKS_ERR_ARGUMENT: rank 0 has no address
 * that all ranks can reach. */
lks_status lksi_mpi_bootstrap(int64_t timeout_ms, lksi_environment *environment);

#endif
