#include "comm/bootstrap/environment.h"

#include "comm/comm.h"
#include "comm/transport/mpi/bootstrap.h"

#include <stdlib.h>
#include <string.h>

/* A launcher's names for the four numbers. The first source that is set decides. */
typedef struct source {
    lksi_launcher launcher;
    const char *rank, *size, *local_rank, *local_size;
} source;

static const source sources[] = {
    {LKSI_LAUNCHER_TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {LKSI_LAUNCHER_OPENMPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {LKSI_LAUNCHER_PMI, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

static const char *get(const char *name) {
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static lks_status parse(const char *name, int64_t min, int64_t max, int64_t *value) {
    const char *text = get(name);
    if (text == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s is not set in the environment", name);
    if (!lksi_parse_i64(text, min, max, value))
        return lksi_error(LKS_ERR_ARGUMENT, "%s is '%s', which is no number from %lld to %lld", name, text,
                          (long long)min, (long long)max);
    return LKS_OK;
}

lks_status lksi_environment_number(const char *name, int64_t min, int64_t max, int64_t missing, int64_t *value) {
    if (get(name) != NULL) return parse(name, min, max, value);
    *value = missing;
    return LKS_OK;
}

/* Rank or size alone is a source that is half there: an error, because taking it for a world of one would train n
 * models that know nothing of each other. The local numbers alone say nothing. */
static bool is_present(const source *s) { return get(s->rank) != NULL || get(s->size) != NULL; }

static lks_status read_source(const source *s, lksi_environment *environment) {
    int64_t rank, size, local_rank, local_size;
    LKS_TRY(parse(s->size, 1, LKSI_MAX_RANKS, &size));
    LKS_TRY(parse(s->rank, 0, size - 1, &rank));
    /* Without local numbers all ranks are on one host; where they are not, they will not find each other in time. */
    LKS_TRY(lksi_environment_number(s->local_size, 1, size, size, &local_size));
    LKS_TRY(lksi_environment_number(s->local_rank, 0, local_size - 1, rank < local_size ? rank : -1, &local_rank));
    if (local_rank < 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s is not set in the environment, while %s is %lld and %s is %lld",
                          s->local_rank, s->rank, (long long)rank, s->local_size, (long long)local_size);
    environment->launcher = s->launcher;
    environment->rank = (int)rank, environment->size = (int)size;
    environment->local_rank = (int)local_rank, environment->local_size = (int)local_size;
    return LKS_OK;
}

/* Where the ranks meet. An MPI launcher does not say, but MPI can tell all ranks what rank 0 says. */
static lks_status read_master(lksi_environment *environment) {
    const char *address = get("MASTER_ADDR");
    int64_t port;
    bool is_mpi = environment->launcher == LKSI_LAUNCHER_OPENMPI || environment->launcher == LKSI_LAUNCHER_PMI;
    if (address == NULL && is_mpi) return lksi_mpi_bootstrap(environment);
    if (address == NULL) return lksi_error(LKS_ERR_ARGUMENT, "MASTER_ADDR is not set in the environment");
    if (strlen(address) >= sizeof environment->master_address)
        return lksi_error(LKS_ERR_ARGUMENT, "MASTER_ADDR has %zu characters; up to %zu are possible", strlen(address),
                          sizeof environment->master_address - 1);
    LKS_TRY(parse("MASTER_PORT", 1, 65535, &port));
    snprintf(environment->master_address, sizeof environment->master_address, "%s", address);
    environment->master_port = (int)port;
    return LKS_OK;
}

const char *lksi_environment_job_key(const lksi_environment *environment) {
    const char *key = get("LOCKSTEP_JOB_KEY");
    return key != NULL ? key : environment->job_key;
}

lks_status lksi_environment_read(lksi_environment *environment) {
    /* Each would be a world of one, and none would know of the others. */
    const char *threads = get("LOCKSTEP_THREADS");
    if (threads != NULL)
        return lksi_error(LKS_ERR_STATE,
                          "lks_init: this job's %s ranks are threads (LOCKSTEP_THREADS), and this thread is none of "
                          "them: call lks_main with the function that each rank runs, and lks_init from there",
                          threads);
    lksi_environment found = {.size = 1, .local_size = 1};
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        if (!is_present(&sources[i])) continue;
        LKS_TRY(read_source(&sources[i], &found));
        break;
    }
    if (found.size > 1) LKS_TRY(read_master(&found));
    *environment = found;
    return LKS_OK;
}
