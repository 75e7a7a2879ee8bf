/* The files that read environment.h's variables, among themselves. */
#ifndef LKSI_BOOTSTRAP_LAUNCHER_H
#define LKSI_BOOTSTRAP_LAUNCHER_H

#include "comm/bootstrap/environment.h"

/* A whole number that must be there. Errors: LKS_ERR_ARGUMENT naming the variable and its value. */
lks_status lksi_variable_number(const char *name, int64_t min, int64_t max, int64_t *value);

/* slurm.c: whether this is a task of a step that srun has started, and the first of its variables that is missing. */
bool lksi_slurm_is_step(void);
const char *lksi_slurm_missing(void);
lks_status lksi_slurm_read(lksi_environment *environment);
/* Where the ranks of the step meet, each where the environment does not say: the address, the port. */
lks_status lksi_slurm_master_address(const lksi_environment *environment, char address[LKSI_MASTER_ADDRESS_NBYTES]);
lks_status lksi_slurm_master_port(int *port);

#endif
