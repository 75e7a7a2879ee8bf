/* Descendants whose parents have ended. The launcher is their subreaper and becomes their parent. At the end of a job
 * it can thus find and kill those that left their rank's process group too. It also leaves no zombies in a container
 * whose process 1 does not reap. After the launcher was killed, the guard finds them by their environment. */
#define _GNU_SOURCE /* getdelim, readlink */
#include "launch/launch_internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
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
        /* A rank that has just ended. Its SIGCHLD is pending, and the supervisor needs its status. */
        for (int i = 0; i < n_processes; i++)
            if (processes[i].is_running && processes[i].pid == info.si_pid) return;
        waitpid(info.si_pid, NULL, 0);
    }
}

/* Kills all children. Returns one of them. 0: there is none. */
static pid_t kill_children(void) {
    DIR *directory = opendir("/proc");
    if (directory == NULL) return 0;
    pid_t found = 0;
    const pid_t self = getpid();
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        int64_t pid;
        lksi_process_stat stat;
        if (!lksi_parse_i64(entry->d_name, 1, INT32_MAX, &pid) || !lksi_process_read_stat((pid_t)pid, &stat) ||
            stat.parent != self)
            continue;
        kill((pid_t)pid, SIGKILL);
        found = (pid_t)pid;
    }
    closedir(directory);
    return found;
}

/* Reaps children that have ended. Returns false if no child is left. */
static bool reap_ended(bool *is_any) {
    pid_t ended;
    *is_any = false;
    while ((ended = waitpid(-1, NULL, WNOHANG)) > 0) *is_any = true;
    return ended == 0;
}

/* Repeats, because the children of a killed process become children of this one. A process that has changed its user,
 * or waits for a disk, cannot be killed. */
void lksi_orphans_end(void) {
    static const int64_t patience_ns = 2000 * LKSI_NS_PER_MS, pause_ns = LKSI_NS_PER_MS;
    int64_t give_up_ns = lksi_now_ns() + patience_ns;
    bool is_any;
    while (reap_ended(&is_any)) {
        if (is_any) give_up_ns = lksi_now_ns() + patience_ns;
        const pid_t left = kill_children();
        if (lksi_now_ns() > give_up_ns) {
            lksi_log(LKS_LOG_WARNING, "process %d, which the ranks left behind, cannot be killed", (int)left);
            break;
        }
        lksi_sleep_ns(pause_ns);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

/* --- after the launcher was killed --- */

/* Numbers of processes mean nothing in another namespace, as that of a container. */
static bool is_in_own_namespace(int pid) {
    char path[64], own[64] = "", other[64] = "";
    snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
    return readlink("/proc/self/ns/pid", own, sizeof own - 1) > 0 && readlink(path, other, sizeof other - 1) > 0 &&
           strcmp(own, other) == 0;
}

static bool is_guard(int pid) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    name[fread(name, 1, sizeof name - 1, file)] = '\0';
    fclose(file);
    return strcmp(name, LKSI_GUARD_NAME "\n") == 0;
}

static bool has_variable(int pid, const char *assignment) {
    char path[64], *each = NULL;
    size_t each_nbytes = 0;
    bool has_it = false;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    while (!has_it && getdelim(&each, &each_nbytes, '\0', file) > 0) has_it = strcmp(each, assignment) == 0;
    fclose(file);
    free(each);
    return has_it;
}

/* Guards of launchers that ran in ranks have processes to end, too. */
static bool kill_those_with(const char *assignment) {
    DIR *directory = opendir("/proc");
    bool is_any = false;
    if (directory == NULL) return false;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        int64_t number;
        if (!lksi_parse_i64(entry->d_name, 1, INT32_MAX, &number)) continue;
        const int pid = (int)number;
        if (!has_variable(pid, assignment) || !is_in_own_namespace(pid) || is_guard(pid)) continue;
        if (kill(pid, SIGKILL) == 0) is_any = true;
    }
    closedir(directory);
    return is_any;
}

/* Repeats, because they may fork meanwhile. */
void lksi_orphans_end_of(pid_t launcher) {
    static const int64_t patience_ns = 2000 * LKSI_NS_PER_MS, pause_ns = LKSI_NS_PER_MS;
    const int64_t give_up_ns = lksi_now_ns() + patience_ns;
    char assignment[64];
    snprintf(assignment, sizeof assignment, "LOCKSTEP_LAUNCHER_PID=%d", (int)launcher);
    while (kill_those_with(assignment) && lksi_now_ns() < give_up_ns) lksi_sleep_ns(pause_ns);
}
