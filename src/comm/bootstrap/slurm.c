/* Rank and size of a task of a Slurm step, from the variables that srun sets.
 *
 *     SLURM_PROCID                 rank
 *     SLURM_STEP_NUM_TASKS         size; otherwise SLURM_NTASKS, which may be that of the whole job
 *     SLURM_LOCALID                rank on the node
 *     SLURM_GTIDS                  "0,3,4": the ranks on the node
 *     SLURM_STEP_NODELIST          "n[1-3,7]": rank 0 is on the first node
 *     SLURMD_NODENAME              the node
 *
 * Slurm sorts the list of nodes by name. Ranks follow it unless the distribution is arbitrary or the step is
 * heterogeneous. In a heterogeneous step, SLURM_NODEID is no index into lists of the step, so it is not used. */
#include "comm/bootstrap/hostlist.h"
#include "comm/bootstrap/launcher.h"
#include "comm/comm.h"

#include <string.h>

/* Slurm numbers special steps from here on: a batch script, the shell of an interactive allocation, and others. Slurm
 * 26 writes such a number with its sign, as -5. A program that runs there without srun runs once, even if the job has
 * many tasks. */
#define FIRST_SPECIAL_STEP INT64_C(0xfffffff0)

/* Below Linux's ephemeral ports (from 32768), so that no outgoing connection uses the port by chance. Steps of one job
 * and consecutive jobs get different ports. */
enum { FIRST_PORT = 20000, N_PORTS = 10000, PORTS_PER_JOB = 101 };

bool lksi_slurm_is_step(void) {
    const char *text = lksi_variable("SLURM_STEP_ID");
    int64_t step;
    if (text == NULL) return false;
    return !lksi_parse_i64(text, INT64_MIN, INT64_MAX, &step) || (step >= 0 && step < FIRST_SPECIAL_STEP);
}

const char *lksi_slurm_size_name(void) {
    return lksi_variable("SLURM_STEP_NUM_TASKS") != NULL ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

const char *lksi_slurm_missing(void) {
    const char *const needed[] = {"SLURM_PROCID", lksi_slurm_size_name(), "SLURM_LOCALID", "SLURM_GTIDS"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (lksi_variable(needed[i]) == NULL) return needed[i];
    return NULL;
}

static lks_status read_tasks(int n_ranks, int *n_tasks, bool *has_rank_0) {
    const char *text = lksi_variable("SLURM_GTIDS");
    if (lksi_tasks_read(text, n_ranks, n_tasks, has_rank_0)) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "SLURM_GTIDS is '%s', which is not a list of tasks from 0 to %d", text,
                      n_ranks - 1);
}

lks_status lksi_slurm_read(lksi_environment *environment) {
    int64_t n_ranks, rank, local_rank;
    int local_size;
    bool has_rank_0;
    LKS_TRY(lksi_variable_number(lksi_slurm_size_name(), 1, LKSI_MAX_RANKS, &n_ranks));
    LKS_TRY(lksi_variable_number("SLURM_PROCID", 0, n_ranks - 1, &rank));
    LKS_TRY(read_tasks((int)n_ranks, &local_size, &has_rank_0));
    LKS_TRY(lksi_variable_number("SLURM_LOCALID", 0, local_size - 1, &local_rank));
    environment->rank = (int)rank, environment->size = (int)n_ranks;
    environment->local_rank = (int)local_rank, environment->local_size = local_size;
    return LKS_OK;
}

/* Rank 0's node and the first of the list can tell whether they are the same one. No variable tells the other nodes. */
static lks_status check_first_node(const lksi_environment *environment, const char *first) {
    const char *node = lksi_variable("SLURMD_NODENAME");
    int n_tasks;
    bool has_rank_0;
    LKS_TRY(read_tasks(environment->size, &n_tasks, &has_rank_0));
    if (node == NULL || (strcmp(node, first) == 0) == has_rank_0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "rank 0 is not on %s, the first host of SLURM_STEP_NODELIST, as may be with an arbitrary "
                      "distribution or in a heterogeneous step; set MASTER_ADDR to %s",
                      first, has_rank_0 ? node : "rank 0's host");
}

lks_status lksi_slurm_master_address(const lksi_environment *environment, char address[LKSI_MASTER_ADDRESS_NBYTES]) {
    const char *list = lksi_variable("SLURM_STEP_NODELIST");
    if (environment->local_size == environment->size) {
        snprintf(address, LKSI_MASTER_ADDRESS_NBYTES, "127.0.0.1");
        return LKS_OK;
    }
    if (list == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "SLURM_STEP_NODELIST is not set in the environment, nor is MASTER_ADDR");
    if (!lksi_hostlist_first(list, address, LKSI_MASTER_ADDRESS_NBYTES))
        return lksi_error(LKS_ERR_ARGUMENT,
                          "SLURM_STEP_NODELIST is '%s', which is not a list of hosts; set MASTER_ADDR instead", list);
    return check_first_node(environment, address);
}

lks_status lksi_slurm_master_port(int *port) {
    int64_t job, step;
    LKS_TRY(lksi_variable_number("SLURM_JOB_ID", 0, UINT32_MAX, &job));
    LKS_TRY(lksi_variable_number("SLURM_STEP_ID", 0, UINT32_MAX, &step));
    *port = FIRST_PORT + (int)((job * PORTS_PER_JOB + step) % N_PORTS);
    return LKS_OK;
}
