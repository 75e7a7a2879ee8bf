/* Ranks as threads of this process. */
#define _GNU_SOURCE /* on_exit */
#include "base/timeline.h"
#include "comm/comm.h"
#include "launch/launch_internal.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* --- signals: those of the process go to its first thread, those that a rank's code causes go to the rank --- */

static _Thread_local const sigset_t *mask_of_children; /* in a rank: the signal mask from before the ranks started */

static void set_mask_in_child(void) {
    if (mask_of_children != NULL) pthread_sigmask(SIG_SETMASK, mask_of_children, NULL);
}

/* Unblocks SIGPIPE, so that a rank that writes to a closed pipe ends as a process would. */
static void take_signals_of_own(const sigset_t *callers_mask) {
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, SIGPIPE);
    if (sigismember(callers_mask, SIGPIPE) == 0) pthread_sigmask(SIG_UNBLOCK, &own, NULL);
    mask_of_children = callers_mask;
}

/* --- the end of the process while ranks are at work --- */

enum { LOCKED_OUTPUT = 1, FLUSHED_OUTPUT, FLUSHED_ALL };

static void flush_all(void *progress) {
    flockfile(stdout);
    atomic_store((atomic_int *)progress, LOCKED_OUTPUT);
    fflush(stdout);
    funlockfile(stdout);
    atomic_store((atomic_int *)progress, FLUSHED_OUTPUT);
    fflush(NULL);
    lksi_timeline_flush();
    atomic_store((atomic_int *)progress, FLUSHED_ALL);
}

/* A rank that writes to a full pipe holds the lock of stdout until somebody reads. */
static bool has_reader_paused(void) {
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&output, 1, 0) == 0;
}

/* Returns false if the flush has not come so far in `patience_ns`, in which no reader of stdout paused. */
static bool await_flush(const atomic_int *progress, int goal, int64_t patience_ns) {
    int64_t give_up_ns = lksi_now_ns() + patience_ns;
    while (atomic_load(progress) < goal) {
        if (has_reader_paused()) give_up_ns = lksi_now_ns() + patience_ns;
        if (lksi_now_ns() >= give_up_ns) return false;
        lksi_sleep_ns(LKSI_NS_PER_MS);
    }
    return true;
}

/* Flushes from another thread and stops waiting after a time. Flushing locks every file, and a rank that uses a file
 * may hold its lock for ever. stdout gets more time. Once its lock is held, it is waited for without a limit, as at the
 * end of any process. */
static bool flush_in_time(void) {
    static atomic_int progress;
    lksi_thread *thread = NULL;
    if (lksi_thread_create(&thread, flush_all, &progress, "flush") != LKS_OK ||
        !await_flush(&progress, LOCKED_OUTPUT, 2000 * LKSI_NS_PER_MS))
        return false;
    while (atomic_load(&progress) < FLUSHED_OUTPUT) lksi_sleep_ns(LKSI_NS_PER_MS);
    if (!await_flush(&progress, FLUSHED_ALL, 500 * LKSI_NS_PER_MS)) return false;
    lksi_thread_join(thread);
    return true;
}

/* Ends the process from one of its rank threads, whatever the others are doing. */
_Noreturn static void end_process(int exit_status) {
    (void)flush_in_time();
    _exit(exit_status);
}

static _Thread_local int current_rank = -1; /* set in a rank thread while its function runs */

static void be_no_rank(void) { current_rank = -1; }

/* Runs at exit. A rank that calls exit ends the process while the other ranks are at work, so this reports it. If a
 * rank holds the lock of a file, such as stdin, it does not return: the C library would wait for that lock. */
static void name_rank_that_exits(int exit_status, void *nothing) {
    (void)nothing;
    if (current_rank < 0) return;
    (void)lksi_error(LKS_ERR_PEER, "rank %d called exit, which ends the threads of all ranks", current_rank);
    (void)lks_report(LKS_ERR_PEER, NULL, 0);
    lksi_announce(LKSI_THREADS_END);
    if (exit_status == 0) end_process(1); /* the other ranks have not succeeded */
    if (!flush_in_time()) _exit(exit_status);
}

/* --- the ranks --- */

typedef struct threads_job {
    int (*function)(void *argument, int rank);
    void *argument;
    lksi_thread_world *world;
    atomic_int first_failed; /* rank + 1; 0: none */
    atomic_int n_running;
    sigset_t callers_mask;
    int64_t grace_ms; /* how long the others may continue after a failure before the process ends; 0: no limit */
} threads_job;

typedef struct rank_thread {
    threads_job *job;
    lksi_thread *thread;
    int rank, result;
} rank_thread;

static lks_status failure_of(int rank, int exit_status) {
    char host[256];
    lksi_host_name(host, sizeof host);
    return lksi_error(LKS_ERR_PEER, "rank %d (a thread of pid %d on %s) exited with status %d", rank, (int)getpid(),
                      host, exit_status);
}

/* A thread cannot be ended from outside. If another rank does not finish within the grace, the process ends. */
static void end_the_rest(threads_job *job, const rank_thread *failed) {
    int64_t limit_ns = lksi_now_ns() + job->grace_ms * LKSI_NS_PER_MS;
    while (atomic_load(&job->n_running) > 0) {
        if (lksi_now_ns() > limit_ns) {
            (void)lks_report(failure_of(failed->rank, lksi_exit_code(failed->result)), NULL, 0);
            lksi_announce(LKSI_THREADS_END);
            end_process(lksi_exit_code(failed->result));
        }
        lksi_sleep_ns(10 * LKSI_NS_PER_MS);
    }
}

static void run_rank(void *opaque) {
    rank_thread *mine = opaque;
    threads_job *job = mine->job;
    take_signals_of_own(&job->callers_mask);
    lksi_thread_world_enter(job->world, mine->rank);
    current_rank = mine->rank;
    mine->result = job->function(job->argument, mine->rank);
    current_rank = -1;
    /* Set before the other ranks can learn of the failure, because their failures follow from it. */
    bool is_first = mine->result != 0 && atomic_compare_exchange_strong(&job->first_failed, &(int){0}, mine->rank + 1);
    lksi_thread_world_leave(job->world, mine->result);
    atomic_fetch_sub(&job->n_running, 1);
    if (is_first && job->grace_ms > 0) end_the_rest(job, mine);
}

/* Ranks that have started may already wait for the others. The ranks that could not be started enter and leave as lost.
 */
static void abandon_from(threads_job *job, int rank, int n_ranks) {
    for (; rank < n_ranks; rank++) {
        lksi_thread_world_enter(job->world, rank);
        lksi_thread_world_leave(job->world, 1);
        atomic_fetch_sub(&job->n_running, 1);
    }
}

static lks_status run_all(threads_job *job, rank_thread *ranks, int n_ranks) {
    lks_status status = LKS_OK;
    int n_started = 0;
    atomic_store(&job->n_running, n_ranks); /* before the first rank can fail */
    for (; n_started < n_ranks && status == LKS_OK; n_started += status == LKS_OK) {
        char name[24];
        snprintf(name, sizeof name, "rank %d", n_started);
        ranks[n_started] = (rank_thread){.job = job, .rank = n_started};
        status = lksi_thread_create(&ranks[n_started].thread, run_rank, &ranks[n_started], name);
    }
    char reason[LKSI_ERROR_TEXT_NBYTES]; /* the error text is this thread's, and abandoning ranks may overwrite it */
    lksi_error_keep(reason);
    abandon_from(job, n_started, n_ranks);
    for (int rank = 0; rank < n_started; rank++) lksi_thread_join(ranks[rank].thread);
    return status == LKS_OK ? LKS_OK : lksi_error(status, "%s", reason);
}

static void prepare_process(void) {
    (void)pthread_atfork(NULL, NULL, set_mask_in_child);
    (void)pthread_atfork(NULL, NULL, be_no_rank);
    (void)on_exit(name_rank_that_exits, NULL);
}

lks_status lksi_rank_threads_run(int n_ranks, int (*function)(void *argument, int rank), void *argument,
                                 int64_t grace_ms, int *exit_status) {
    static pthread_once_t process_once = PTHREAD_ONCE_INIT;
    threads_job job = {.function = function, .argument = argument, .grace_ms = grace_ms};
    *exit_status = 1;
    pthread_once(&process_once, prepare_process);
    pthread_sigmask(SIG_SETMASK, NULL, &job.callers_mask);
    rank_thread *ranks = lksi_alloc_array((size_t)n_ranks, sizeof *ranks);
    if (ranks == NULL) return LKS_ERR_MEMORY;
    lks_status status;
    LKS_TRY_GOTO(lksi_thread_world_create(&job.world, n_ranks), free_ranks);
    LKS_TRY_GOTO(run_all(&job, ranks, n_ranks), destroy_world);
    int failed = atomic_load(&job.first_failed) - 1;
    *exit_status = failed < 0 ? 0 : lksi_exit_code(ranks[failed].result);
    if (failed >= 0) status = failure_of(failed, *exit_status);
destroy_world:
    lksi_thread_world_destroy(job.world);
free_ranks:
    lksi_free(ranks);
    return status;
}
