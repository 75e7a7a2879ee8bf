/* Shared by the files that read the variables of environment.h. */
#ifndef LKSI_BOOTSTRAP_LAUNCHER_H
#define LKSI_BOOTSTRAP_LAUNCHER_H

#include "comm/bootstrap/environment.h"

/* Reads a required integer variable. Errors: LKS_ERR_ARGUMENT. The text names the variable and its value. */
lks_status lksi_variable_number(const char *name, int64_t min, int64_t max, int64_t *value);

/* In slurm.c. Whether this process is a task of a step started by srun, and the first required variable that is missing
 * (NULL if none). */
bool lksi_slurm_is_step(void);
const char *lksi_slurm_missing(void);
const char *lksi_slurm_size_name(void); /* the variable with the number of tasks */
lks_status lksi_slurm_read(lksi_environment *environment);
/* The address and the port where the ranks of the step meet. Each is used if the environment does not set it. */
lks_status lksi_slurm_master_address(const lksi_environment *environment, char address[LKSI_MASTER_ADDRESS_NBYTES]);
lks_status lksi_slurm_master_port(int *port);

#endif
