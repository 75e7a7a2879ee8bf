/* The supervisor: waits for ranks, output, signals and the head in one poll, and ensures that a job ends as a whole.
 *
 * After the first failure the other ranks get `grace_ms` to notice and report it themselves, because they know what
 * they were doing (the operation, its sequence number, the bytes done). Then they get SIGTERM, and SIGKILL two seconds
 * later. */
#define _GNU_SOURCE /* waitid's WNOWAIT */
#include "launch/launch_internal.h"

#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEVER INT64_MAX

enum { TERM_TO_KILL_MS = 2000, SETTLE_MS = 200, OUTSIDE_MS = 100 };
enum { POLLED_SIGNALS, POLLED_OUTSIDE, POLLED_OUTPUT };

typedef struct supervisor {
    const lksi_job *job;
    lksi_rank_environment environment;
    lksi_signalfd own_signals, *signals; /* `signals` is the job's or points to own_signals */
    lksi_output *output;
    lksi_guard guard;
    lksi_process *processes;
    struct pollfd *polled; /* output begins at POLLED_OUTPUT */
    int n_processes, n_running, n_announced;
    bool adopts_orphans, must_end, has_killed;
    int forwarded_signal;                           /* 0: none */
    int64_t asked_at, timeout_at, term_at, kill_at; /* in ns or NEVER; asked_at: first signal to this process */
    lks_status status;                              /* of the first failure */
    int exit_status;
    char text[512];
} supervisor;

static void signal_all(const supervisor *s, int signal_number) {
    for (int i = 0; i < s->n_processes; i++)
        if (s->processes[i].is_running) lksi_signal_child(s->processes[i].pid, signal_number);
}

static void report(const supervisor *s, const char *last_lines, bool is_killed) {
    const lksi_failure failure = {
        .text = s->text, .last_lines = last_lines, .exit_status = s->exit_status, .is_killed = is_killed};
    if (s->job->report != NULL) s->job->report(s->job->report_argument, &failure);
}

/* Finds the first rank that ended well before process `index` failed, because others may have waited for it. -1: none.
 */
static int find_early_end(const supervisor *s, int index) {
    int first = -1;
    for (int i = 0; i < s->n_processes; i++) {
        const lksi_process *each = &s->processes[i];
        bool is_good = each->n_reaped != 0 && each->end.si_code == CLD_EXITED && each->end.si_status == 0;
        if (!is_good || each->n_reaped > s->processes[index].n_reaped) continue;
        if (first < 0 || each->n_reaped < s->processes[first].n_reaped) first = i;
    }
    return first;
}

/* "rank 1 (pid 12 on host)" */
static void describe_process(const supervisor *s, int index, char who[400]) {
    char host[256];
    lksi_host_name(host, sizeof host);
    const int pid = (int)s->processes[index].pid;
    if (s->job->as_threads)
        snprintf(who, 400, "the process of %d rank threads (pid %d on %s)", s->job->n_ranks, pid, host);
    else
        snprintf(who, 400, "rank %d (pid %d on %s)", s->job->first_rank + index, pid, host);
}

/* Appends why the rank gave up in lks_init, if it did and then exited: it may have waited for another rank. */
static void append_error(supervisor *s, int index) {
    const char *error = lksi_notice_board_error_of(&s->environment.board, s->job->first_rank + index);
    if (error == NULL || s->job->as_threads || s->processes[index].end.si_code != CLD_EXITED) return;
    lksi_append(s->text, sizeof s->text, "; its error: %s", error);
}

/* Writes "rank 1 (pid 12 on host) was killed by SIGSEGV (core dumped)" to s->text. Returns the shell's exit status. */
static int describe_end(supervisor *s, int index) {
    const siginfo_t *info = &s->processes[index].end;
    char who[400], name[16];
    const int number = info->si_status;
    describe_process(s, index, who);
    const int exit_status = info->si_code == CLD_EXITED ? number : LKSI_EXIT_SIGNAL + number;
    const int early = s->job->as_threads ? -1 : find_early_end(s, index);
    char before[64] = "";
    if (early >= 0)
        snprintf(before, sizeof before, "; before that rank %d had ended with status 0", s->job->first_rank + early);
    if (s->forwarded_signal != 0 && exit_status == LKSI_EXIT_SIGNAL + s->forwarded_signal)
        snprintf(s->text, sizeof s->text, "ended by %s, which was forwarded to all ranks",
                 lksi_signal_name(s->forwarded_signal, name));
    else if (info->si_code == CLD_EXITED)
        snprintf(s->text, sizeof s->text, "%s exited with status %d%s%s", who, number,
                 s->processes[index].has_rank_threads ? ": one of them ended it before all had returned" : "", before);
    else
        snprintf(s->text, sizeof s->text, "%s was killed by %s%s", who, lksi_signal_name(number, name),
                 info->si_code == CLD_DUMPED          ? " (core dumped)"
                 : number == SIGKILL && s->has_killed ? ", by this launcher, because it had not ended in time"
                                                      : "");
    append_error(s, index);
    return exit_status != 0 ? exit_status : 1;
}

/* Tells ranks that wait in lks_init that this rank has ended and will not come. In a run over hosts this is not done:
 * not all ranks would learn it at the same time and would name different ranks. There only a failure ends the wait. */
static void note_good_end(const supervisor *s, int index) {
    const siginfo_t *info = &s->processes[index].end;
    char who[400], text[448];
    if (info->si_code != CLD_EXITED || info->si_status != 0 || s->job->outside != NULL) return;
    describe_process(s, index, who);
    snprintf(text, sizeof text, "%s has ended with status 0", who);
    lksi_notice_board_write(&s->environment.board, text);
}

/* Reaps process `index` if it has ended. The rest of its process group is killed while it is a zombie, because its
 * number cannot be reused until then. */
static void reap(supervisor *s, int index) {
    lksi_process *process = &s->processes[index];
    siginfo_t info = {.si_pid = 0};
    if (!process->is_running || waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    if (info.si_pid == 0) return;
    kill(-process->pid, SIGKILL);
    lksi_guard_forget(&s->guard, index);
    waitpid(process->pid, NULL, 0);
    process->is_running = false;
    process->end = info;
    s->n_running--;
    process->n_reaped = s->n_processes - s->n_running;
    note_good_end(s, index);
}

/* `first` is the process that the first SIGCHLD named. If several processes have ended, it is the one that ended
 * first. */
static void reap_all(supervisor *s, pid_t first) {
    for (int i = 0; i < s->n_processes; i++)
        if (s->processes[i].pid == first) reap(s, i);
    for (int i = 0; i < s->n_processes; i++) reap(s, i);
    if (s->adopts_orphans) lksi_orphans_reap(s->processes, s->n_processes, s->guard.pid);
}

static void note_announcement(supervisor *s, pid_t pid, int announcement) {
    for (int i = 0; i < s->n_processes; i++) {
        if (s->processes[i].pid != pid) continue;
        if (announcement == LKSI_RANK_ENDS)
            s->processes[i].n_announced = ++s->n_announced;
        else
            s->processes[i].has_rank_threads = announcement == LKSI_THREADS_BEGIN;
    }
}

/* A later reason to end does not postpone a kill that is due sooner. */
static void kill_by(supervisor *s, int64_t at) {
    if (at < s->kill_at) s->kill_at = at;
}

static void forward(supervisor *s, int signal_number) {
    if (signal_number == SIGKILL) kill_by(s, lksi_now_ns());
    if (s->forwarded_signal != 0) return;
    s->forwarded_signal = signal_number;
    kill_by(s, lksi_now_ns() + lksi_signal_grace_ms(s->job) * LKSI_NS_PER_MS);
    signal_all(s, signal_number);
}

/* A second request kills the ranks. Requests on other hosts, which come through the head, do not count as the second.
 */
static void heed_signal(supervisor *s, int signal_number) {
    const int64_t now = lksi_now_ns();
    forward(s, signal_number);
    if (s->asked_at == NEVER) s->asked_at = now;
    if (now - s->asked_at > LKSI_SAME_REQUEST_MS * LKSI_NS_PER_MS) forward(s, SIGKILL);
    if (s->job->outside != NULL) s->job->outside->signalled(s->job->outside->argument, signal_number);
}

/* Ctrl-Z: stops the ranks, which are in their own process groups, together with this process, and continues them. */
static void stop_until_continued(supervisor *s) {
    int64_t *const times[] = {&s->asked_at, &s->timeout_at, &s->term_at, &s->kill_at};
    const int64_t began_ns = lksi_now_ns();
    if (!lksi_signalfd_may_stop(s->signals)) return;
    signal_all(s, SIGSTOP);
    raise(SIGSTOP);
    signal_all(s, SIGCONT);
    const int64_t stopped_ns = lksi_now_ns() - began_ns;
    s->signals->stopped_ns += stopped_ns;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (*times[i] != NEVER) *times[i] += stopped_ns;
}

static void take_signals(supervisor *s) {
    struct signalfd_siginfo info;
    while (read(s->signals->descriptor, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            reap_all(s, (pid_t)info.ssi_pid);
        else if (info.ssi_signo == (uint32_t)LKSI_SIGNAL_ANNOUNCED)
            note_announcement(s, (pid_t)info.ssi_pid, info.ssi_int);
        else if (info.ssi_signo == SIGTSTP)
            stop_until_continued(s);
        else if (lksi_signal_is_notice((int)info.ssi_signo))
            signal_all(s, (int)info.ssi_signo);
        else
            heed_signal(s, (int)info.ssi_signo);
    }
}

static void give_grace(supervisor *s) {
    if (s->forwarded_signal != 0) return; /* the grace after a signal applies already */
    s->term_at = lksi_now_ns() + lksi_grace_ms(s->job) * LKSI_NS_PER_MS;
}

/* At the first failure: finds the rank that failed first and starts the grace of the others. */
static void judge(supervisor *s) {
    if (s->status != LKS_OK || lksi_process_first_failed(s->processes, s->n_processes) < 0) return;
    int64_t settled_at = lksi_now_ns() + SETTLE_MS * LKSI_NS_PER_MS;
    while (lksi_process_any_is_exiting(s->processes, s->n_processes) && lksi_now_ns() < settled_at) {
        lksi_sleep_ns(LKSI_NS_PER_MS / 2);
        take_signals(s);
    }
    take_signals(s);
    int first = lksi_process_first_failed(s->processes, s->n_processes);
    lksi_output_take_rank(s->output, first);
    s->exit_status = describe_end(s, first);
    /* Among rank threads, lks_main has reported the rank if it could. */
    bool is_reported =
        s->job->as_threads && s->processes[first].end.si_code == CLD_EXITED && !s->processes[first].has_rank_threads;
    s->status = LKS_ERR_PEER;
    if (s->job->outside == NULL) lksi_notice_board_write(&s->environment.board, s->text);
    if (!is_reported)
        report(s, lksi_output_last_lines(s->output, first), s->processes[first].end.si_code != CLD_EXITED);
    give_grace(s);
}

/* A failure on another host is reported there. The head decides which failure was the first of all hosts. */
static void heed_outside(supervisor *s) {
    lksi_orders orders = {.signal = 0};
    if (s->job->outside == NULL) return;
    s->job->outside->step(s->job->outside->argument, &orders);
    if (orders.signal != 0) forward(s, orders.signal);
    if (orders.why[0] != '\0') lksi_notice_board_write(&s->environment.board, orders.why);
    if ((orders.others_failed || orders.must_end) && s->status == LKS_OK) {
        snprintf(s->text, sizeof s->text, "the run failed on another host");
        s->status = LKS_ERR_PEER;
        s->exit_status = 1;
        give_grace(s);
    }
    if (orders.must_end && !s->must_end) s->term_at = lksi_now_ns();
    s->must_end = s->must_end || orders.must_end;
}

/* Names the ranks that SIGTERM does not end. They may be why the others have failed: a stopped rank, for one. */
static void name_those_left(const supervisor *s) {
    char who[400];
    lksi_process_stat stat;
    for (int i = 0; i < s->n_processes; i++) {
        const pid_t pid = s->processes[i].pid;
        if (!s->processes[i].is_running) continue;
        describe_process(s, i, who);
        lksi_log(LKS_LOG_WARNING, "%s, which %s, is killed", who,
                 lksi_process_read_stat(pid, &stat) && stat.is_stopped ? "is stopped" : "SIGTERM has not ended");
    }
}

/* Does what is due at `now`: timeout, SIGTERM, SIGKILL. */
static void escalate(supervisor *s, int64_t now) {
    if (now >= s->timeout_at && s->status == LKS_OK) {
        /* All threads of a process end together. */
        snprintf(s->text, sizeof s->text, "%d of %d ranks had not ended after %g s, the timeout",
                 s->job->as_threads ? s->job->n_ranks : s->n_running, s->job->n_ranks,
                 (double)s->job->timeout_ms / 1000);
        s->status = LKS_ERR_TIMEOUT;
        s->exit_status = LKSI_EXIT_TIMEOUT;
        report(s, "", false);
        s->term_at = now;
    }
    if (now >= s->timeout_at) s->timeout_at = NEVER;
    if (now >= s->term_at) {
        signal_all(s, SIGTERM);
        s->term_at = NEVER;
        kill_by(s, now + TERM_TO_KILL_MS * LKSI_NS_PER_MS);
    }
    if (now >= s->kill_at) {
        if (s->forwarded_signal == 0) name_those_left(s);
        signal_all(s, SIGKILL);
        s->has_killed = true;
        s->kill_at = NEVER;
    }
}

static int poll_timeout_ms(const supervisor *s, int64_t now) {
    int64_t next = s->timeout_at;
    if (s->job->outside != NULL && now + OUTSIDE_MS * LKSI_NS_PER_MS < next) next = now + OUTSIDE_MS * LKSI_NS_PER_MS;
    if (s->term_at < next) next = s->term_at;
    if (s->kill_at < next) next = s->kill_at;
    if (next == NEVER) return -1;
    if (next <= now) return 0;
    int64_t timeout_ms = (next - now + LKSI_NS_PER_MS - 1) / LKSI_NS_PER_MS;
    return timeout_ms < INT32_MAX ? (int)timeout_ms : INT32_MAX;
}

static void watch(supervisor *s) {
    const lksi_outside *outside = s->job->outside;
    const nfds_t n_polled = POLLED_OUTPUT + (nfds_t)lksi_output_poll_count(s->output);
    while (s->n_running > 0) {
        s->polled[POLLED_SIGNALS] = (struct pollfd){.fd = s->signals->descriptor, .events = POLLIN};
        s->polled[POLLED_OUTSIDE] =
            (struct pollfd){.fd = outside != NULL ? outside->descriptor(outside->argument) : -1, .events = POLLIN};
        lksi_output_poll_fill(s->output, s->polled + POLLED_OUTPUT);
        int n_ready = poll(s->polled, n_polled, poll_timeout_ms(s, lksi_now_ns()));
        if (n_ready > 0) {
            lksi_output_take(s->output, s->polled + POLLED_OUTPUT);
            take_signals(s);
            judge(s);
        }
        heed_outside(s);
        escalate(s, lksi_now_ns());
    }
}

static lks_status start_and_watch(supervisor *s) {
    LKS_TRY(lksi_processes_start(s->job, &s->environment, s->signals, s->output, &s->guard, s->processes,
                                 s->n_processes, &s->exit_status));
    lksi_rank_environment_let_go(&s->environment);
    s->exit_status = 0;
    s->n_running = s->n_processes;
    const int64_t began_ns = s->job->began_ns != 0 ? s->job->began_ns : lksi_now_ns();
    const int64_t timeout_ns = s->job->timeout_ms * LKSI_NS_PER_MS;
    s->timeout_at = timeout_ns > 0 ? began_ns + s->signals->stopped_ns + timeout_ns : NEVER;
    watch(s);
    return s->status == LKS_OK ? LKS_OK : lksi_error(s->status, "%s", s->text);
}

/* Uses the caller's environment, including its listener, or creates one for these ranks. */
static lks_status get_environment(supervisor *s) {
    if (s->job->environment == NULL) {
        LKS_TRY(lksi_rank_environment_create(&s->environment, NULL));
    } else {
        s->environment = *s->job->environment;
        s->job->environment->listener = -1;
    }
    lksi_notice_board_create(&s->environment.board, s->job->first_rank, s->job->n_ranks);
    return LKS_OK;
}

static lks_status get_signals(supervisor *s) {
    s->signals = s->job->signals;
    if (s->signals != NULL) return LKS_OK;
    s->signals = &s->own_signals;
    return lksi_signalfd_open(s->signals, s->job->argv != NULL);
}

static lks_status run_job(supervisor *s) {
    lks_status status;
    s->processes = lksi_alloc_array((size_t)s->n_processes, sizeof *s->processes);
    if (s->processes == NULL) return LKS_ERR_MEMORY;
    LKS_TRY_GOTO(lksi_output_create(&s->output, s->job, true), free_processes);
    s->polled = lksi_alloc_array(POLLED_OUTPUT + (size_t)lksi_output_poll_count(s->output), sizeof *s->polled);
    if (s->polled == NULL) {
        status = LKS_ERR_MEMORY;
        goto destroy_output;
    }
    LKS_TRY_GOTO(get_environment(s), free_polled);
    LKS_TRY_GOTO(get_signals(s), let_go_of_port);
    s->adopts_orphans = s->job->argv != NULL && lksi_orphans_adopt();
    LKS_TRY_GOTO(lksi_guard_start(&s->guard, s->processes, s->n_processes, s->adopts_orphans), give_back_signals);
    status = start_and_watch(s);
    lksi_guard_stop(&s->guard);
give_back_signals:
    if (s->adopts_orphans) lksi_orphans_end();
    if (s->signals == &s->own_signals) lksi_signalfd_close(s->signals);
let_go_of_port:
    lksi_rank_environment_let_go(&s->environment);
    lksi_notice_board_destroy(&s->environment.board);
free_polled:
    lksi_free(s->polled);
destroy_output:
    lksi_output_destroy(s->output);
free_processes:
    lksi_free(s->processes);
    return status;
}

lks_status lksi_supervise(const lksi_job *job, lksi_end *end) {
    supervisor s = {.job = job,
                    .n_processes = job->as_threads ? 1 : job->n_ranks,
                    .asked_at = NEVER,
                    .term_at = NEVER,
                    .kill_at = NEVER,
                    .timeout_at = NEVER,
                    .exit_status = 1};
    lks_status status = run_job(&s);
    *end = (lksi_end){.exit_status = s.exit_status, .forwarded_signal = s.forwarded_signal};
    if (job->argv == NULL && s.forwarded_signal != 0) raise(s.forwarded_signal);
    return status;
}
