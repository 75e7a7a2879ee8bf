/* What launch/ offers to cli/: start ranks here and on other hosts, watch over them, start them again after a loss, end
 * as the first that fails does. */
#ifndef LKSI_LAUNCH_H
#define LKSI_LAUNCH_H

#include "base/base.h"

#include <lockstep/launch.h>

enum { LKSI_EXIT_TIMEOUT = 124, LKSI_EXIT_NOT_EXECUTABLE = 126, LKSI_EXIT_NOT_FOUND = 127, LKSI_EXIT_SIGNAL = 128 };

typedef struct lksi_failure {
    const char *text;
    const char *last_lines; /* of the failed rank's output: "" where it was not captured */
    int exit_status;        /* as a shell has it */
    bool is_killed;         /* by a signal */
} lksi_failure;

/* What a user is told, a line or several: the first failure of a generation, and what follows it. */
typedef void (*lksi_report)(void *argument, const lksi_failure *failure);

struct lksi_outside;
struct lksi_rank_environment;
struct lksi_signals;

/* The ranks of one generation on this machine. Zero means default. */
typedef struct lksi_job {
    int n_ranks;
    int first_rank, world_size; /* where other hosts have ranks, too; 0: n_ranks are all */
    int generation;             /* how many worlds of this run came before */
    int grains;                 /* for LOCKSTEP_GRAINS; 0: not set */
    char *const *argv; /* the program, looked for in PATH, and its arguments, ended by NULL; or NULL, and then */
    int (*function)(void *argument); /* what each forked rank calls; its result is the exit status */
    void *argument;
    bool as_threads;     /* one process, in which lks_main starts the ranks as threads */
    bool prefix;         /* each line of output begins with "[rank] " */
    const char *log_dir; /* output goes to DIR/rank-N.log, and to the terminal only with `prefix` */
    bool bind;           /* rank i on the i-th allowed CPU, round and round */
    int64_t timeout_ms;  /* 0: none */
    int64_t began_ns;    /* what it counts from; 0: the start of the ranks */
    int64_t grace_ms;   /* for survivors of a failure to report it, 0: 5000; after a signal to end in order, 0: 30000 */
    lksi_report report; /* called once, at the first failure; NULL: nobody asks */
    void *report_argument;
    /* The rest is for runs of several generations or hosts. */
    struct lksi_rank_environment *environment; /* NULL: a new port of this machine, and a new key */
    struct lksi_signals *signals;              /* taken by the caller; NULL: taken and given back here */
    const struct lksi_outside *outside;        /* NULL: nobody else has a say */
} lksi_job;

typedef struct lksi_end {
    /* As a shell has it: that of the first rank that failed, 128 + N for signal N, 124 after the timeout, 126 or 127
     * for a program that cannot be started. */
    int exit_status;
    int forwarded_signal; /* 0: none came */
} lksi_end;

/* Runs a job to its end. When it returns, no process of the job is left, whatever happened.
 *
 * SIGINT, SIGTERM and SIGHUP are forwarded to the ranks meanwhile, which then have their time to end in order; a second
 * one kills them. A job of a function raises the signal in the caller once the ranks are gone; that of a program leaves
 * it to the caller's exit status.
 * Errors: LKS_ERR_PEER names the first rank that failed; LKS_ERR_TIMEOUT; LKS_ERR_FILE (the program, or the log
 * directory); LKS_ERR_SYSTEM. */
lks_status lksi_supervise(const lksi_job *job, lksi_end *end);

/* The same, and after the loss of a rank, up to `max_restarts` times, the next generation of as many ranks. A failure
 * that the next one would only repeat (a wrong command line, a program that cannot be started) ends the run, as do the
 * timeout, which is over all generations, and a signal. */
lks_status lksi_supervise_generations(const lksi_job *job, int max_restarts, lksi_end *end);

/* A run as its user asks for it. */
typedef struct lksi_run {
    lksi_job job;           /* n_ranks: on this host; with `hosts_file` on all of them, 0: as many as they have slots */
    int max_restarts;       /* 0: none */
    int min_ranks;          /* the smallest generation that may follow a loss; 0: as many as the first */
    int n_nodes, node;      /* hosts that start by themselves, and which of them this is; n_nodes 0: this one alone */
    const char *address;    /* where the head of a run over hosts listens: a name or address of node 0, of this host */
    int port;               /* 0: with `hosts_file` one of the system's choice */
    const char *hosts_file; /* hosts that are started from here; NULL: none */
    const char *ssh;        /* how, with its arguments; NULL: "ssh -o BatchMode=yes" */
    const char *const *forwarded; /* names of variables that the ranks there shall find, too */
    int n_forwarded;
    int64_t join_timeout_ms;      /* until all hosts are there */
    int64_t heartbeat_timeout_ms; /* a host that is silent for so long is lost */
} lksi_run;

/* Binds the calling thread, and what it starts later, to the index-th of its allowed CPUs, modulo their number. */
lks_status lksi_bind_to_cpu(int index);

#endif
