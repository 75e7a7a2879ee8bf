/* What launch/ offers to cli/: start ranks here and on other hosts, supervise them, restart them after a loss, and end
 * with the status of the first failure. */
#ifndef LKSI_LAUNCH_H
#define LKSI_LAUNCH_H

#include "base/base.h"

#include <lockstep/launch.h>

enum { LKSI_EXIT_TIMEOUT = 124, LKSI_EXIT_NOT_EXECUTABLE = 126, LKSI_EXIT_NOT_FOUND = 127, LKSI_EXIT_SIGNAL = 128 };

typedef struct lksi_failure {
    const char *text;
    const char *last_lines; /* of the failed rank's output; "" if it was not captured */
    int exit_status;        /* in the convention of shells */
    bool is_killed;         /* by a signal */
} lksi_failure;

/* Reports to the user, in one or more lines: the first failure of a generation, and what follows it. */
typedef void (*lksi_report)(void *argument, const lksi_failure *failure);

struct lksi_outside;
struct lksi_rank_environment;
struct lksi_signalfd;

/* The ranks of one generation on this machine. Zero means default. */
typedef struct lksi_job {
    int n_ranks;
    int first_rank, world_size; /* if other hosts have ranks too; world_size 0: n_ranks */
    int generation;             /* number of earlier generations in this run */
    int grains;                 /* for LOCKSTEP_GRAINS; 0: not set */
    char *const
        *argv; /* the program, searched for in PATH, and its arguments, terminated by NULL; or NULL: `function` */
    int (*function)(void *argument); /* called by each forked rank; its result is the exit status */
    void *argument;
    bool as_threads;     /* one process in which lks_main starts the ranks as threads */
    bool prefix;         /* each line of output begins with "[rank] " */
    const char *log_dir; /* output goes to DIR/rank-N.log, and to the terminal only with `prefix` */
    bool bind;           /* bind rank i to the i-th allowed CPU, modulo their number */
    int64_t timeout_ms;  /* 0: none */
    int64_t began_ns;    /* start of the timeout; 0: when the ranks start */
    int64_t grace_ms;    /* time for ranks to report a failure of another, 0: 5000; to end after a signal, 0: 30000 */
    lksi_report report;  /* called once, at the first failure; may be NULL */
    void *report_argument;
    /* The rest is for runs of several generations or hosts. */
    struct lksi_rank_environment *environment; /* NULL: a new port of this machine, and a new key */
    struct lksi_signalfd *signals;             /* opened by the caller; NULL: opened and closed here */
    const struct lksi_outside *outside;        /* NULL: no head */
} lksi_job;

typedef struct lksi_end {
    /* In the convention of shells: that of the first rank that failed, 128 + N for signal N, 124 after the timeout, 126
     * or 127 for a program that cannot be started. */
    int exit_status;
    int forwarded_signal; /* 0: none */
} lksi_end;

/* Runs a job to its end. When it returns, no process of the job is left, whatever happened.
 *
 * SIGINT, SIGTERM and SIGHUP are forwarded to the ranks, which then have time to end. A second signal kills them. A job
 * with a function raises the signal in the caller when the ranks have ended. A job with a program leaves the signal to
 * the caller's exit status.
 * Errors: LKS_ERR_PEER: a rank failed. The text names the first one. LKS_ERR_TIMEOUT. LKS_ERR_FILE: the program or the
 * log directory. LKS_ERR_SYSTEM. */
lks_status lksi_supervise(const lksi_job *job, lksi_end *end);

/* Runs a job and, after the loss of a rank, starts the next generation with the same number of ranks, at most
 * `max_restarts` times. A failure that would only repeat (a wrong command line, a program that cannot be started) ends
 * the run. So do a signal and the timeout, which covers all generations. */
lks_status lksi_supervise_generations(const lksi_job *job, int max_restarts, lksi_end *end);

/* A run as requested by the user. */
typedef struct lksi_run {
    lksi_job job;      /* n_ranks: on this host; with `hosts_file` on all hosts, and 0 means all slots */
    int max_restarts;  /* 0: none */
    int min_ranks;     /* smallest generation after a loss; 0: as many ranks as in the first */
    int n_nodes, node; /* number of hosts that start themselves, and the index of this one; n_nodes 0: only this one */
    const char *address; /* where the head of a run over hosts listens: a name or address of node 0 or of this host */
    int port;            /* 0, with `hosts_file` only: chosen by the system */
    const char *hosts_file;       /* hosts whose agents are started from here; NULL: none */
    const char *ssh;              /* remote shell with its arguments; NULL: "ssh -o BatchMode=yes" */
    const char *const *forwarded; /* names of variables that are forwarded to the other hosts */
    int n_forwarded;
    int64_t join_timeout_ms;      /* until all hosts have joined */
    int64_t heartbeat_timeout_ms; /* a host that is silent for this long is lost */
} lksi_run;

/* Binds the calling thread, and threads that it creates later, to the index-th allowed CPU, modulo their number. */
lks_status lksi_bind_to_cpu(int index);

#endif
