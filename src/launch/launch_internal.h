/* Declarations that the files of launch/ share: the parts of the supervisor. */
#ifndef LKSI_LAUNCH_INTERNAL_H
#define LKSI_LAUNCH_INTERNAL_H

#include "comm/bootstrap/announce.h"
#include "comm/bootstrap/job.h"
#include "comm/bootstrap/notice_board.h"
#include "launch/launch.h"

#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

/* --- main.c --- */

/* Flushes stdout and returns the exit status. Lost output, for example on a full disk, is a failure, which is reported.
 * A reader that has closed the pipe is not. */
int lksi_end_output(int exit_status);

/* --- threads.c: ranks as threads --- */

/* The exit code for a rank's result. The kernel keeps only the lowest 8 bits, so a failure with those zero becomes 1.
 */
static inline int lksi_exit_code(int result) { return result != 0 && (result & 0xff) == 0 ? 1 : result & 0xff; }

/* Runs `function(argument, rank)` on `n_ranks` threads. *exit_status is that of the first rank that failed.
 * Errors: LKS_ERR_PEER: a rank failed. The text names it. */
lks_status lksi_rank_threads_run(int n_ranks, int (*function)(void *argument, int rank), void *argument,
                                 int64_t grace_ms, int *exit_status);

/* --- environment.c: the environment of a rank --- */

typedef struct lksi_rank_environment {
    int listener; /* bound to MASTER_PORT, inherited by rank 0; -1: closed, or on another host */
    char master_address[LKSI_ADDRESS_TEXT_NBYTES]; /* numeric, without a port */
    char master_port[8];
    char job_key[LKSI_JOB_KEY_NBYTES]; /* for ranks without LOCKSTEP_JOB_KEY */
    lksi_notice_board board;           /* owned by the supervisor */
} lksi_rank_environment;

/* Claims a port of this machine at `address`, whose own port is ignored. NULL: loopback. */
lks_status lksi_rank_environment_create(lksi_rank_environment *environment, const lksi_address *address);
/* In the process of the job's rank `index`: sets the variables, and unsets those of other ways to start. Rank 0
 * inherits the listener. LOCKSTEP_LISTENER_FD holds its descriptor, which stays open across exec. */
void lksi_rank_environment_apply(const lksi_rank_environment *environment, const lksi_job *job, int index);
/* Closes this process's copy of the listener. The launcher does so once the ranks run, so the port ends with rank 0. */
void lksi_rank_environment_let_go(lksi_rank_environment *environment);

/* --- signalfd.c: signals as a descriptor to poll --- */

typedef struct lksi_signalfd {
    int descriptor; /* a signalfd; -1 before lksi_signalfd_open and after lksi_signalfd_close */
    bool even_if_ignored;
    bool is_over_hosts; /* set in a run over hosts, where a stopped process would be lost */
    int64_t stopped_ns; /* how long Ctrl-Z stopped this process while ranks ran; excluded from all timeouts */
    sigset_t old_mask;
    struct sigaction old_child_action;
} lksi_signalfd;

/* Takes SIGCHLD, LKSI_SIGNAL_ANNOUNCED, SIGINT, SIGTERM, SIGHUP and SIGTSTP from the calling thread. Ignored signals
 * stay ignored. With even_if_ignored, for a launcher of programs, SIGINT and SIGTERM are taken anyway: shell scripts
 * start background commands with SIGINT ignored. SIGUSR1 and SIGUSR2 are taken, too. */
lks_status lksi_signalfd_open(lksi_signalfd *signals, bool even_if_ignored);
/* The next signal that is a request or a notice. 0: none. SIGCHLD and LKSI_SIGNAL_ANNOUNCED, which ranks cause, are
 * discarded. */
int lksi_signalfd_next_request(const lksi_signalfd *signals);
/* SIGUSR1 and SIGUSR2, which are passed on to the ranks and do not end the run. */
bool lksi_signal_is_notice(int signal_number);
/* Whether this process may stop after SIGTSTP. In a run over hosts it may not, and logs that. */
bool lksi_signalfd_may_stop(const lksi_signalfd *signals);
/* In a forked rank: restores the state before lksi_signalfd_open. With even_if_ignored, SIGINT and SIGTERM become
 * neither ignored nor blocked. */
void lksi_signalfd_restore_in_child(const lksi_signalfd *signals);
void lksi_signalfd_close(lksi_signalfd *signals);
/* "SIGKILL", or "signal 40", written to `buffer`, for a signal without a name. */
const char *lksi_signal_name(int signal_number, char buffer[16]);

/* --- orders from outside while ranks run here (the head of a run over hosts) --- */

typedef struct lksi_orders {
    int signal;         /* to forward to the ranks; 0: none */
    bool others_failed; /* the ranks here get the grace to report it, then they are ended */
    char why[512];      /* the run's first failure; "": unknown */
    bool must_end;      /* without grace */
} lksi_orders;

typedef struct lksi_outside {
    void *argument;
    int (*descriptor)(void *argument);                    /* to poll; -1: none */
    void (*step)(void *argument, lksi_orders *orders);    /* called if it is readable, and ten times a second */
    void (*signalled)(void *argument, int signal_number); /* this process got the signal and has forwarded it */
} lksi_outside;

/* --- grace times --- */

/* For ranks to report the failure of another. */
static inline int64_t lksi_grace_ms(const lksi_job *job) { return job->grace_ms > 0 ? job->grace_ms : 5000; }
/* A terminal, timeout(1), scancel and an outer launcher may each deliver the same request. Signals that follow the
 * first within this time count as the same request. */
enum { LKSI_SAME_REQUEST_MS = 500 };
/* For ranks to end after a signal. */
static inline int64_t lksi_signal_grace_ms(const lksi_job *job) { return job->grace_ms > 0 ? job->grace_ms : 30000; }

/* --- generations.c: restarts --- */

/* Whether a generation that ended like this should be followed by another. */
bool lksi_end_is_worth_a_restart(lks_status status, const lksi_end *end);

/* --- output.c: capturing the ranks' output --- */

typedef struct lksi_output lksi_output;

/* *output is NULL for a job whose output is passed through. Every function below accepts NULL. With `is_tagged`, lines
 * on the terminal begin with the rank's number. */
lks_status lksi_output_create(lksi_output **output, const lksi_job *job, bool is_tagged);
void lksi_output_connect(const lksi_output *output, int rank); /* in the process of rank `rank` */
void lksi_output_was_connected(lksi_output *output, int rank); /* in the launcher, after the fork */
int lksi_output_poll_count(const lksi_output *output);
void lksi_output_poll_fill(const lksi_output *output, struct pollfd *polled);
bool lksi_output_take(lksi_output *output, const struct pollfd *polled); /* whether anything was read */
bool lksi_output_is_open(const lksi_output *output);                     /* more may come */
/* Reads what the rank has written so far, also if poll has not reported it yet. */
void lksi_output_take_rank(lksi_output *output, int rank);
/* Call it once, after the rank has ended. A process that the rank left behind may keep an incomplete line open. */
const char *lksi_output_last_lines(lksi_output *output, int rank);
void lksi_output_destroy(lksi_output *output); /* after the ranks have ended: writes what is left */

/* --- a process of the job: one rank, or all of them as threads --- */

typedef struct lksi_process {
    pid_t pid; /* also the id of the process group that it was started in */
    bool is_running;
    siginfo_t end;             /* result of waitid */
    int n_reaped, n_announced; /* order of reaping and of announcing the end, from 1; 0: not yet */
    bool has_rank_threads;     /* it has rank threads that have neither all finished nor reported why not */
} lksi_process;

/* Sends the signal to a child and to the process group that it was started in, which it may have left or not have made
 * yet. */
static inline void lksi_signal_child(pid_t pid, int signal_number) {
    if (getpgid(pid) != pid) kill(pid, signal_number);
    kill(-pid, signal_number);
}

/* --- guard.c: ends the ranks' process groups if the launcher itself is killed --- */

typedef struct lksi_guard {
    pid_t pid;
    int descriptor;
} lksi_guard;

#define LKSI_GUARD_NAME "lockstep-guard"

/* Call it before ranks are started. The guard uses its own copy of `processes` to keep the process groups. With
 * `ends_orphans` it also ends processes that have left these groups. */
lks_status lksi_guard_start(lksi_guard *guard, lksi_process *processes, int n_processes, bool ends_orphans);
void lksi_guard_enter(const lksi_guard *guard, int index);  /* in a rank: its process group becomes entry `index` */
void lksi_guard_forget(const lksi_guard *guard, int index); /* in the launcher: that group is gone */
void lksi_guard_stop(lksi_guard *guard);

/* --- start.c: starting the rank processes --- */

/* Starts all processes, or none. Returns when every process runs its program or function. */
lks_status lksi_processes_start(const lksi_job *job, const lksi_rank_environment *environment,
                                const lksi_signalfd *signals, lksi_output *output, const lksi_guard *guard,
                                lksi_process *processes, int n_processes, int *exit_status);

/* --- culprit.c: which rank failed first --- */

bool lksi_process_any_is_exiting(const lksi_process *processes, int n_processes);
int lksi_process_first_failed(const lksi_process *processes, int n_processes); /* its index; -1: none failed */

/* --- orphans.c: descendants whose parents have ended --- */

/* Makes orphans children of this process from now on. Returns false if it has children already: a shell script that
 * replaced itself by the launcher (exec) may have left some, and those must not be touched. */
bool lksi_orphans_adopt(void);
void lksi_orphans_reap(const lksi_process *processes, int n_processes, pid_t guard); /* those that have ended */
/* Kills and reaps every remaining child, and stops adopting. A child that cannot be killed is a warning. */
void lksi_orphans_end(void);
/* In the guard: kills the processes that ranks of a launcher which was killed have left behind. */
void lksi_orphans_end_of(pid_t launcher);

#endif
