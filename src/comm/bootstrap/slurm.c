/* Rank and size of a task of a Slurm step, from the variables that srun sets.
 *
 *     SLURM_PROCID                 rank
 *     SLURM_STEP_NUM_TASKS         size; otherwise SLURM_NTASKS, which may be that of the whole job
 *     SLURM_LOCALID                rank on the node
 *     SLURM_STEP_TASKS_PER_NODE    "2(x3),1": the entry of node number SLURM_NODEID is the local size
 *     SLURM_STEP_NODELIST          "n[1-3,7]": rank 0 is on the first node
 */
#include "comm/bootstrap/hostlist.h"
#include "comm/bootstrap/launcher.h"
#include "comm/comm.h"

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
    const char *const needed[] = {"SLURM_PROCID", lksi_slurm_size_name(), "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (lksi_variable(needed[i]) == NULL) return needed[i];
    return NULL;
}

/* Reads the number of tasks of node `index`, the number of nodes and the number of all tasks. */
static lks_status read_tasks(int index, int *n_tasks, int *n_nodes, int *sum) {
    const char *text = lksi_variable("SLURM_STEP_TASKS_PER_NODE");
    if (lksi_counts_read(text, index, n_tasks, n_nodes, sum)) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "SLURM_STEP_TASKS_PER_NODE is '%s', which does not say how many tasks node %d has", text, index);
}

lks_status lksi_slurm_read(lksi_environment *environment) {
    const char *size = lksi_slurm_size_name();
    int64_t n_ranks, rank, local_rank, node = 0;
    int local_size, n_nodes, sum;
    LKS_TRY(lksi_variable_number(size, 1, LKSI_MAX_RANKS, &n_ranks));
    LKS_TRY(lksi_variable_number("SLURM_PROCID", 0, n_ranks - 1, &rank));
    LKS_TRY(read_tasks(0, &local_size, &n_nodes, &sum));
    if (sum != n_ranks)
        return lksi_error(LKS_ERR_ARGUMENT, "SLURM_STEP_TASKS_PER_NODE is '%s', %d tasks, while %s is %lld",
                          lksi_variable("SLURM_STEP_TASKS_PER_NODE"), sum, size, (long long)n_ranks);
    if (n_nodes > 1) {
        LKS_TRY(lksi_variable_number("SLURM_NODEID", 0, n_nodes - 1, &node));
        LKS_TRY(read_tasks((int)node, &local_size, &n_nodes, &sum));
    }
    LKS_TRY(lksi_variable_number("SLURM_LOCALID", 0, local_size - 1, &local_rank));
    environment->rank = (int)rank, environment->size = (int)n_ranks;
    environment->local_rank = (int)local_rank, environment->local_size = local_size;
    return LKS_OK;
}

lks_status lksi_slurm_master_address(const lksi_environment *environment, char address[LKSI_MASTER_ADDRESS_NBYTES]) {
    const char *list = lksi_variable("SLURM_STEP_NODELIST");
    if (environment->local_size == environment->size) {
        snprintf(address, LKSI_MASTER_ADDRESS_NBYTES, "127.0.0.1");
        return LKS_OK;
    }
    if (list == NULL)
        return lksi_error(LKS_ERR_ARGUMENT, "SLURM_STEP_NODELIST is not set in the environment, nor is MASTER_ADDR");
    if (lksi_hostlist_first(list, address, LKSI_MASTER_ADDRESS_NBYTES)) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT,
                      "SLURM_STEP_NODELIST is '%s', which is not a list of hosts; set MASTER_ADDR instead", list);
}

lks_status lksi_slurm_master_port(int *port) {
    int64_t job, step;
    LKS_TRY(lksi_variable_number("SLURM_JOB_ID", 0, UINT32_MAX, &job));
    LKS_TRY(lksi_variable_number("SLURM_STEP_ID", 0, UINT32_MAX, &step));
    *port = FIRST_PORT + (int)((job * PORTS_PER_JOB + step) % N_PORTS);
    return LKS_OK;
}
