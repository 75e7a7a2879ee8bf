/* What the files of launch/ share: the parts of which the supervisor is made. */
#ifndef LKSI_LAUNCH_INTERNAL_H
#define LKSI_LAUNCH_INTERNAL_H

#include "comm/bootstrap/job.h"
#include "comm/bootstrap/notice_board.h"
#include "launch/launch.h"

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

/* --- main.c --- */

/* The exit status of a process that would end with this one: what was printed and is lost, on a full disk say, is a
 * failure, which it says; a reader that has had enough is none. */
int lksi_end_output(int exit_status);

/* --- threads.c: ranks as threads --- */

/* The exit status for what a rank returned: a failure stays one where the kernel keeps the lowest 8 bits only. */
static inline int lksi_exit_code(int result) { return result != 0 && (result & 0xff) == 0 ? 1 : result & 0xff; }

/* Runs `function(argument, rank)` on `n_ranks` threads. *exit_status is that of the first rank that failed.
 * Errors: LKS_ERR_PEER names it. */
lks_status lksi_rank_threads_run(int n_ranks, int (*function)(void *argument, int rank), void *argument,
                                 int64_t grace_ms, int *exit_status);

/* Ends the process from one of its rank threads, whatever the others are doing. */
_Noreturn void lksi_rank_threads_end(int exit_status);

/* --- environment.c: what a rank finds in its environment --- */

typedef struct lksi_rank_environment {
    int listener; /* bound to MASTER_PORT; rank 0 has it from the fork on; -1: let go, or another host's */
    char master_address[LKSI_ADDRESS_TEXT_NBYTES]; /* numbers, without a port */
    char master_port[8];
    char job_key[LKSI_JOB_KEY_NBYTES]; /* for ranks to which nobody has given LOCKSTEP_JOB_KEY */
    lksi_notice_board board;           /* the supervisor's */
} lksi_rank_environment;

/* With a port of this machine at `address`, whose own port does not count; NULL: loopback. */
lks_status lksi_rank_environment_create(lksi_rank_environment *environment, const lksi_address *address);
/* In the process of the job's rank `index`: sets the variables, and unsets those of another way to start. Rank 0 finds
 * the number of its copy of the listener in LOCKSTEP_LISTENER_FD, open across exec. */
void lksi_rank_environment_apply(const lksi_rank_environment *environment, const lksi_job *job, int index);
/* Closes this process's copy of the listener: the launcher's once the ranks run, so that the port ends with rank 0. */
void lksi_rank_environment_let_go(lksi_rank_environment *environment);

/* --- signals.c: signals as something to poll --- */

typedef struct lksi_signals {
    int descriptor; /* a signalfd; -1 before lksi_signals_take and after lksi_signals_give_back */
    bool even_if_ignored;
    bool is_over_hosts; /* set by whoever may not fall silent */
    int64_t stopped_ns; /* how long Ctrl-Z has stopped this process while ranks ran; no timeout counts it */
    sigset_t old_mask;
    struct sigaction old_child_action;
} lksi_signals;

/* Takes SIGCHLD, LKSI_SIGNAL_ANNOUNCED, SIGINT, SIGTERM and SIGHUP from the calling thread. SIGINT and SIGTERM also
 * where they are ignored, if so asked: a shell script starts its background commands with SIGINT ignored. */
lks_status lksi_signals_take(lksi_signals *signals, bool even_if_ignored);
/* The next that is a request, 0: none. What ranks cause, SIGCHLD and LKSI_SIGNAL_ANNOUNCED, is passed over. */
int lksi_signals_next_request(const lksi_signals *signals);
/* SIGTSTP has come: whether this process may stop. In a run over hosts it may not, and says so. */
bool lksi_signals_may_stop(const lksi_signals *signals);
/* In a forked rank: as if they had never been taken, and, if so asked, neither ignored nor blocked before. */
void lksi_signals_restore_in_child(const lksi_signals *signals);
void lksi_signals_give_back(lksi_signals *signals);
/* "SIGKILL"; "signal 40" for one without a name, written to `buffer`. */
const char *lksi_signal_name(int signal_number, char buffer[16]);

/* --- what others have to say while ranks run here (the head of a run over hosts) --- */

typedef struct lksi_orders {
    int signal;         /* to be forwarded; 0: none */
    bool others_failed; /* the ranks here have their time to report it, then they are ended */
    char why[512];      /* the run's first failure; "": not told */
    bool must_end;      /* without that time */
} lksi_orders;

typedef struct lksi_outside {
    void *argument;
    int (*descriptor)(void *argument);                    /* to poll; -1: none */
    void (*step)(void *argument, lksi_orders *orders);    /* called when it is readable, and ten times a second */
    void (*signalled)(void *argument, int signal_number); /* this process was, and has forwarded it */
} lksi_outside;

/* --- time that ranks are given --- */

/* Survivors of a failure, to report it. */
static inline int64_t lksi_grace_ms(const lksi_job *job) { return job->grace_ms > 0 ? job->grace_ms : 5000; }
/* A terminal, timeout(1), scancel and a launcher above us may each deliver the same request: what follows so soon after
 * it is taken for it. */
enum { LKSI_SAME_REQUEST_MS = 500 };
/* After a signal, to end in order. */
static inline int64_t lksi_signal_grace_ms(const lksi_job *job) { return job->grace_ms > 0 ? job->grace_ms : 30000; }

/* --- generations.c: what follows a failure --- */

/* Whether another generation of ranks may do better than one that ended like this. */
bool lksi_end_is_worth_a_restart(lks_status status, const lksi_end *end);

/* --- output.c: the ranks' output, where it is captured --- */

typedef struct lksi_output lksi_output;

/* *output is NULL for a job whose output is passed through; every function below accepts that. On the terminal lines
 * begin with the rank's number where `is_tagged`. */
lks_status lksi_output_create(lksi_output **output, const lksi_job *job, bool is_tagged);
void lksi_output_connect(const lksi_output *output, int rank); /* in the process of rank `rank` */
void lksi_output_was_connected(lksi_output *output, int rank); /* in the launcher, after the fork */
int lksi_output_poll_count(const lksi_output *output);
void lksi_output_poll_fill(const lksi_output *output, struct pollfd *polled);
void lksi_output_take(lksi_output *output, const struct pollfd *polled);
/* What the rank wrote until now, even if poll has not told of it yet. */
void lksi_output_take_rank(lksi_output *output, int rank);
const char *lksi_output_last_lines(const lksi_output *output, int rank);
void lksi_output_destroy(lksi_output *output); /* after the ranks' end: writes what is left */

/* --- a process of the job: a rank, or all of them as threads --- */

typedef struct lksi_process {
    pid_t pid; /* also the number of its process group */
    bool is_running;
    siginfo_t end;             /* what waitid said */
    int n_reaped, n_announced; /* 1 for the first to be reaped, to announce its end; 0: not yet */
    bool has_rank_threads;     /* that have not come to an end, well or reported */
} lksi_process;

/* --- guard.c: ends the ranks' process groups where the launcher itself was killed --- */

typedef struct lksi_guard {
    pid_t pid;
    int descriptor;
} lksi_guard;

/* Before the ranks: `processes` is room for the guard to keep them in, in its own copy of the memory. */
lks_status lksi_guard_start(lksi_guard *guard, lksi_process *processes, int n_processes);
void lksi_guard_enter(const lksi_guard *guard, int index);  /* in a rank: its process group is process `index`'s */
void lksi_guard_forget(const lksi_guard *guard, int index); /* in the launcher: that group is done for */
void lksi_guard_stop(lksi_guard *guard);

/* --- start.c: processes that become ranks --- */

/* Starts all, or none. Returns once every process runs its program or function. */
lks_status lksi_processes_start(const lksi_job *job, const lksi_rank_environment *environment,
                                const lksi_signals *signals, lksi_output *output, const lksi_guard *guard,
                                lksi_process *processes, int n_processes, int *exit_status);

/* --- culprit.c: which rank failed first --- */

#define LKSI_SIGNAL_ANNOUNCED (SIGRTMAX - 1) /* queued to the launcher */

typedef enum lksi_announcement {
    LKSI_RANK_ENDS,     /* this process is a rank whose exit is ahead */
    LKSI_THREADS_BEGIN, /* its threads are the ranks */
    LKSI_THREADS_END    /* all of them, or what kept one from it has been reported */
} lksi_announcement;
void lksi_announce(lksi_announcement announcement); /* nothing happens without a launcher */
bool lksi_process_any_is_exiting(const lksi_process *processes, int n_processes);
int lksi_process_first_failed(const lksi_process *processes, int n_processes); /* its index; -1: none failed */

/* --- orphans.c: descendants whose parents are gone --- */

/* From now on they become children of this process. False where it has children already: whoever replaced itself by
 * the launcher (exec in a shell script) may have left some, and they are none of ours. */
bool lksi_orphans_adopt(void);
void lksi_orphans_reap(const lksi_process *processes, int n_processes, pid_t guard); /* those that have ended */
/* Kills and reaps every child that is left, and adopts no more. For one that cannot be killed there is a warning. */
void lksi_orphans_end(void);

#endif
