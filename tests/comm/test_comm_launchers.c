/* comm/: a rank's identity under each launcher, by the environment variables that it sets, and where the ranks meet. */
#include "test.h"

#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/hostlist.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the environment --- */

/* Sets the variables in a text like "RANK=1 WORLD_SIZE=3", after it has unset all variables that launchers set.
 * Underscores stay. */
static void set_only(const char *assignments) {
    static const char *const prefixes[] = {"RANK=", "WORLD_SIZE=",   "LOCAL_",    "MASTER_", "OMPI_",    "PMI_",
                                           "PMIX_", "TORCHELASTIC_", "MPI_LOCAL", "SLURM",   "LOCKSTEP_"};
    extern char **environ;
    for (char **each = environ; *each != NULL;) {
        bool is_launchers = false;
        for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
            is_launchers |= strncmp(*each, prefixes[i], strlen(prefixes[i])) == 0;
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*each, "="), *each);
        if (is_launchers)
            unsetenv(name);
        else
            each++;
    }
    char copy[2048], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", assignments);
    while ((word = strtok_r(rest, " ", &rest)) != NULL) {
        char *value = strchr(word, '=');
        assert_non_null(value);
        *value = '\0';
        setenv(word, value + 1, 1);
    }
}

#define OPENMPI                                                                                                        \
    "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2 "         \
    "PMIX_RANK=2 PMIX_NAMESPACE=1086521345 "
#define HYDRA "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 "
/* As Slurm 22.05 sets them with `srun -N 3 -n 7` on n[1-3], in the last task of n2. */
#define SLURM_TASK                                                                                                     \
    "SLURM_JOB_ID=12 SLURM_STEP_ID=3 SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=2 "            \
    "SLURM_GTIDS=3,4,5 SLURM_STEP_NODELIST=n[1-3] SLURMD_NODENAME=n2 "
#define ON_ONE_NODE                                                                                                    \
    "SLURM_JOB_ID=12 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1 "            \
    "SLURM_GTIDS=0,1 SLURM_STEP_NODELIST=n3 SLURMD_NODENAME=n3 "
/* `srun -w n2 -n 2 P : -w n1 -n 1 P`, the second task of n2. */
#define HETEROGENEOUS                                                                                                  \
    "SLURM_JOB_ID=12 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=1 "            \
    "SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=1,2 SLURM_GTIDS=0,1 SLURM_STEP_NODELIST=n[1-2] SLURMD_NODENAME=n2 "
#define SCRIPT                                                                                                         \
    "SLURM_JOB_ID=12 SLURM_PROCID=0 SLURM_NTASKS=7 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=3(x2),1 "
#define MASTER "MASTER_ADDR=10.0.0.1 MASTER_PORT=1234 "
#define BESIDE_TORCHRUN "TORCHELASTIC_USE_AGENT_STORE=True"

typedef struct expected {
    const char *variables;
    lksi_launcher launcher;
    int rank, size, local_rank, local_size;
    const char *address; /* NULL: a world of one rank */
    int port;
} expected;

static void ranks_are_who_their_launcher_says(void **state) {
    (void)state;
    static const expected cases[] = {
        {"", LKSI_LAUNCHER_NONE, 0, 1, 0, 1, NULL, 0},
        {"RANK=1 WORLD_SIZE=3 " MASTER, LKSI_LAUNCHER_TORCHRUN, 1, 3, 0, 0, "10.0.0.1", 1234},
        {"RANK=1 WORLD_SIZE=3 " MASTER "MASTER_ADDR=::1", LKSI_LAUNCHER_TORCHRUN, 1, 3, 1, 3, "::1", 1234},
        /* torchrun's agent may have the port itself. */
        {"RANK=1 WORLD_SIZE=3 " MASTER BESIDE_TORCHRUN, LKSI_LAUNCHER_TORCHRUN, 1, 3, 0, 0, "10.0.0.1", 1235},
        {"RANK=1 WORLD_SIZE=3 " MASTER "TORCHELASTIC_USE_AGENT_STORE=False", LKSI_LAUNCHER_TORCHRUN, 1, 3, 0, 0,
         "10.0.0.1", 1234},
        {"RANK=1 WORLD_SIZE=3 MASTER_ADDR=10.0.0.1 MASTER_PORT=65534 " BESIDE_TORCHRUN, LKSI_LAUNCHER_TORCHRUN, 1, 3, 0,
         0, "10.0.0.1", 65535},
        {"RANK=1 WORLD_SIZE=3 MASTER_ADDR=10.0.0.1 MASTER_PORT=65535 " BESIDE_TORCHRUN, LKSI_LAUNCHER_TORCHRUN, 1, 3, 0,
         0, "10.0.0.1", 65534},
        {OPENMPI MASTER, LKSI_LAUNCHER_OPENMPI, 2, 4, 0, 2, "10.0.0.1", 1234},
        {HYDRA MASTER, LKSI_LAUNCHER_PMI, 3, 4, 1, 2, "10.0.0.1", 1234},
        {"PMI_RANK=1 PMI_SIZE=2 " MASTER, LKSI_LAUNCHER_PMI, 1, 2, 0, 0, "10.0.0.1", 1234},
        {"PMI_RANK=1 PMI_SIZE=2 PMI_LOCAL_RANK=0 PMI_LOCAL_SIZE=1 " MASTER, LKSI_LAUNCHER_PMI, 1, 2, 0, 1, "10.0.0.1",
         1234},
        {"PMI_RANK=0 PMI_SIZE=1 ", LKSI_LAUNCHER_PMI, 0, 1, 0, 1, NULL, 0},
        /* As Open MPI 4.1 sets them in MPI_Init of a program that was started without mpirun. */
        {"OMPI_MCA_ess=singleton OMPI_MCA_orte_ess_num_procs=1 PMIX_NAMESPACE=828506113 PMIX_RANK=0",
         LKSI_LAUNCHER_OPENMPI, 0, 1, 0, 1, NULL, 0},
        {SLURM_TASK, LKSI_LAUNCHER_SLURM, 5, 7, 2, 3, "n1", 20000 + 12 * 101 + 3},
        {SLURM_TASK MASTER, LKSI_LAUNCHER_SLURM, 5, 7, 2, 3, "10.0.0.1", 1234},
        {SLURM_TASK "MASTER_PORT=77", LKSI_LAUNCHER_SLURM, 5, 7, 2, 3, "n1", 77},
        {HETEROGENEOUS MASTER, LKSI_LAUNCHER_SLURM, 1, 3, 1, 2, "10.0.0.1", 1234},
        {ON_ONE_NODE, LKSI_LAUNCHER_SLURM, 1, 2, 1, 2, "127.0.0.1", 20000 + 12 * 101 + 3},
        {ON_ONE_NODE "SLURM_JOB_ID=4294967280", LKSI_LAUNCHER_SLURM, 1, 2, 1, 2, "127.0.0.1", 25283},
        /* The job has more tasks than the step. */
        {ON_ONE_NODE "SLURM_NTASKS=7", LKSI_LAUNCHER_SLURM, 1, 2, 1, 2, "127.0.0.1", 20000 + 12 * 101 + 3},
        {ON_ONE_NODE "SLURM_STEP_NUM_TASKS=", LKSI_LAUNCHER_SLURM, 1, 2, 1, 2, "127.0.0.1", 20000 + 12 * 101 + 3},
        /* Without srun. */
        {SCRIPT, LKSI_LAUNCHER_NONE, 0, 1, 0, 1, NULL, 0},
        {SCRIPT "SLURM_STEP_ID=4294967291", LKSI_LAUNCHER_NONE, 0, 1, 0, 1, NULL, 0},
        {SCRIPT "SLURM_STEP_ID=-5", LKSI_LAUNCHER_NONE, 0, 1, 0, 1, NULL, 0}, /* Slurm 26 */
        {SCRIPT "SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1", LKSI_LAUNCHER_NONE, 0, 1, 0, 1, NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lksi_environment found;
        set_only(cases[i].variables);
        assert_ok(lksi_environment_read(0, &found));
        assert_int_equal(found.launcher, cases[i].launcher);
        assert_int_equal(found.rank, cases[i].rank);
        assert_int_equal(found.size, cases[i].size);
        assert_int_equal(found.local_rank, cases[i].local_rank);
        assert_int_equal(found.local_size, cases[i].local_size);
        assert_string_equal(found.master_address, cases[i].address == NULL ? "" : cases[i].address);
        assert_int_equal(found.master_port, cases[i].port);
    }
    set_only("");
}

/* mpirun inside a step, our launcher inside mpirun, srun --mpi=..., a complete source beside an incomplete one. */
static void the_first_whole_source_decides(void **state) {
    (void)state;
    static const struct {
        const char *variables;
        lksi_launcher launcher;
    } cases[] = {
        {"RANK=0 WORLD_SIZE=2 " MASTER OPENMPI SLURM_TASK, LKSI_LAUNCHER_TORCHRUN},
        {OPENMPI MASTER SLURM_TASK, LKSI_LAUNCHER_OPENMPI},
        {HYDRA MASTER SLURM_TASK, LKSI_LAUNCHER_PMI},
        {SLURM_TASK "PMI_RANK=5 PMI_SIZE=7 PMI_JOBID=12.3 PMI_FD=9", LKSI_LAUNCHER_SLURM},
        {SLURM_TASK "PMIX_RANK=5 PMIX_NAMESPACE=slurm.pmix.12.3", LKSI_LAUNCHER_SLURM},
        {SLURM_TASK "WORLD_SIZE=7", LKSI_LAUNCHER_SLURM}, /* scripts for PyTorch export it */
        {SLURM_TASK "OMPI_COMM_WORLD_SIZE=4", LKSI_LAUNCHER_SLURM},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lksi_environment found;
        set_only(cases[i].variables);
        assert_ok(lksi_environment_read(0, &found));
        assert_int_equal(found.launcher, cases[i].launcher);
    }
    set_only("");
}

static void what_is_missing_or_wrong_is_named(void **state) {
    (void)state;
    static const struct {
        const char *variables, *says;
    } cases[] = {
        {"WORLD_SIZE=7", "RANK is not set in the environment, while WORLD_SIZE is '7'"},
        {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE is not set in the environment, while OMPI_COMM_WORLD_RANK is"},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK is not set"},
        {"PMI_RANK=1", "PMI_SIZE is not set in the environment, while PMI_RANK is '1'"},
        {"PMIX_RANK=1", "PMIX_RANK is '1', but no variable says how many ranks there are"},
        {"PMI_RANK=4 PMI_SIZE=4 " MASTER, "PMI_RANK is '4', which is not a number from 0 to 3"},
        {"SLURM_STEP_ID=0", "SLURM_PROCID is not set in the environment, while SLURM_STEP_ID is '0'"},
        {SLURM_TASK "SLURM_GTIDS=", "SLURM_GTIDS is not set"},
        {SLURM_TASK "SLURM_GTIDS=3,,5", "SLURM_GTIDS is '3,,5', which is not a list of tasks from 0 to 6"},
        {SLURM_TASK "SLURM_GTIDS=3,4,7", "SLURM_GTIDS is '3,4,7', which is not a list of tasks from 0 to 6"},
        {SLURM_TASK "SLURM_LOCALID=3", "SLURM_LOCALID is '3', which is not a number from 0 to 2"},
        {HETEROGENEOUS, "rank 0 is not on n1, the first host of SLURM_STEP_NODELIST"},
        {HETEROGENEOUS, "set MASTER_ADDR to n2"},
        {SLURM_TASK "SLURMD_NODENAME=n1", "set MASTER_ADDR to rank 0's host"},
        {SLURM_TASK "SLURM_STEP_NODELIST=", "SLURM_STEP_NODELIST is not set"},
        {SLURM_TASK "SLURM_STEP_NODELIST=n[1-", "SLURM_STEP_NODELIST is 'n[1-', which is not a list of hosts"},
        {SLURM_TASK "SLURM_JOB_ID=", "SLURM_JOB_ID is not set"},
        {SLURM_TASK "SLURM_STEP_ID=x", "SLURM_STEP_ID is 'x'"},
        {SLURM_TASK "MASTER_PORT=0", "MASTER_PORT is '0'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lksi_environment found;
        set_only(cases[i].variables);
        assert_int_equal(lksi_environment_read(0, &found), LKS_ERR_ARGUMENT);
        if (strstr(lks_error_text(), cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", lks_error_text(), cases[i].says);
    }
    set_only("");
}

/* Captures what lksi_environment_read writes to stderr. */
static void read_with_log(const char *variables, char *log, size_t log_nbytes) {
    lksi_environment found;
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(file);
    set_only(variables);
    assert_int_equal(dup2(fileno(file), STDERR_FILENO), STDERR_FILENO);
    lks_status status = lksi_environment_read(0, &found);
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_ok(status);
    assert_int_equal(found.size, 1);
    rewind(file);
    log[fread(log, 1, log_nbytes - 1, file)] = '\0';
    fclose(file);
    set_only("");
}

static void a_world_of_one_among_processes_of_mpi_is_warned_of(void **state) {
    (void)state;
    char log[512];
    read_with_log("RANK=0 WORLD_SIZE=1 " OPENMPI, log, sizeof log);
    assert_non_null(
        strstr(log, "warning: a world of one rank, because WORLD_SIZE is 1, while OMPI_COMM_WORLD_SIZE is 4: "));
    read_with_log("RANK=0 WORLD_SIZE=1 " HYDRA, log, sizeof log);
    assert_non_null(strstr(log, "WORLD_SIZE is 1, while PMI_SIZE is 4: "));
    read_with_log("RANK=0 WORLD_SIZE=1 PMI_RANK=0 PMI_SIZE=1", log, sizeof log);
    assert_string_equal(log, "");
}

/* mpirun passes an exported variable only to the ranks on its own host, but what MPI distributes reaches all ranks. */
static void the_variable_of_one_rank_among_several_is_found(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"RANK=0", "RANK"},
        {"RANK=1 WORLD_SIZE=3 " MASTER OPENMPI, "RANK"},
        {"RANK= LOCKSTEP_THREADS=2", "LOCKSTEP_THREADS"},
        {OPENMPI, "OMPI_COMM_WORLD_RANK"},
        {HYDRA SLURM_TASK, "PMI_RANK"},
        {SLURM_TASK, "SLURM_PROCID"},
        {"PMIX_RANK=0", "PMIX_RANK"},
        {"", NULL},
        {"RANK= LOCKSTEP_THREADS=", NULL},
        {"RANK=0 WORLD_SIZE=1", NULL},
        {"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 PMIX_RANK=0", NULL},
        {SCRIPT, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_only(cases[i][0]);
        const char *found = lksi_environment_rank_variable();
        if (cases[i][1] == NULL)
            assert_null(found);
        else
            assert_string_equal(found, cases[i][1]);
    }
}

static void the_jobs_key_comes_from_mpi_first(void **state) {
    (void)state;
    lksi_environment asked = {.job_key = "from MPI"}, told = {.rank = 0};
    set_only("");
    assert_string_equal(lksi_environment_job_key(&asked), "from MPI");
    assert_string_equal(lksi_environment_job_key(&told), "");
    set_only("LOCKSTEP_JOB_KEY=mine");
    assert_string_equal(lksi_environment_job_key(&asked), "from MPI");
    assert_string_equal(lksi_environment_job_key(&told), "mine");
    set_only("");
}

/* --- Slurm's lists --- */

static void the_first_host_of_a_list_is_found(void **state) {
    (void)state;
    static const struct {
        const char *list, *first;
    } cases[] = {
        {"n1", "n1"},
        {"n1,n2", "n1"},
        {"n[1-3,7]", "n1"},
        {"n[1-3,7],gpu[01-04]-x", "n1"},
        {"gpu[01-04]-x,n7", "gpu01-x"},
        {"rack[08-10]-node[2,4-5].example.org", "rack08-node2.example.org"},
        {"n[007]", "n007"},
        {"a-b_c.d", "a-b_c.d"},
        {"[1-2]n", "1n"},
        {"n[0-9999999999]", "n0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char first[64];
        assert_true(lksi_hostlist_first(cases[i].list, first, sizeof first));
        assert_string_equal(first, cases[i].first);
    }
}

static void malformed_host_lists_are_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "",       ",",     "n1,",   ",n1",    "n[",      "n]",       "n[]",     "n[1",
        "n[1-",   "n[1-]", "n[-1]", "n[3-1]", "n[1,]",   "n[1-2-3]", "n[a]",    "n[1]]",
        "n[[1]]", "n1 n2", "n/1",   "n[1x2]", "n1,n[2-", "n[1-2][",  "n[1- 2]", "n[99999999999]",
    };
    char first[64];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (lksi_hostlist_first(wrong[i], first, sizeof first)) fail_msg("'%s' was accepted", wrong[i]);
    assert_true(lksi_hostlist_first("abcdefg", first, 8)); /* fits with its NUL */
    assert_false(lksi_hostlist_first("abcdefgh", first, 8));
    assert_false(lksi_hostlist_first("abcde[100]", first, 8));
    assert_true(lksi_hostlist_first("a,bcdefghijkl", first, 8)); /* only the first host has to fit */
}

static void tasks_of_a_node_are_read(void **state) {
    (void)state;
    static const struct {
        const char *list;
        int n_ranks, n_tasks;
        bool has_rank_0;
    } cases[] = {{"0", 1, 1, true}, {"0,1", 2, 2, true}, {"3,4,12", 13, 3, false}, {"5,0", 8, 2, true}};
    static const char *const wrong[] = {"",    ",", "1,",   ",1", "1,,2",        "-1",
                                        "1-2", "7", "0 ,1", "x",  "99999999999", "0,1,2,3,4,5,6,0"};
    int n_tasks;
    bool has_rank_0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_true(lksi_tasks_read(cases[i].list, cases[i].n_ranks, &n_tasks, &has_rank_0));
        assert_int_equal(n_tasks, cases[i].n_tasks);
        assert_int_equal(has_rank_0, cases[i].has_rank_0);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (lksi_tasks_read(wrong[i], 7, &n_tasks, &has_rank_0)) fail_msg("'%s' was accepted", wrong[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_who_their_launcher_says),
        cmocka_unit_test(the_first_whole_source_decides),
        cmocka_unit_test(what_is_missing_or_wrong_is_named),
        cmocka_unit_test(a_world_of_one_among_processes_of_mpi_is_warned_of),
        cmocka_unit_test(the_variable_of_one_rank_among_several_is_found),
        cmocka_unit_test(the_jobs_key_comes_from_mpi_first),
        cmocka_unit_test(the_first_host_of_a_list_is_found),
        cmocka_unit_test(malformed_host_lists_are_refused),
        cmocka_unit_test(tasks_of_a_node_are_read),
    };
    return run_group(tests);
}
