/* lockstep run: ranks on this machine. */
#include "cli/cli.h"
#include "comm/comm.h"
#include "launch/launch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help_text[] =
    "usage: lockstep run -n N [OPTIONS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Runs PROGRAM as N ranks on this machine and ends as the first of them that fails does.\n"
    "\n"
    "  -n N              number of ranks\n"
    "  --threads         ranks are threads of one process; PROGRAM hands its rank function to lks_main\n"
    "  --prefix          each line of output begins with the rank that wrote it: [0] ...\n"
    "  --log-dir DIR     output goes to DIR/rank-N.log, and to the terminal only with --prefix\n"
    "  --timeout SECONDS end all ranks that still run then; the exit status is 124\n"
    "  --grace SECONDS   how long survivors of a failure have to report it before they are ended (5)\n"
    "  --bind            rank i runs on the i-th allowed CPU, modulo their number\n"
    "\n"
    "Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCKSTEP_JOB_KEY in\n"
    "its environment, and OMP_NUM_THREADS=1 unless it is set. Rank 0 reads standard input unless that is a terminal.\n"
    "SIGINT, SIGTERM and SIGHUP are forwarded to the ranks; a second one kills them.\n"
    "Exit status: that of the first rank that failed, 128 + N if it was killed by signal N; 2 for a wrong option, 126 "
    "or\n"
    "127 for a PROGRAM that cannot be started.\n";

static int refuse(const char *format, ...) LKS_PRINTF(1, 2);

static int refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("lockstep run: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return LKSI_EXIT_USAGE;
}

static int set_ranks(lksi_job *job, const char *value) {
    int64_t n_ranks;
    if (!lksi_parse_i64(value, 1, LKSI_MAX_RANKS, &n_ranks))
        return refuse("-n '%s': a number from 1 to %d was expected", value, LKSI_MAX_RANKS);
    job->n_ranks = (int)n_ranks;
    return 0;
}

static int set_log_dir(lksi_job *job, const char *value) {
    if (*value == '\0') return refuse("--log-dir '': a directory was expected");
    job->log_dir = value;
    return 0;
}

static int parse_seconds(const char *name, const char *value, int64_t *duration_ms) {
    double seconds;
    if (!lksi_parse_f64(value, 0.001, 1e9, &seconds))
        return refuse("%s '%s': seconds were expected, at least 0.001", name, value);
    *duration_ms = (int64_t)ceil(seconds * 1000);
    return 0;
}

static int set_timeout(lksi_job *job, const char *value) { return parse_seconds("--timeout", value, &job->timeout_ms); }
static int set_grace(lksi_job *job, const char *value) { return parse_seconds("--grace", value, &job->grace_ms); }

typedef struct option {
    const char *name;
    int (*set)(lksi_job *job, const char *value); /* NULL: a flag */
    size_t flag;                                  /* its place in lksi_job */
} option;

static const option options[] = {
    {.name = "-n", .set = set_ranks},
    {.name = "--log-dir", .set = set_log_dir},
    {.name = "--timeout", .set = set_timeout},
    {.name = "--grace", .set = set_grace},
    {.name = "--threads", .flag = offsetof(lksi_job, as_threads)},
    {.name = "--prefix", .flag = offsetof(lksi_job, prefix)},
    {.name = "--bind", .flag = offsetof(lksi_job, bind)},
};

/* The option that `argument` names; *value is what follows a '=' in it, else NULL. */
static const option *find_option(const char *argument, const char **value) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        size_t length = strlen(options[i].name);
        if (strncmp(argument, options[i].name, length) != 0) continue;
        *value = argument[length] == '=' ? argument + length + 1 : NULL;
        if (argument[length] == '\0' || *value != NULL) return &options[i];
    }
    return NULL;
}

/* Takes the options, which end at the program or at "--"; *n_taken counts the arguments. */
static int parse_options(int argc, char **argv, lksi_job *job, int *n_taken) {
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        const char *value;
        const option *found = find_option(argv[i], &value);
        if (found == NULL) return refuse("unknown option '%s'; see lockstep help run", argv[i]);
        if (found->set == NULL) {
            if (value != NULL) return refuse("%s takes no value", found->name);
            *(bool *)((char *)job + found->flag) = true;
            continue;
        }
        if (value == NULL) {
            if (i + 1 >= argc) return refuse("%s needs a value", found->name);
            value = argv[++i];
        }
        int refused = found->set(job, value);
        if (refused != 0) return refused;
    }
    *n_taken = i;
    return 0;
}

static void report(const char *text, const char *last_lines) {
    fflush(stdout);
    fprintf(stderr, "lockstep run: %s%s\n", text, *last_lines != '\0' ? "; its last lines:" : "");
    for (const char *line = last_lines; *line != '\0';) {
        int length = (int)strcspn(line, "\n");
        fprintf(stderr, "  | %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}

static int run(int argc, char **argv) {
    lksi_job job = {.report = report};
    int n_taken = 0;
    int refused = parse_options(argc, argv, &job, &n_taken);
    if (refused != 0) return refused;
    if (n_taken >= argc) return refuse("which program? see lockstep help run");
    if (job.n_ranks == 0) return refuse("how many ranks? -n N is missing before '%s'", argv[n_taken]);
    if (job.as_threads && (job.prefix || job.log_dir != NULL))
        return refuse("%s needs ranks that are processes: threads share one output",
                      job.prefix ? "--prefix" : "--log-dir");
    job.argv = argv + n_taken;
    int exit_status;
    lks_status status = lksi_supervise(&job, &exit_status);
    /* A failed rank and the timeout have been reported, when they happened. */
    if (status != LKS_OK && status != LKS_ERR_PEER && status != LKS_ERR_TIMEOUT) (void)refuse("%s", lks_error_text());
    return exit_status;
}

const lksi_command lksi_command_run = {
    .name = "run", .summary = "start a program as several ranks on this machine", .help = help_text, .run = run};
