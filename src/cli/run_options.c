/* The options of `lockstep run`. */
#include "cli/cli.h"
#include "cli/run.h"
#include "comm/comm.h"
#include "data/grains.h"
#include "device/cuda_module.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static int add_variable(void *opaque, const char *value) {
    lksi_run_request *request = opaque;
    if (*value == '\0' || strchr(value, '=') != NULL)
        return lksi_refuse("run", "-x '%s' is not the name of a variable", value);
    if (getenv(value) == NULL) lksi_log(LKS_LOG_WARNING, "run: -x %s: it is not set here", value);
    request->forwarded[request->run.n_forwarded++] = value;
    return 0;
}

/* Threads that the driver starts inherit the signal mask. A signal to this process must not be delivered to them. */
static lks_status count_gpus(int *n_gpus) {
    const lksi_cuda_module *cuda;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    lks_status status = lksi_cuda_load(&cuda);
    if (status == LKS_OK) status = cuda->count(n_gpus);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

/* torchrun's words: "gpu", "cpu", and "auto", which is "gpu" on a host with GPUs and otherwise "cpu". */
static int set_ranks_of_host(void *opaque, const char *value) {
    lksi_run_request *request = opaque;
    const bool is_gpu = strcmp(value, "gpu") == 0, is_auto = strcmp(value, "auto") == 0;
    int64_t parsed;
    int n = 0;
    if (lksi_parse_i64(value, 1, LKSI_MAX_RANKS, &parsed)) {
        request->run.job.n_ranks = (int)parsed;
        request->counted = NULL;
        return 0;
    }
    if (!is_gpu && !is_auto && strcmp(value, "cpu") != 0)
        return lksi_refuse("run", "--nproc-per-node '%s' is not a number from 1 to %d, auto, cpu or gpu", value,
                           LKSI_MAX_RANKS);
    lks_status status = is_gpu || is_auto ? count_gpus(&n) : LKS_OK;
    if (is_gpu && status != LKS_OK) return lksi_refuse("run", "--nproc-per-node gpu: %s", lks_error_text());
    if (status != LKS_OK || n == 0) n = lksi_cpu_count();
    request->run.job.n_ranks = n < LKSI_MAX_RANKS ? n : LKSI_MAX_RANKS;
    request->counted = value;
    return 0;
}

/* torchrun's --nnodes may be a range. */
static int set_n_nodes(void *opaque, const char *value) {
    lksi_run_request *request = opaque;
    int64_t parsed;
    if (!lksi_parse_i64(value, 1, LKSI_MAX_RANKS, &parsed))
        return lksi_refuse("run", "--nnodes '%s' is not a number from 1 to %d%s", value, LKSI_MAX_RANKS,
                           strchr(value, ':') != NULL ? "; for torchrun's MIN:MAX give MAX, and --min-ranks" : "");
    request->run.n_nodes = (int)parsed;
    return 0;
}

static int set_grains(void *opaque, const char *value) {
    lksi_run_request *request = opaque;
    int64_t parsed;
    if (!lksi_parse_i64(value, 1, LKSI_MAX_GRAINS, &parsed) || lksi_grains_check(parsed, 1) != LKS_OK)
        return lksi_refuse("run", "--grains cannot be '%s'; possible: powers of two, 1 to %d", value, LKSI_MAX_GRAINS);
    request->run.job.grains = (int)parsed;
    return 0;
}

#define AT(member) offsetof(lksi_run_request, member)

#define RANKS(as)                                                                                                      \
    { .name = (as), .kind = LKSI_OPTION_NUMBER, .offset = AT(run.job.n_ranks), .min = 1, .max = LKSI_MAX_RANKS }
#define HOSTS(as)                                                                                                      \
    { .name = (as), .kind = LKSI_OPTION_TEXT, .offset = AT(run.hosts_file), .expected = "a file" }

#define FOREIGN(as, advice)                                                                                            \
    { .name = (as), .kind = LKSI_OPTION_FOREIGN, .expected = (advice) }

static const lksi_option options[] = {
    RANKS("-n"),
    RANKS("-np"), /* names that mpirun and torchrun use */
    RANKS("--np"),
    {.name = "--nproc-per-node", .kind = LKSI_OPTION_OTHER, .set = set_ranks_of_host},
    HOSTS("--hosts"),
    HOSTS("--hostfile"),
    HOSTS("--machinefile"),
    {.name = "--log-dir", .kind = LKSI_OPTION_TEXT, .offset = AT(run.job.log_dir), .expected = "a directory"},
    {.name = "--timeout", .kind = LKSI_OPTION_SECONDS, .offset = AT(run.job.timeout_ms)},
    {.name = "--grace", .kind = LKSI_OPTION_SECONDS, .offset = AT(run.job.grace_ms)},
    {.name = "--threads", .kind = LKSI_OPTION_FLAG, .offset = AT(run.job.as_threads)},
    {.name = "--prefix", .kind = LKSI_OPTION_FLAG, .offset = AT(run.job.prefix)},
    {.name = "--bind", .kind = LKSI_OPTION_FLAG, .offset = AT(run.job.bind)},
    {.name = "--max-restarts", .kind = LKSI_OPTION_NUMBER, .offset = AT(run.max_restarts), .max = 1000000},
    {.name = "--min-ranks", .kind = LKSI_OPTION_NUMBER, .offset = AT(run.min_ranks), .min = 1, .max = LKSI_MAX_RANKS},
    {.name = "--grains", .kind = LKSI_OPTION_OTHER, .set = set_grains},
    {.name = "--standalone", .kind = LKSI_OPTION_FLAG, .offset = AT(is_standalone)},
    {.name = "--nnodes", .kind = LKSI_OPTION_OTHER, .set = set_n_nodes},
    {.name = "--node-rank", .kind = LKSI_OPTION_NUMBER, .offset = AT(run.node), .max = LKSI_MAX_RANKS - 1},
    {.name = "--master-addr", .kind = LKSI_OPTION_TEXT, .offset = AT(run.address), .expected = "an address or name"},
    {.name = "--master-port", .kind = LKSI_OPTION_NUMBER, .offset = AT(run.port), .min = 1, .max = 65535},
    {.name = "--join-timeout", .kind = LKSI_OPTION_SECONDS, .offset = AT(run.join_timeout_ms)},
    {.name = "--heartbeat-timeout", .kind = LKSI_OPTION_SECONDS, .min = 1, .offset = AT(run.heartbeat_timeout_ms)},
    {.name = "--ssh", .kind = LKSI_OPTION_TEXT, .offset = AT(run.ssh), .expected = "a command"},
    {.name = "-x", .kind = LKSI_OPTION_OTHER, .set = add_variable},
    {.name = "--agent", .kind = LKSI_OPTION_FLAG, .offset = AT(is_agent)},
    FOREIGN("--rdzv-backend", "leave it out; several hosts meet at --master-addr and --master-port"),
    FOREIGN("--rdzv-endpoint", "use --master-addr and --master-port, and on one host --standalone or nothing"),
    FOREIGN("--rdzv-id", "leave it out; several hosts need a secret, LOCKSTEP_JOB_KEY"),
    FOREIGN("--rdzv-conf", "use --join-timeout and --heartbeat-timeout"),
    FOREIGN("--monitor-interval", "leave it out; the end of a rank is known at once"),
    FOREIGN("--redirects", "use --log-dir DIR, with --prefix to the terminal too"),
    FOREIGN("--tee", "use --log-dir DIR with --prefix"),
    FOREIGN("--role", "leave it out"),
    FOREIGN("--start-method", "leave it out"),
    FOREIGN("--no-python", "leave it out; PROGRAM is any executable"),
    FOREIGN("--module", "write python3 -m MODULE as PROGRAM"),
    FOREIGN("-m", "write python3 -m MODULE as PROGRAM"),
    {.name = NULL}};

int lksi_run_options_parse(int argc, char **argv, lksi_run_request *request, int *n_taken) {
    int i = 1;
    request->run.forwarded = request->forwarded;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        int refused = lksi_option_take("run", options, argv, &i, request);
        if (refused != 0) return refused;
    }
    *n_taken = i;
    return 0;
}
