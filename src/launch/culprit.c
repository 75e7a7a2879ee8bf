/* Finds the rank that failed first.
 *
 * A rank's connections close while it exits, before the kernel tells its parent. Other ranks can notice this, fail and
 * exit earlier, so the order in which children are reaped is not the order in which they failed. Two measures help. A
 * rank announces its end to the launcher before anything of it closes, with a queued signal; queued signals arrive in
 * order. And when a rank fails because another one was killed, the killed rank is already exiting. The launcher
 * therefore waits briefly until such a rank is a zombie, and treats a killed rank as the cause. */
#define _GNU_SOURCE /* sigqueue */
#include "launch/launch_internal.h"

#include <stdlib.h>
#include <unistd.h>

void lksi_announce(lksi_announcement announcement) {
    const char *text = getenv("LOCKSTEP_LAUNCHER_PID");
    int64_t launcher;
    /* Any other process, such as a shell between this one and the launcher, would be killed by the signal. */
    if (text == NULL || !lksi_parse_i64(text, 1, INT32_MAX, &launcher) || launcher != getppid()) return;
    (void)sigqueue((pid_t)launcher, LKSI_SIGNAL_ANNOUNCED, (union sigval){.sival_int = (int)announcement});
}

bool lksi_process_any_is_exiting(const lksi_process *processes, int n_processes) {
    lksi_process_stat stat;
    for (int i = 0; i < n_processes; i++)
        if (processes[i].is_running && lksi_process_read_stat(processes[i].pid, &stat) && stat.is_exiting) return true;
    return false;
}

/* Order: killed before exited, announced before unannounced, then by the announcement or by the order of reaping. */
static bool failed_before(const lksi_process *a, const lksi_process *b) {
    const bool a_was_killed = a->end.si_code != CLD_EXITED, b_was_killed = b->end.si_code != CLD_EXITED;
    if (a_was_killed != b_was_killed) return a_was_killed;
    if (!a_was_killed && (a->n_announced != 0 || b->n_announced != 0)) {
        if (a->n_announced == 0 || b->n_announced == 0) return a->n_announced != 0;
        return a->n_announced < b->n_announced;
    }
    return a->n_reaped < b->n_reaped;
}

/* Status 0 is a failure if a thread called _exit(0) while rank threads had not finished. */
static bool has_failed(const lksi_process *process) {
    const bool has_exited_well = process->end.si_code == CLD_EXITED && process->end.si_status == 0;
    return process->n_reaped != 0 && (!has_exited_well || process->has_rank_threads);
}

int lksi_process_first_failed(const lksi_process *processes, int n_processes) {
    int first = -1;
    for (int i = 0; i < n_processes; i++) {
        const lksi_process *each = &processes[i];
        if (!has_failed(each)) continue;
        if (first < 0 || failed_before(each, &processes[first])) first = i;
    }
    return first;
}
