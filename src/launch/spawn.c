/* lks_spawn: starts ranks from within a program, as threads that share a world or as forked processes. */
#include "comm/comm.h"
#include "launch/launch_internal.h"

#include <dirent.h>

static lks_status count_threads(int *n_threads) {
    DIR *directory = opendir("/proc/self/task");
    if (directory == NULL) return lksi_error_errno("cannot count the threads of this process in /proc/self/task");
    *n_threads = 0;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory))
        if (entry->d_name[0] != '.') ++*n_threads;
    closedir(directory);
    return LKS_OK;
}

/* A joined thread is still listed until the kernel has removed it. This waits for that, but only for a limited time. */
static lks_status count_lasting_threads(int *n_threads) {
    static const int64_t patience_ns = 200 * LKSI_NS_PER_MS, pause_ns = LKSI_NS_PER_MS;
    const int64_t give_up_ns = lksi_now_ns() + patience_ns;
    for (;;) {
        LKS_TRY(count_threads(n_threads));
        if (*n_threads == 1 || lksi_now_ns() > give_up_ns) return LKS_OK;
        lksi_sleep_ns(pause_ns);
    }
}

/* fork copies only the calling thread. Locks held by other threads stay locked in the child for ever, and OpenMP waits
 * for a team that does not exist. */
static lks_status spawn_processes(int n_ranks, int (*function)(void *argument), void *argument) {
    int n_threads = 0;
    lksi_end end;
    LKS_TRY(count_lasting_threads(&n_threads));
    if (n_threads > 1)
        return lksi_error(LKS_ERR_STATE,
                          "lks_spawn with processes needs a process with one thread, this one has %d threads "
                          "(devices and groups may start some)",
                          n_threads);
    return lksi_supervise(&(lksi_job){.n_ranks = n_ranks, .function = function, .argument = argument}, &end);
}

typedef struct call {
    int (*function)(void *argument);
    void *argument;
} call;

static int run_call(void *opaque, int rank) {
    const call *c = opaque;
    (void)rank; /* lks_init finds the rank */
    return c->function(c->argument);
}

lks_status lks_spawn(int n_ranks, lks_spawn_mode mode, int (*function)(void *argument), void *argument) {
    if (n_ranks < 1 || n_ranks > LKSI_MAX_RANKS)
        return lksi_error(LKS_ERR_ARGUMENT, "lks_spawn: %d ranks is outside 1..%d", n_ranks, LKSI_MAX_RANKS);
    if (function == NULL) return lksi_error(LKS_ERR_ARGUMENT, "lks_spawn: function is NULL");
    if (mode == LKS_PROCESSES) return spawn_processes(n_ranks, function, argument);
    if (mode != LKS_THREADS) return lksi_error(LKS_ERR_ARGUMENT, "lks_spawn: mode %d is unknown", (int)mode);
    int exit_status;
    return lksi_rank_threads_run(n_ranks, run_call, &(call){function, argument}, 0, &exit_status);
}
