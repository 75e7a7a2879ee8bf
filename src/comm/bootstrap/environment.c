#include "comm/bootstrap/environment.h"

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/launcher.h"
#include "comm/bootstrap/notice_board.h"
#include "comm/clock.h"
#include "comm/comm.h"
#include "comm/transport/mpi/bootstrap.h"

#include <string.h>
#include <strings.h>

/* A launcher's names for the four numbers. `size` is NULL if no variable gives the size. All names are NULL for Slurm,
 * which needs more variables (slurm.c). */
typedef struct source {
    lksi_launcher launcher;
    bool needs_local; /* it is complete only with the local numbers */
    const char *rank, *size, *local_rank, *local_size;
} source;

static const source sources[] = {
    {LKSI_LAUNCHER_TORCHRUN, false, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {LKSI_LAUNCHER_OPENMPI, true, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {LKSI_LAUNCHER_PMI, true, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {.launcher = LKSI_LAUNCHER_SLURM},
    {LKSI_LAUNCHER_PMI, false, "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"},
    {.launcher = LKSI_LAUNCHER_PMI, .rank = "PMIX_RANK"}, /* a server knows the size; MPI can ask it */
    /* Set by Open MPI's own MPI_Init in a program that is started without mpirun. */
    {LKSI_LAUNCHER_OPENMPI, false, "PMIX_RANK", "OMPI_MCA_orte_ess_num_procs", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
};
enum { N_SOURCES = sizeof sources / sizeof sources[0] };

lks_status lksi_variable_number(const char *name, int64_t min, int64_t max, int64_t *value) {
    const char *text = lksi_variable(name);
    if (text == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s is not set in the environment", name);
    if (!lksi_parse_i64(text, min, max, value))
        return lksi_error(LKS_ERR_ARGUMENT, "%s is '%s', which is not a number from %lld to %lld", name, text,
                          (long long)min, (long long)max);
    return LKS_OK;
}

/* As lksi_variable_number, but returns `missing` if the variable is not set or empty. */
static lks_status number_or(const char *name, int64_t min, int64_t max, int64_t missing, int64_t *value) {
    if (lksi_variable(name) != NULL) return lksi_variable_number(name, min, max, value);
    *value = missing;
    return LKS_OK;
}

lks_status lksi_environment_timeout(int64_t *timeout_ms) {
    return number_or("LOCKSTEP_TIMEOUT_MS", 1, LKSI_MOST_TIMEOUT_MS, LKSI_DEFAULT_TIMEOUT_MS, timeout_ms);
}

/* --- choosing the source --- */

static bool is_set(const char *name) { return name != NULL && lksi_variable(name) != NULL; }

static bool is_whole(const source *s) {
    if (s->launcher == LKSI_LAUNCHER_SLURM) return lksi_slurm_is_step() && lksi_slurm_missing() == NULL;
    return is_set(s->rank) && is_set(s->size) && (!s->needs_local || (is_set(s->local_rank) && is_set(s->local_size)));
}

/* A partly set source is an error. If it were a world of one, n processes would train n independent models. The local
 * numbers alone do not count as a source. */
static lks_status refuse_half(const source *s) {
    if (s->launcher == LKSI_LAUNCHER_SLURM) {
        if (!lksi_slurm_is_step()) return LKS_OK;
        return lksi_error(LKS_ERR_ARGUMENT, "%s is not set in the environment, while SLURM_STEP_ID is '%s'",
                          lksi_slurm_missing(), lksi_variable("SLURM_STEP_ID"));
    }
    const char *there = is_set(s->rank) ? s->rank : s->size;
    if (!is_set(there)) return LKS_OK;
    if (s->size == NULL)
        return lksi_error(LKS_ERR_ARGUMENT,
                          "%s is '%s', but no variable says how many ranks there are (WORLD_SIZE with RANK would)",
                          s->rank, lksi_variable(s->rank));
    const char *const names[] = {s->rank, s->size, s->local_rank, s->local_size};
    int missing = 0;
    while (is_set(names[missing])) missing++;
    return lksi_error(LKS_ERR_ARGUMENT, "%s is not set in the environment, while %s is '%s'", names[missing], there,
                      lksi_variable(there));
}

/* Chooses the first complete source. NULL: a world of one. */
static lks_status choose(const source **chosen) {
    *chosen = NULL;
    for (int i = 0; i < N_SOURCES; i++)
        if (is_whole(&sources[i])) {
            *chosen = &sources[i];
            return LKS_OK;
        }
    for (int i = 0; i < N_SOURCES; i++) LKS_TRY(refuse_half(&sources[i]));
    return LKS_OK;
}

/* Incomplete sources count, too: whoever started this process may have started others. */
const char *lksi_environment_rank_variable(void) {
    if (is_set("LOCKSTEP_THREADS")) return "LOCKSTEP_THREADS";
    for (const source *s = sources; s < sources + N_SOURCES; s++) {
        const bool is_step = s->launcher == LKSI_LAUNCHER_SLURM && lksi_slurm_is_step();
        const char *rank = is_step ? "SLURM_PROCID" : s->rank, *size = is_step ? lksi_slurm_size_name() : s->size;
        if (is_set(rank)) return is_set(size) && strcmp(lksi_variable(size), "1") == 0 ? NULL : rank;
    }
    return NULL;
}

/* --- reading the chosen source --- */

static bool can_ask_mpi(const lksi_environment *environment) {
    bool is_mpi = environment->launcher == LKSI_LAUNCHER_OPENMPI || environment->launcher == LKSI_LAUNCHER_PMI;
    return is_mpi && lksi_variable("MASTER_ADDR") == NULL;
}

static lks_status read_source(const source *s, lksi_environment *environment) {
    int64_t rank, size, local_rank, local_size;
    environment->launcher = s->launcher;
    if (s->launcher == LKSI_LAUNCHER_SLURM) return lksi_slurm_read(environment);
    LKS_TRY(lksi_variable_number(s->size, 1, LKSI_MAX_RANKS, &size));
    LKS_TRY(lksi_variable_number(s->rank, 0, size - 1, &rank));
    environment->rank = (int)rank, environment->size = (int)size;
    environment->local_rank = environment->local_size = 0;
    if (!is_set(s->local_size) && size > 1 && can_ask_mpi(environment)) return LKS_OK;
    LKS_TRY(number_or(s->local_size, 1, size, size == 1, &local_size));
    if (local_size == 0 && !is_set(s->local_rank)) return LKS_OK;
    LKS_TRY(number_or(s->local_rank, 0, (local_size > 0 ? local_size : size) - 1, rank < local_size ? rank : -1,
                      &local_rank));
    if (local_rank < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s is not set in the environment, while %s is %lld and %s is %lld",
                          s->local_rank, s->rank, (long long)rank, s->local_size, (long long)local_size);
    environment->local_rank = (int)local_rank, environment->local_size = (int)local_size;
    return LKS_OK;
}

/* RANK and WORLD_SIZE take precedence over other sources. If they are left over in a shell, each of mpirun's processes
 * is a world of one and trains its own model. That may be intended, if each process starts a launcher of its own, so it
 * is not an error. */
static void warn_of_other_size(void) {
    int64_t size;
    for (const source *s = sources; s < sources + N_SOURCES; s++) {
        if (!is_set(s->size) || !lksi_parse_i64(lksi_variable(s->size), 2, INT32_MAX, &size)) continue;
        lksi_log(LKS_LOG_WARNING,
                 "a world of one rank, because WORLD_SIZE is 1, while %s is %lld: without RANK and WORLD_SIZE the %lld "
                 "processes would train together",
                 s->size, (long long)size, (long long)size);
        return;
    }
}

static lks_status read_address(lksi_environment *environment) {
    const char *address = lksi_variable("MASTER_ADDR");
    if (address == NULL && environment->launcher == LKSI_LAUNCHER_SLURM)
        return lksi_slurm_master_address(environment, environment->master_address);
    if (address == NULL) return lksi_error(LKS_ERR_ARGUMENT, "MASTER_ADDR is not set in the environment");
    if (strlen(address) >= sizeof environment->master_address)
        return lksi_error(LKS_ERR_ARGUMENT, "MASTER_ADDR has %zu characters; up to %zu are possible", strlen(address),
                          sizeof environment->master_address - 1);
    snprintf(environment->master_address, sizeof environment->master_address, "%s", address);
    return LKS_OK;
}

/* torchrun's agent may listen at MASTER_PORT itself, for PyTorch's scripts. It then says so with Python's True. */
static bool torchrun_has_port(void) {
    const char *text = lksi_variable("TORCHELASTIC_USE_AGENT_STORE");
    return text != NULL && strcmp(text, "True") == 0;
}

static lks_status read_port(lksi_environment *environment) {
    int64_t port;
    if (lksi_variable("MASTER_PORT") == NULL && environment->launcher == LKSI_LAUNCHER_SLURM)
        return lksi_slurm_master_port(&environment->master_port);
    LKS_TRY(lksi_variable_number("MASTER_PORT", 1, 65535, &port));
    environment->master_port = (int)port;
    if (!torchrun_has_port()) return LKS_OK;
    environment->is_beside_torchrun = true;
    environment->master_port += port < 65535 ? 1 : -1;
    return LKS_OK;
}

const char *lksi_environment_port_name(const lksi_environment *environment) {
    return environment->is_beside_torchrun ? "the port next to torchrun's MASTER_PORT:" : "MASTER_PORT";
}

/* Whether a loopback address was meant. Many systems map their own name to 127.0.1.1, too, which is not. Letters of a
 * host's name may be in either case. */
static bool names_loopback(const char *name) {
    return lksi_begins_with(name, "127.") || strcasecmp(name, "localhost") == 0 || strstr(name, "::1") != NULL;
}

/* Without local numbers, ranks that meet at a loopback address are on one host. Other ranks may be on several. If a
 * name was looked up, the assumption may be wrong. Other hosts cannot reach an unspecified address either, but the
 * ranks that meet there need not be on one host if LOCKSTEP_ADVERTISE names another. */
static void look_up_master(int64_t timeout_ms, lksi_environment *environment) {
    lksi_address master;
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    const char *name = environment->master_address;
    const int64_t deadline_ns = lksi_running_ns() + timeout_ms * LKSI_NS_PER_MS;
    lks_status status =
        lksi_address_await(name, environment->master_port, deadline_ns, lksi_notice_board_has_news, NULL, &master);
    if (status != LKS_OK) return; /* lks_init reports the error */
    const bool is_unspecified = lksi_address_is_unspecified(&master) && lksi_variable("LOCKSTEP_ADVERTISE") == NULL;
    if (!lksi_address_is_loopback(&master) && !is_unspecified) return;
    lksi_address_host_text(&master, text);
    if (!names_loopback(name)) snprintf(environment->loopback, sizeof environment->loopback, "%.47s", text);
    if (environment->local_size > 0 || is_unspecified) return;
    environment->local_size = environment->size;
    environment->local_rank = environment->rank;
}

/* An MPI launcher does not set an address, but MPI can distribute what rank 0 chooses. */
static lks_status read_master(int64_t timeout_ms, lksi_environment *environment) {
    if (timeout_ms == 0) LKS_TRY(lksi_environment_timeout(&timeout_ms));
    if (can_ask_mpi(environment)) return lksi_mpi_bootstrap(timeout_ms, environment);
    LKS_TRY(read_address(environment));
    LKS_TRY(read_port(environment));
    const bool is_spread = environment->local_size < environment->size;
    if (environment->local_size == 0 || (environment->rank == 0 && is_spread)) look_up_master(timeout_ms, environment);
    return LKS_OK;
}

void lksi_environment_describe_loopback(const lksi_environment *environment, char text[LKSI_LOOPBACK_TEXT_NBYTES]) {
    text[0] = '\0';
    if (environment->loopback[0] == '\0') return;
    snprintf(text, LKSI_LOOPBACK_TEXT_NBYTES,
             "; MASTER_ADDR %.64s is %s on this host, which other hosts cannot reach: if ranks are on several hosts, "
             "it must be an address of rank 0's host that all of them reach",
             environment->master_address, environment->loopback);
}

const char *lksi_environment_job_key(const lksi_environment *environment) {
    const char *key = lksi_variable("LOCKSTEP_JOB_KEY");
    return key != NULL && environment->job_key[0] == '\0' ? key : environment->job_key;
}

lks_status lksi_environment_read(int64_t timeout_ms, lksi_environment *environment) {
    /* Otherwise each process would be a world of one, unaware of the others. */
    const char *threads = lksi_variable("LOCKSTEP_THREADS");
    if (threads != NULL)
        return lksi_error(LKS_ERR_STATE,
                          "lks_init: this job's %s ranks are threads (LOCKSTEP_THREADS), and this thread is none of "
                          "them: call lks_main with the function that each rank runs, and lks_init from there",
                          threads);
    lksi_environment found = {.size = 1, .local_size = 1};
    const source *chosen;
    int64_t generation; /* a number, because programs choose by it the checkpoint to resume from */
    LKS_TRY(number_or("LOCKSTEP_GENERATION", 0, INT64_MAX, 0, &generation));
    LKS_TRY(choose(&chosen));
    if (chosen != NULL) LKS_TRY(read_source(chosen, &found));
    if (found.size > 1) LKS_TRY(read_master(timeout_ms, &found));
    if (found.size == 1 && found.launcher == LKSI_LAUNCHER_TORCHRUN) warn_of_other_size();
    *environment = found;
    return LKS_OK;
}
