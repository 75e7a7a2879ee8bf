/* The options of `lockstep run`. */
#include "cli/cli.h"
#include "cli/run.h"
#include "comm/comm.h"

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

#define AT(member) offsetof(lksi_run_request, member)

#define RANKS(as)                                                                                                      \
    { .name = (as), .kind = LKSI_OPTION_NUMBER, .offset = AT(run.job.n_ranks), .min = 1, .max = LKSI_MAX_RANKS }
#define HOSTS(as)                                                                                                      \
    { .name = (as), .kind = LKSI_OPTION_TEXT, .offset = AT(run.hosts_file), .expected = "a file" }

static const lksi_option options[] = {
    RANKS("-n"),
    RANKS("-np"), /* names that mpirun and torchrun use */
    RANKS("--np"),
    RANKS("--nproc-per-node"),
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
    {.name = "--grains", .kind = LKSI_OPTION_NUMBER, .offset = AT(run.job.grains), .min = 1, .max = LKSI_MAX_RANKS},
    {.name = "--nnodes", .kind = LKSI_OPTION_NUMBER, .offset = AT(run.n_nodes), .min = 1, .max = LKSI_MAX_RANKS},
    {.name = "--node-rank", .kind = LKSI_OPTION_NUMBER, .offset = AT(run.node), .max = LKSI_MAX_RANKS - 1},
    {.name = "--master-addr", .kind = LKSI_OPTION_TEXT, .offset = AT(run.address), .expected = "an address or name"},
    {.name = "--master-port", .kind = LKSI_OPTION_NUMBER, .offset = AT(run.port), .min = 1, .max = 65535},
    {.name = "--join-timeout", .kind = LKSI_OPTION_SECONDS, .offset = AT(run.join_timeout_ms)},
    {.name = "--heartbeat-timeout", .kind = LKSI_OPTION_SECONDS, .offset = AT(run.heartbeat_timeout_ms)},
    {.name = "--ssh", .kind = LKSI_OPTION_TEXT, .offset = AT(run.ssh), .expected = "a command"},
    {.name = "-x", .kind = LKSI_OPTION_OTHER, .set = add_variable},
    {.name = "--agent", .kind = LKSI_OPTION_FLAG, .offset = AT(is_agent)},
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
