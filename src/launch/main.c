/* lks_main: the same program for ranks as processes and for ranks as threads. */
#include "comm/comm.h"
#include "launch/launch_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct main_call {
    int argc;
    char **argv;
    lks_rank_main rank_main;
} main_call;

static void free_arguments(char **argv, int argc) {
    for (int i = 0; argv != NULL && i < argc; i++) lksi_free(argv[i]);
    lksi_free(argv);
}

/* Each rank gets its own copy, because a program may permute or modify its arguments. */
static char **copy_arguments(const main_call *call) {
    char **argv = lksi_alloc_array((size_t)call->argc + 1, sizeof *argv);
    if (argv == NULL) return NULL;
    for (int i = 0; i < call->argc; i++) {
        argv[i] = lksi_strdup(call->argv[i]);
        if (argv[i] == NULL) {
            free_arguments(argv, call->argc);
            return NULL;
        }
    }
    return argv;
}

/* Keeps the copies in a second array, because the program may move the pointers in `argv`. */
static int call_rank_main(void *opaque, int rank) {
    const main_call *call = opaque;
    if (getenv("LOCKSTEP_BIND") != NULL && lksi_bind_to_cpu(rank) != LKS_OK) return lks_report(LKS_ERR_SYSTEM, NULL, 0);
    char **owned = copy_arguments(call);
    char **argv = lksi_alloc_array((size_t)call->argc + 1, sizeof *argv);
    int result = 1;
    if (owned != NULL && argv != NULL) {
        memcpy(argv, owned, (size_t)call->argc * sizeof *argv);
        result = call->rank_main(call->argc, argv);
    } else {
        (void)lks_report(LKS_ERR_MEMORY, NULL, 0);
    }
    lksi_free(argv);
    free_arguments(owned, call->argc);
    return result;
}

/* The errno of earlier failed writes is not known. A closed pipe gives POLLERR, a closed socket POLLHUP. */
static bool has_no_reader(void) {
    struct pollfd output = {.fd = STDOUT_FILENO};
    return poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

int lksi_end_output(int exit_status) {
    errno = 0;
    bool is_lost = fflush(stdout) != 0 || ferror(stdout);
    if (!is_lost || exit_status != 0 || errno == EPIPE || (errno == 0 && has_no_reader())) return exit_status;
    return lks_report(
        lksi_error(LKS_ERR_FILE, "standard output: %s", errno != 0 ? strerror(errno) : "not all could be written"),
        NULL, 0);
}

int lks_main(int argc, char **argv, lks_rank_main rank_main) {
    lksi_fill_standard_descriptors();
    lks_status given = lksi_check_given("main", "rank_main", rank_main != NULL ? &rank_main : NULL);
    if (given != LKS_OK) return lks_report(given, NULL, 0);
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes becomes an error of the write */
    /* Several ranks share one stdout under the launcher. Line buffering keeps their lines whole. */
    if (getenv("LOCKSTEP_LINE_BUFFERED") != NULL) setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    const char *threads = lksi_variable("LOCKSTEP_THREADS");
    if (threads == NULL) return lksi_end_output(lksi_exit_code(rank_main(argc, argv)));
    int64_t n_ranks;
    if (!lksi_parse_i64(threads, 1, LKSI_MAX_RANKS, &n_ranks)) {
        (void)lksi_error(LKS_ERR_ARGUMENT, "LOCKSTEP_THREADS='%s' is not a number from 1 to %d", threads,
                         LKSI_MAX_RANKS);
        return lks_report(LKS_ERR_ARGUMENT, NULL, 0);
    }
    int64_t grace_ms = 5000;
    const char *grace = lksi_variable("LOCKSTEP_GRACE_MS");
    if (grace != NULL && !lksi_parse_i64(grace, 1, INT64_C(1) << 40, &grace_ms)) {
        (void)lksi_error(LKS_ERR_ARGUMENT, "LOCKSTEP_GRACE_MS='%s' is not a number of milliseconds", grace);
        return lks_report(LKS_ERR_ARGUMENT, NULL, 0);
    }
    main_call call = {.argc = argc, .argv = argv, .rank_main = rank_main};
    int exit_status;
    lksi_announce(LKSI_THREADS_BEGIN);
    lks_status status = lksi_rank_threads_run((int)n_ranks, call_rank_main, &call, grace_ms, &exit_status);
    if (status != LKS_OK) (void)lks_report(status, NULL, 0);
    lksi_announce(LKSI_THREADS_END);
    return lksi_end_output(exit_status);
}
