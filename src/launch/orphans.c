/* Descendants whose parents are gone. As their subreaper the launcher becomes their parent, so that at the end of a
 * job it can find and end even those that left their rank's process group, and leaves no zombie where process 1 of a
 * container does not reap. */
#include "launch/launch_internal.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

bool lksi_orphans_adopt(void) {
    siginfo_t info;
    bool has_children = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    return !has_children && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

void lksi_orphans_reap(const lksi_process *processes, int n_processes, pid_t guard) {
    for (;;) {
        siginfo_t info = {.si_pid = 0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
        if (info.si_pid == guard) return;
        /* A rank that ended just now: its own SIGCHLD is on the way, and its status is for the supervisor. */
        for (int i = 0; i < n_processes; i++)
            if (processes[i].is_running && processes[i].pid == info.si_pid) return;
        waitpid(info.si_pid, NULL, 0);
    }
}

static void kill_children(void) {
    DIR *directory = opendir("/proc");
    if (directory == NULL) return;
    const pid_t self = getpid();
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        int64_t pid;
        lksi_process_stat stat;
        if (lksi_parse_i64(entry->d_name, 1, INT32_MAX, &pid) && lksi_process_read_stat((pid_t)pid, &stat) &&
            stat.parent == self)
            kill((pid_t)pid, SIGKILL);
    }
    closedir(directory);
}

void lksi_orphans_end(void) {
    for (;;) {
        pid_t ended;
        do ended = waitpid(-1, NULL, WNOHANG);
        while (ended > 0);
        if (ended < 0) break; /* no child is left */
        kill_children();
        waitpid(-1, NULL, 0); /* one by one: the children of each become ours when it ends */
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}
