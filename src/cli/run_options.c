/* The options of `lockstep run`: one table, in which each says where its value goes. */
#include "cli/cli.h"
#include "cli/run.h"
#include "comm/comm.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

typedef enum kind { FLAG, NUMBER, SECONDS, TEXT, VARIABLE } kind;

typedef struct option {
    const char *name;
    kind kind;
    size_t offset;        /* of its value in lksi_run_request */
    int min, max;         /* of a number */
    const char *expected; /* of a text */
} option;

#define AT(member) offsetof(lksi_run_request, member)

static const option options[] = {
    {"-n", NUMBER, AT(run.job.n_ranks), 1, LKSI_MAX_RANKS, NULL},
    {"--log-dir", TEXT, AT(run.job.log_dir), 0, 0, "a directory"},
    {"--timeout", SECONDS, AT(run.job.timeout_ms), 0, 0, NULL},
    {"--grace", SECONDS, AT(run.job.grace_ms), 0, 0, NULL},
    {"--threads", FLAG, AT(run.job.as_threads), 0, 0, NULL},
    {"--prefix", FLAG, AT(run.job.prefix), 0, 0, NULL},
    {"--bind", FLAG, AT(run.job.bind), 0, 0, NULL},
    {"--max-restarts", NUMBER, AT(run.max_restarts), 0, 1000000, NULL},
    {"--min-ranks", NUMBER, AT(run.min_ranks), 1, LKSI_MAX_RANKS, NULL},
    {"--grains", NUMBER, AT(run.job.grains), 1, LKSI_MAX_RANKS, NULL},
    {"--nnodes", NUMBER, AT(run.n_nodes), 1, LKSI_MAX_RANKS, NULL},
    {"--node-rank", NUMBER, AT(run.node), 0, LKSI_MAX_RANKS - 1, NULL},
    {"--master-addr", TEXT, AT(run.address), 0, 0, "an address or name"},
    {"--master-port", NUMBER, AT(run.port), 1, 65535, NULL},
    {"--join-timeout", SECONDS, AT(run.join_timeout_ms), 0, 0, NULL},
    {"--heartbeat-timeout", SECONDS, AT(run.heartbeat_timeout_ms), 0, 0, NULL},
    {"--hosts", TEXT, AT(run.hosts_file), 0, 0, "a file"},
    {"--ssh", TEXT, AT(run.ssh), 0, 0, "a command"},
    {"-x", VARIABLE, 0, 0, 0, NULL},
    {"--agent", FLAG, AT(is_agent), 0, 0, NULL},
};

static void *place_of(lksi_run_request *request, const option *o) { return (char *)request + o->offset; }

static int set_number(lksi_run_request *request, const option *o, const char *value) {
    int64_t number;
    if (!lksi_parse_i64(value, o->min, o->max, &number))
        return lksi_refuse("run", "%s '%s': a number from %d to %d was expected", o->name, value, o->min, o->max);
    *(int *)place_of(request, o) = (int)number;
    if (strcmp(o->name, "--node-rank") == 0) request->has_node = true;
    return 0;
}

static int set_seconds(lksi_run_request *request, const option *o, const char *value) {
    double seconds;
    if (!lksi_parse_f64(value, 0.001, 1e9, &seconds))
        return lksi_refuse("run", "%s '%s': seconds were expected, at least 0.001", o->name, value);
    *(int64_t *)place_of(request, o) = (int64_t)ceil(seconds * 1000);
    return 0;
}

static int set_text(lksi_run_request *request, const option *o, const char *value) {
    if (*value == '\0') return lksi_refuse("run", "%s '': %s was expected", o->name, o->expected);
    *(const char **)place_of(request, o) = value;
    return 0;
}

static int add_variable(lksi_run_request *request, const option *o, const char *value) {
    if (*value == '\0' || strchr(value, '=') != NULL)
        return lksi_refuse("run", "%s '%s': the name of a variable was expected", o->name, value);
    request->forwarded[request->run.n_forwarded++] = value;
    return 0;
}

static int set(lksi_run_request *request, const option *o, const char *value) {
    switch (o->kind) {
    case NUMBER:
        return set_number(request, o, value);
    case SECONDS:
        return set_seconds(request, o, value);
    case TEXT:
        return set_text(request, o, value);
    case VARIABLE:
        return add_variable(request, o, value);
    case FLAG:
        break;
    }
    *(bool *)place_of(request, o) = true;
    return 0;
}

/* The option that `argument` names; *value is what follows a '=' in it, or the number in -n4, else NULL. */
static const option *find_option(const char *argument, const char **value) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        size_t length = strlen(options[i].name);
        if (strncmp(argument, options[i].name, length) != 0) continue;
        bool is_number = length == 2 && isdigit((unsigned char)argument[length]);
        *value = argument[length] == '=' ? argument + length + 1 : is_number ? argument + length : NULL;
        if (argument[length] == '\0' || *value != NULL) return &options[i];
    }
    return NULL;
}

int lksi_run_options_parse(int argc, char **argv, lksi_run_request *request, int *n_taken) {
    int i = 1;
    request->run.forwarded = request->forwarded;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        const char *value;
        const option *found = find_option(argv[i], &value);
        if (found == NULL) return lksi_refuse("run", "unknown option '%s'; see lockstep help run", argv[i]);
        if (found->kind == FLAG && value != NULL) return lksi_refuse("run", "%s takes no value", found->name);
        if (found->kind != FLAG && value == NULL) {
            if (i + 1 >= argc) return lksi_refuse("run", "%s needs a value", found->name);
            value = argv[++i];
        }
        int refused = set(request, found, value);
        if (refused != 0) return refused;
    }
    *n_taken = i;
    return 0;
}
