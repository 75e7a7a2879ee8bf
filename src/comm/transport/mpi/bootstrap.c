#include "comm/transport/mpi/bootstrap.h"

lks_status lksi_mpi_bootstrap(lksi_environment *environment) {
    return lksi_error(LKS_ERR_UNSUPPORTED,
                      "an MPI launcher started rank %d of %d, but this library has no MPI module to find the others "
                      "with: set MASTER_ADDR and MASTER_PORT to where rank 0 listens",
                      environment->rank, environment->size);
}
