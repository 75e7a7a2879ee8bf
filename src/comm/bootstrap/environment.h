/* The rank and size of a process, from its launcher's environment variables. */
#ifndef LKSI_ENVIRONMENT_H
#define LKSI_ENVIRONMENT_H

#include "base/base.h"

/* The launcher whose variables were used. */
typedef enum lksi_launcher {
    LKSI_LAUNCHER_NONE,
    LKSI_LAUNCHER_TORCHRUN, /* also lockstep run, which sets the same variables */
    LKSI_LAUNCHER_OPENMPI,
    LKSI_LAUNCHER_PMI, /* MPICH and its derivatives */
    LKSI_LAUNCHER_SLURM
} lksi_launcher;

enum { LKSI_MASTER_ADDRESS_NBYTES = 256, LKSI_JOB_KEY_NBYTES = 65, LKSI_LOOPBACK_TEXT_NBYTES = 320 };

typedef struct lksi_environment {
    int rank, size;
    int local_rank, local_size; /* local_size 0: unknown, there may be several hosts */
    lksi_launcher launcher;
    char master_address[LKSI_MASTER_ADDRESS_NBYTES]; /* "" in a world of one rank */
    int master_port;
    bool is_beside_torchrun; /* torchrun's own store has MASTER_PORT, so master_port is the one next to it */
    /* The loopback address that MASTER_ADDR, a name, has on this host. "": it has another one, or it is literally a
     * loopback address, or the launcher says that all ranks are on this host. */
    char loopback[48];
    char transport[7];                 /* name of the transport requested from lks_init, which fills it in */
    char job_key[LKSI_JOB_KEY_NBYTES]; /* the job's secret if MPI distributed it: exported variables may not reach all
                                        * hosts */
} lksi_environment;

/* Rank and size are read from a single source, the first complete one of:
 *
 *     RANK WORLD_SIZE (LOCAL_RANK LOCAL_WORLD_SIZE)                                   lockstep run, torchrun
 *     OMPI_COMM_WORLD_ RANK SIZE LOCAL_RANK LOCAL_SIZE                                Open MPI's mpirun
 *     PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS                               MPICH's mpirun, Intel MPI's
 *     SLURM_ PROCID STEP_NUM_TASKS LOCALID GTIDS, with SLURM_STEP_ID                  srun
 *     PMI_RANK PMI_SIZE (PMI_LOCAL_RANK PMI_LOCAL_SIZE)                               other launchers of MPI programs
 *     PMIX_RANK OMPI_MCA_orte_ess_num_procs                                           Open MPI's, without mpirun
 *
 * In this order a launcher inside an allocation takes precedence over the allocation. srun --mpi=pmi2 or pmix counts as
 * srun, because its own variables say more. If WORLD_SIZE is 1 and the size in another source is larger, a warning is
 * logged. A batch script or the shell of an allocation is not a step, so a program run there without srun is a world of
 * one.
 *
 * If the local numbers in parentheses are missing, all ranks are on one host if MASTER_ADDR is a loopback address.
 * Otherwise lks_init finds out. Under an MPI launcher without MASTER_ADDR, MPI is asked.
 *
 * If no source is complete, the result is a world of one, or an error if a source is partly set.
 *
 * MASTER_ADDR and MASTER_PORT are read independently of the source. If they are missing, ranks of an MPI launcher ask
 * MPI. Ranks of a Slurm step meet on the first host of SLURM_STEP_NODELIST (127.0.0.1 if it is the only host), at port
 * 20000 + (101 SLURM_JOB_ID + SLURM_STEP_ID) mod 10000. If this host shows that rank 0 is not on the first one, it is
 * an error. If torchrun's agent serves MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE), the ranks use the next port.
 *
 * `timeout_ms` is the deadline for asking MPI. 0: LOCKSTEP_TIMEOUT_MS.
 *
 * Errors: LKS_ERR_ARGUMENT: the text names the variable and its value. LKS_ERR_STATE: the launcher asked for ranks that
 * are threads, and the calling thread is not one of them. */
lks_status lksi_environment_read(int64_t timeout_ms, lksi_environment *environment);
/* The variable by which a launcher has numbered this process among several. NULL: there is no launcher, or it has
 * started this process alone. */
const char *lksi_environment_rank_variable(void);
/* The longest timeout, 35 years. Deadlines are 64-bit nanoseconds. */
#define LKSI_MOST_TIMEOUT_MS (INT64_C(1) << 40)
enum { LKSI_DEFAULT_TIMEOUT_MS = 300000 };
/* LOCKSTEP_TIMEOUT_MS, or LKSI_DEFAULT_TIMEOUT_MS if it is not set. */
lks_status lksi_environment_timeout(int64_t *timeout_ms);

/* What error texts call master_port: "MASTER_PORT", or which port it is beside torchrun's. */
const char *lksi_environment_port_name(const lksi_environment *environment);

/* The job's secret: environment->job_key, or LOCKSTEP_JOB_KEY if that is empty. "" if there is none. */
const char *lksi_environment_job_key(const lksi_environment *environment);

/* Writes what is wrong if environment->loopback is set and ranks of other hosts do not arrive. Otherwise "". */
void lksi_environment_describe_loopback(const lksi_environment *environment, char text[LKSI_LOOPBACK_TEXT_NBYTES]);

#endif
