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
    char transport[7];                 /* the name of the one that lks_init was asked for; its own to fill in */
    char job_key[LKSI_JOB_KEY_NBYTES]; /* the job's secret, from MPI: an exported variable may reach some hosts only */
} lksi_environment;

/* Rank and size come together from one source, the first that is whole of
 *
 *     RANK WORLD_SIZE (LOCAL_RANK LOCAL_WORLD_SIZE)                                   lockstep run, torchrun
 *     OMPI_COMM_WORLD_ RANK SIZE LOCAL_RANK LOCAL_SIZE                                Open MPI's mpirun
 *     PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS                               MPICH's mpirun, Intel MPI's
 *     SLURM_ PROCID STEP_NUM_TASKS LOCALID STEP_TASKS_PER_NODE, with SLURM_STEP_ID    srun
 *     PMI_RANK PMI_SIZE (PMI_LOCAL_RANK PMI_LOCAL_SIZE)                               other launchers of MPI programs
 *     PMIX_RANK OMPI_MCA_orte_ess_num_procs                                           Open MPI's, without mpirun
 *
 * so that a launcher inside an allocation goes before the allocation, and srun --mpi=pmi2 or pmix counts as srun: its
 * own variables say more. A WORLD_SIZE of 1 where the size of another source is larger is warned of. A batch script, or
 * an allocation's shell, is no step: a program run there without srun is a world of one. Where the local numbers in
 * parentheses are missing, all ranks are on one host; under an MPI launcher without MASTER_ADDR, MPI is asked. No
 * source is whole: a world of one, or an error where one is there in part.
 *
 * MASTER_ADDR and MASTER_PORT count separately. Without them an MPI launcher's ranks ask MPI; those of a Slurm step
 * meet on the first host of SLURM_STEP_NODELIST (127.0.0.1 where it is the only one), at port 20000 + (101 SLURM_JOB_ID
 * + SLURM_STEP_ID) mod 10000.
 *
 * `timeout_ms` is how long MPI is waited for where it is asked; 0: LOCKSTEP_TIMEOUT_MS.
 *
 * Errors: LKS_ERR_ARGUMENT, naming the variable and its value; LKS_ERR_STATE where the launcher has asked for ranks
 * that are threads: this is not one. */
lks_status lksi_environment_read(int64_t timeout_ms, lksi_environment *environment);
/* The most is 35 years: deadlines are nanoseconds in 64 bits. */
#define LKSI_MOST_TIMEOUT_MS (INT64_C(1) << 40)
enum { LKSI_DEFAULT_TIMEOUT_MS = 300000 };
/* LOCKSTEP_TIMEOUT_MS. */
lks_status lksi_environment_timeout(int64_t *timeout_ms);

/* The job's secret: environment->job_key, else LOCKSTEP_JOB_KEY; "" where there is none. */
const char *lksi_environment_job_key(const lksi_environment *environment);

#endif
