/* Who a process is, as its launcher's environment says. */
#ifndef LKSI_ENVIRONMENT_H
#define LKSI_ENVIRONMENT_H

#include "base/base.h"

/* Whose variables said it. */
typedef enum lksi_launcher {
    LKSI_LAUNCHER_NONE,
    LKSI_LAUNCHER_TORCHRUN, /* lockstep run sets the same */
    LKSI_LAUNCHER_OPENMPI,
    LKSI_LAUNCHER_PMI, /* MPICH and its kin */
    LKSI_LAUNCHER_SLURM
} lksi_launcher;

enum { LKSI_MASTER_ADDRESS_NBYTES = 256, LKSI_JOB_KEY_NBYTES = 65 };

typedef struct lksi_environment {
    int rank, size, local_rank, local_size;
    lksi_launcher launcher;
    char master_address[LKSI_MASTER_ADDRESS_NBYTES]; /* "" in a world of one */
    int master_port;
    char job_key[LKSI_JOB_KEY_NBYTES]; /* the job's secret where LOCKSTEP_JOB_KEY is not set; "": none */
} lksi_environment;

/* Rank and size come together from one source; a world of one where there is none. Errors: LKS_ERR_ARGUMENT, naming the
 * variable and its value; LKS_ERR_STATE where the launcher has asked for ranks that are threads: this is not one. */
lks_status lksi_environment_read(lksi_environment *environment);
/* A whole number from the environment, `missing` where the variable is not set or empty. */
lks_status lksi_environment_number(const char *name, int64_t min, int64_t max, int64_t missing, int64_t *value);

/* The job's secret: LOCKSTEP_JOB_KEY, else environment->job_key; "" where there is none. */
const char *lksi_environment_job_key(const lksi_environment *environment);

#endif
