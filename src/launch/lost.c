/* A process that tells ranks which still wait for each other of one that has ended: see comm/bootstrap/lost_rank.h. It
 * is not the supervisor itself, which waits for nothing but one poll. */
#define _GNU_SOURCE /* prctl */
#include "comm/bootstrap/lost_rank.h"

#include "launch/launch_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* It keeps its number until the launcher ends it. */
static _Noreturn void tell(const lksi_job *job, const lksi_rank_environment *environment, const lksi_process *processes,
                           int index, pid_t launcher) {
    int nothing = open("/dev/null", O_WRONLY);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != launcher || nothing < 0) _exit(1);
    dup2(nothing, STDERR_FILENO); /* what it has to say of strangers, ranks say, too */
    lksi_rank_environment_apply(environment, job, index);
    lksi_lost_rank_tell((int)processes[index].pid, job->first_rank == 0 ? (int)processes[0].pid : 0,
                        lksi_now_ns() + lksi_grace_ms(job) * 1000000);
    for (;;) pause();
}

pid_t lksi_lost_start(const lksi_job *job, const lksi_rank_environment *environment, const lksi_process *processes,
                      int index) {
    const pid_t launcher = getpid(), child = job->as_threads ? 0 : fork();
    if (child == 0 && !job->as_threads) tell(job, environment, processes, index, launcher);
    return child > 0 ? child : 0;
}

void lksi_lost_stop(pid_t child) {
    if (child == 0 || waitpid(child, NULL, WNOHANG) != 0) return; /* somebody has ended it: the number is not its own */
    kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
}
