/* Runs generations of ranks one after the other on this machine. */
#include "launch/launch_internal.h"

#include <signal.h>

/* Exit statuses that a restart would only repeat: a wrong command line (2 by convention), and a closed output pipe. */
enum { EXIT_USAGE = 2, EXIT_UNREAD = LKSI_EXIT_SIGNAL + SIGPIPE };

bool lksi_end_is_worth_a_restart(lks_status status, const lksi_end *end) {
    if (status != LKS_ERR_PEER || end->forwarded_signal != 0) return false;
    return end->exit_status != EXIT_USAGE && end->exit_status != EXIT_UNREAD &&
           end->exit_status != LKSI_EXIT_NOT_EXECUTABLE && end->exit_status != LKSI_EXIT_NOT_FOUND;
}

static void say(const lksi_job *job, int generation, int n_left) {
    char text[128];
    snprintf(text, sizeof text, "generation %d of %d rank%s follows; restarts left: %d", generation, job->n_ranks,
             job->n_ranks == 1 ? "" : "s", n_left);
    if (job->report != NULL) job->report(job->report_argument, &(lksi_failure){.text = text, .last_lines = ""});
}

lks_status lksi_supervise_generations(const lksi_job *job, int max_restarts, lksi_end *end) {
    lksi_signalfd signals = {.descriptor = -1};
    lksi_job current = *job;
    current.began_ns = lksi_now_ns(); /* the timeout covers all generations */
    if (max_restarts == 0) return lksi_supervise(job, end);
    *end = (lksi_end){.exit_status = 1};
    /* Taken for the whole run: a signal that arrives between two generations ends the next one. */
    LKS_TRY(lksi_signalfd_open(&signals, job->argv != NULL));
    current.signals = &signals;
    lks_status status;
    for (;; current.generation++) {
        const int n_left = max_restarts - current.generation;
        status = lksi_supervise(&current, end);
        if (!lksi_end_is_worth_a_restart(status, end) || n_left == 0) break;
        say(job, current.generation + 1, n_left - 1);
    }
    lksi_signalfd_close(&signals);
    return status;
}
