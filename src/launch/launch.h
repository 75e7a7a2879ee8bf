/* What launch/ offers to cli/: start ranks on this machine, watch over them, end as the first that fails does. */
#ifndef LKSI_LAUNCH_H
#define LKSI_LAUNCH_H

#include "base/base.h"

#include <lockstep/launch.h>

/* Zero means default. */
typedef struct lksi_job {
    int n_ranks;
    char *const *argv; /* the program, looked for in PATH, and its arguments, ended by NULL; or NULL, and then */
    int (*function)(void *argument); /* what each forked rank calls; its result is the exit status */
    void *argument;
    bool as_threads;     /* one process, in which lks_main starts the ranks as threads */
    bool prefix;         /* each line of output begins with "[rank] " */
    const char *log_dir; /* output goes to DIR/rank-N.log, and to the terminal only with `prefix` */
    bool bind;           /* rank i on the i-th allowed CPU, round and round */
    int64_t timeout_ms;  /* 0: none */
    int64_t grace_ms;    /* how long survivors of a failure have to report it themselves; 0: 5000 */
    /* Called once, at the first failure. `last_lines` of the failed rank's output: "" where it was not captured. */
    void (*report)(const char *text, const char *last_lines);
} lksi_job;

enum { LKSI_EXIT_TIMEOUT = 124, LKSI_EXIT_NOT_EXECUTABLE = 126, LKSI_EXIT_NOT_FOUND = 127, LKSI_EXIT_SIGNAL = 128 };

/* Runs a job to its end. When it returns, no process of the job is left, whatever happened.
 *
 * SIGINT, SIGTERM and SIGHUP are forwarded to the ranks meanwhile; a second one kills them. A job of a function raises
 * the signal in the caller once the ranks are gone; that of a program leaves it to the caller's exit status.
 * *exit_status is as a shell has it: that of the first rank that failed, 128 + N for signal N, 124 after the timeout,
 * 126 or 127 for a program that cannot be started.
 * Errors: LKS_ERR_PEER names the first rank that failed; LKS_ERR_TIMEOUT; LKS_ERR_FILE (the program, or the log
 * directory); LKS_ERR_SYSTEM. */
lks_status lksi_supervise(const lksi_job *job, int *exit_status);

/* Binds the calling thread, and what it starts later, to the index-th of its allowed CPUs, modulo their number. */
lks_status lksi_bind_to_cpu(int index);

#endif
