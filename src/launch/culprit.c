/* Finds the rank that failed first.
 *
 * A rank's connections close while it exits, before the kernel tells its parent. Other ranks can notice this, fail and
 * exit earlier, so the order in which children are reaped is not the order in which they failed. Two measures help. A
 * rank announces its end to the launcher before anything of it closes, with a queued signal; queued signals arrive in
 * order. And when a rank fails because another one was killed or called _exit, which announces nothing, that one is
 * already exiting. The launcher therefore waits briefly until every rank that announced its end or is exiting is a
 * zombie, and treats one that announced nothing as the cause. */
#include "launch/launch_internal.h"

bool lksi_process_any_is_exiting(const lksi_process *processes, int n_processes) {
    lksi_process_stat stat;
    for (int i = 0; i < n_processes; i++) {
        const lksi_process *each = &processes[i];
        if (!each->is_running) continue;
        if (each->n_announced != 0 || (lksi_process_read_stat(each->pid, &stat) && stat.is_exiting)) return true;
    }
    return false;
}

/* Order: killed before exited, unannounced before announced, then by the announcement or by the order of reaping. */
static bool failed_before(const lksi_process *a, const lksi_process *b) {
    const bool a_was_killed = a->end.si_code != CLD_EXITED, b_was_killed = b->end.si_code != CLD_EXITED;
    if (a_was_killed != b_was_killed) return a_was_killed;
    if (!a_was_killed && a->n_announced != b->n_announced) return a->n_announced < b->n_announced; /* 0: unannounced */
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
