/* What a group uses of MPI: byte streams to ranks of other hosts, and a communicator for MPI's own collectives. */
#ifndef LKSI_MPI_STREAMS_H
#define LKSI_MPI_STREAMS_H

#include "comm/comm_internal.h"
#include "comm/transport/mpi/mpi.h"

/* Sets group->remote: control connections over tcp (`connections` as for lksi_tcp_join), streams over MPI. */
lks_status lksi_mpi_join(lks_group *group, int *connections);

/* Runs a collective of MPI over the group. The ranks have already agreed that all run it. `what` is for errors. */
lks_status lksi_mpi_run(lks_group *group, const lksi_mpi_collective *collective, const char *what);
/* The group's communicator (NULL: that of all ranks). The first call makes it and is collective over the group, within
 * `call`. */
lks_status lksi_mpi_communicator_of(lks_group *group, const lksi_call *call, lksi_mpi_communicator **communicator);
/* Frees the communicator, before the group is destroyed. */
void lksi_mpi_communicator_close(lks_group *group);

#endif
