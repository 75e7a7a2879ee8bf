/* Starts the ranks of a job: fork, set up, exec or call.
 *
 * All ranks are forked before the launcher waits for any of them. They share a close-on-exec pipe. It ends when the
 * last rank has executed its program. A rank that cannot do so writes the reason to the pipe. A wrong program is thus
 * reported once, not n times. */
#define _GNU_SOURCE /* pipe2, prctl */
#include "base/timeline.h"
#include "launch/launch_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct start {
    const lksi_job *job;
    const lksi_rank_environment *environment;
    const lksi_signalfd *signals;
    lksi_output *output;
    const lksi_guard *guard;
    pid_t launcher;
    int failure[2]; /* the pipe for the reason why a process could not start */
} start;

typedef struct reason {
    int rank;
    int error;      /* errno of exec */
    char text[512]; /* another failure; "": none */
} reason;

/* Only rank 0 of a run on one host reads stdin: an agent's stdin may be the file of its orders, with the job's key. No
 * rank does if stdin is a terminal, because ranks are in background process groups. */
static void connect_stdin(const lksi_job *job, int index) {
    if (index == 0 && job->outside == NULL && !isatty(STDIN_FILENO)) return;
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0) return;
    dup2(nothing, STDIN_FILENO);
    if (nothing != STDIN_FILENO) close(nothing);
}

/* A background process group is stopped when it reads from its terminal, changes its settings or, after stty tostop,
 * writes to it. The job would hang without a message. With these signals ignored, writing succeeds and reading is an
 * error. */
static void be_in_background(void) {
    (void)signal(SIGTTIN, SIG_IGN);
    (void)signal(SIGTTOU, SIG_IGN);
}

static _Noreturn void give_up(const start *s, int index, const char *text) {
    reason why = {.rank = s->job->first_rank + index, .error = errno};
    snprintf(why.text, sizeof why.text, "%s", text);
    ssize_t n_written = write(s->failure[1], &why, sizeof why);
    _exit(n_written == sizeof why ? LKSI_EXIT_NOT_FOUND : 1);
}

static _Noreturn void be_function(const start *s, int index) {
    lksi_rank_environment mine = *s->environment;
    if (index != 0) lksi_rank_environment_let_go(&mine);
    close(s->guard->descriptor);
    close(s->failure[0]);
    close(s->failure[1]);
    clearerr(stdout);          /* output that the parent lost is not a failure of this rank */
    lksi_process_set_rank(-1); /* the parent's rank, in a world that it had before, does not apply here */
    const int exit_status = lksi_end_output(lksi_exit_code(s->job->function(s->job->argument)));
    fflush(NULL);
    lksi_timeline_flush();
    lksi_announce(LKSI_RANK_ENDS);
    _exit(exit_status); /* not exit, which would run the parent's atexit functions in every rank */
}

static _Noreturn void be_rank(const start *s, int index) {
    setpgid(0, 0);
    be_in_background();
    /* The launcher may have died before PR_SET_PDEATHSIG took effect. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != s->launcher) _exit(1);
    lksi_guard_enter(s->guard, index);
    lksi_signalfd_restore_in_child(s->signals);
    connect_stdin(s->job, index);
    lksi_output_connect(s->output, index);
    lksi_rank_environment_apply(s->environment, s->job, index);
    if (s->job->bind && !s->job->as_threads && lksi_bind_to_cpu(index) != LKS_OK) give_up(s, index, lks_error_text());
    if (s->job->argv == NULL) be_function(s, index);
    execvp(s->job->argv[0], s->job->argv);
    give_up(s, index, "");
}

static void end_all(const lksi_guard *guard, lksi_process *processes, int n_processes) {
    for (int i = 0; i < n_processes; i++) {
        lksi_signal_child(processes[i].pid, SIGKILL);
        lksi_guard_forget(guard, i);
        while (waitpid(processes[i].pid, NULL, 0) < 0 && errno == EINTR) continue;
        processes[i].is_running = false;
    }
}

/* Waits until every process has closed its end, or the first reports a failure. Returns false if all started. */
static bool read_first_failure(const start *s, reason *why) {
    ssize_t n_read;
    do n_read = read(s->failure[0], why, sizeof *why);
    while (n_read < 0 && errno == EINTR);
    return n_read == sizeof *why;
}

/* exec gives the same error for a program that does not exist and for one whose interpreter does not. */
static const char *describe_exec_failure(const char *program, int error) {
    const bool lacks_interpreter = error == ENOENT && strchr(program, '/') != NULL && access(program, F_OK) == 0;
    return lacks_interpreter ? "its interpreter (in the first line of a script) or its loader does not exist"
                             : strerror(error);
}

static lks_status say_why(const lksi_job *job, const reason *why, int *exit_status) {
    const char *program = job->argv != NULL ? job->argv[0] : "rank", *on = job->outside != NULL ? " on " : "";
    char host[256];
    lksi_host_name(host, sizeof host);
    if (job->outside == NULL) host[0] = '\0';
    if (why->text[0] != '\0') return lksi_error(LKS_ERR_SYSTEM, "rank %d%s%s: %s", why->rank, on, host, why->text);
    *exit_status = why->error == ENOENT || why->error == ENOTDIR ? LKSI_EXIT_NOT_FOUND : LKSI_EXIT_NOT_EXECUTABLE;
    return lksi_error(LKS_ERR_FILE, "cannot start '%s'%s%s: %s", program, on, host,
                      describe_exec_failure(program, why->error));
}

static lks_status fork_all(const start *s, lksi_process *processes, int n_processes, int *n_started) {
    fflush(NULL); /* otherwise every rank would write the buffered data again */
    for (*n_started = 0; *n_started < n_processes; ++*n_started) {
        int index = *n_started;
        pid_t pid = fork();
        if (pid < 0)
            return lksi_error_errno("cannot start rank %d, %d of %d here", s->job->first_rank + index, index + 1,
                                    n_processes);
        if (pid == 0) be_rank(s, index);
        setpgid(pid, pid); /* parent and child both do it, because either may be first */
        lksi_output_was_connected(s->output, index);
        processes[index] = (lksi_process){.pid = pid, .is_running = true};
    }
    return LKS_OK;
}

lks_status lksi_processes_start(const lksi_job *job, const lksi_rank_environment *environment,
                                const lksi_signalfd *signals, lksi_output *output, const lksi_guard *guard,
                                lksi_process *processes, int n_processes, int *exit_status) {
    start s = {.job = job,
               .environment = environment,
               .signals = signals,
               .output = output,
               .guard = guard,
               .launcher = getpid()};
    *exit_status = 1;
    if (pipe2(s.failure, O_CLOEXEC) != 0) return lksi_error_errno("cannot make a pipe for the start of the ranks");
    int n_started;
    lks_status status = fork_all(&s, processes, n_processes, &n_started);
    close(s.failure[1]);
    reason why;
    if (status == LKS_OK && read_first_failure(&s, &why)) status = say_why(job, &why, exit_status);
    close(s.failure[0]);
    if (status != LKS_OK) end_all(guard, processes, n_started);
    return status;
}
