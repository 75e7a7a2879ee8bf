/* The guard: a small process that outlives a killed launcher.
 *
 * The kernel kills the ranks when their launcher dies (PR_SET_PDEATHSIG), but not the processes that the ranks have
 * started. The guard holds one end of a socket. When the launcher's death closes the other end, the guard kills the
 * process groups that were entered and not forgotten, and the orphans. After a normal end none are left, and it exits.
 * It is started before the first rank, and each rank enters its own group before it runs anything, so there is no gap.
 */
#define _GNU_SOURCE /* syscall, SOCK_CLOEXEC */
#include "launch/launch_internal.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct message {
    int index;
    pid_t pid; /* 0: forget the entry */
} message;

/* Keeps only `kept`, as descriptor 0. The guard must not hold the launcher's output open, because a reader would wait
 * for its end. */
static void close_all_but(int kept) {
    dup2(kept, 0);
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 1u, ~0u, 0u) == 0) return;
#endif
    for (int descriptor = 1; descriptor < 4096; descriptor++) close(descriptor);
}

/* `processes` is the guard's own copy after the fork. `launcher` is the one whose orphans are ended; 0: none are. */
static _Noreturn void keep_guard(int descriptor, lksi_process *processes, int n_processes, pid_t launcher) {
    setsid(); /* SIGINT from the terminal is for the launcher; the inherited signal mask blocks the rest */
    prctl(PR_SET_NAME, LKSI_GUARD_NAME);
    close_all_but(descriptor);
    for (;;) {
        message received;
        ssize_t n_read = read(0, &received, sizeof received);
        if (n_read < 0 && errno == EINTR) continue;
        if (n_read != sizeof received) break;
        processes[received.index] = (lksi_process){.pid = received.pid, .is_running = received.pid != 0};
    }
    for (int i = 0; i < n_processes; i++)
        if (processes[i].is_running) kill(-processes[i].pid, SIGKILL);
    if (launcher != 0) lksi_orphans_end_of(launcher);
    _exit(0);
}

lks_status lksi_guard_start(lksi_guard *guard, lksi_process *processes, int n_processes, bool ends_orphans) {
    const pid_t launcher = getpid();
    int ends[2];
    /* SEQPACKET preserves message boundaries: a message arrives complete or not at all. */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return lksi_error_errno("cannot make a socket for the guard process");
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        keep_guard(ends[1], processes, n_processes, ends_orphans ? launcher : 0);
    }
    lks_status status = pid > 0 ? LKS_OK : lksi_error_errno("cannot start the guard process");
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return status;
    }
    guard->pid = pid;
    guard->descriptor = ends[0];
    return LKS_OK;
}

/* Sending fails only if the guard was killed. The job then continues without it. */
static void tell(const lksi_guard *guard, message told) {
    ssize_t n_sent = send(guard->descriptor, &told, sizeof told, MSG_NOSIGNAL);
    (void)n_sent;
}

void lksi_guard_enter(const lksi_guard *guard, int index) { tell(guard, (message){.index = index, .pid = getpid()}); }
void lksi_guard_forget(const lksi_guard *guard, int index) { tell(guard, (message){.index = index}); }

void lksi_guard_stop(lksi_guard *guard) {
    close(guard->descriptor);
    kill(guard->pid, SIGKILL); /* it has nothing left to do, and would never exit if it was stopped */
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR) continue;
}
