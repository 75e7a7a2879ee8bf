/* How ranks that an MPI launcher has started find each other. */
#ifndef LKSI_MPI_BOOTSTRAP_H
#define LKSI_MPI_BOOTSTRAP_H

#include "comm/bootstrap/environment.h"

/* For more than one rank, whose launcher has said rank and size but not where they meet: fills in master_address,
 * master_port and job_key, the same on all ranks. Collective over all ranks of the launcher.
 * Errors: LKS_ERR_UNSUPPORTED where no MPI is there to do it. */
lks_status lksi_mpi_bootstrap(lksi_environment *environment);

#endif
