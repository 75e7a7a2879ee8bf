/* What the files of the trainers' loop share: where the run is, and what it has measured. */
#ifndef TRAINER_PROGRESS_H
#define TRAINER_PROGRESS_H

#include "trainer_run.h"

#include <stdio.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        lks_status try_status = (call);                                                                                \
        if (try_status != LKS_OK) return try_status;                                                                   \
    } while (0)

enum {
    TRAINER_WARM_UP_STEPS = 20,   /* not counted in the step time */
    TRAINER_MOST_TIMES = 1 << 20, /* of the last steps; a run may go on for weeks */
};

typedef struct trainer_progress {
    const trainer_job *job;
    const trainer_flags *flags;
    const trainer_source *source;
    lks_trainer *trainer;
    lks_checkpointer *checkpointer; /* NULL without --checkpoint-every */
    char resumed_from[4096];        /* the checkpoint that this run went on from; empty: none */
    int stop;                       /* the signal that ends the run before its last step; 0: none */
    int is_speaker, is_terminal;
    int64_t first_step, step, n_steps; /* of the whole training; a resumed run begins at first_step */
    int64_t epoch, n_epochs;
    double *step_us; /* of the last n_times steps of this run, its step i at i mod n_times */
    int64_t n_times;
    double began_s, shown_s;
    double epoch_s;                /* of the last whole epoch */
    double spent_s;                /* in the last epoch by this run, which may have begun or ended within it */
    double loss_sum, accuracy_sum; /* over the steps since the last report */
    int64_t n_summed, n_samples;
    lks_metrics last;                    /* of the last step */
    lks_metrics train, validation, test; /* as last reported */
    FILE *metrics;                       /* metrics.jsonl, or NULL */
    int are_metrics_told;                /* it has the last figures of the run that this one goes on from */
    int metrics_errno;                   /* why it could not be written, or 0 */
    int output_errno;                    /* why standard output could not be written, or 0 */
} trainer_progress;

double trainer_now_s(void);

/* --- the source over data sets (trainer_source.c) --- */

lks_status trainer_source_create(trainer_source *source, const trainer_job *job, const trainer_flags *flags);
void trainer_source_destroy(trainer_source *source); /* accepts one that was never created */
/* Whether the test set may be measured by what the training set trains; where not, one rank says so. */
int trainer_sets_fit(const trainer_progress *p);

/* --- reports (trainer_report.c) --- */

/* Which of the measurements a report is about, as bits. */
enum { TRAINER_HAS_TRAIN = 1, TRAINER_HAS_VALIDATION = 2, TRAINER_HAS_TEST = 4 };

/* Counts one step's metrics and shows the live line. */
void trainer_report_step(trainer_progress *p, const lks_metrics *metrics, double elapsed_us);
/* The same of metrics that come behind a step. */
void trainer_count_metrics(trainer_progress *p, const lks_metrics *metrics);
/* The means over the steps since the last report. */
lks_metrics trainer_take_train_metrics(trainer_progress *p);
/* The line of a report by steps, and that of an epoch. */
void trainer_report_steps_line(trainer_progress *p);
void trainer_report_epoch_line(trainer_progress *p);
/* The last line. */
void trainer_report_end(trainer_progress *p, const char *params_sha256, double wall_s);
/* The kernels of a training step, where the command line asks for them. */
void trainer_report_program(trainer_progress *p);
/* Where the run was resumed; or that it begins anew, --quiet or not. */
void trainer_report_resumed(trainer_progress *p);
/* The last line of a run that a signal ends; `checkpoint` may be NULL. */
void trainer_report_stop(trainer_progress *p, const char *checkpoint);
/* Returns 0 where standard output could not take all lines, which it prints. */
int trainer_output_end(trainer_progress *p);

/* --- metrics.jsonl (trainer_metrics.c) --- */

/* Opens it where the command line asks for it; a resumed run goes on behind the lines up to the step that it begins at.
 * Returns 0 after an error, which it prints. */
int trainer_metrics_open(trainer_progress *p);
/* A line. */
void trainer_metrics_report(trainer_progress *p, int has);
/* Returns 0 where it could not take all lines, which it prints. */
int trainer_metrics_close(trainer_progress *p);

/* --- checkpoints (trainer_checkpoint.c), collective but for the last two --- */

/* Weights or a whole state to begin with, where the command line names any or the run was restarted. */
lks_status trainer_checkpoint_begin(trainer_progress *p);
int trainer_checkpoint_exit_code(lks_status status); /* of a run where that failed so */
/* After a step, and what is reported of it: --checkpoint-every. */
lks_status trainer_checkpoint_step(trainer_progress *p);
/* --save, where the command line asks for it. */
lks_status trainer_checkpoint_save(trainer_progress *p);
/* Of this moment, whatever the command line asks for: a signal ends the run. */
lks_status trainer_checkpoint_stop(trainer_progress *p);
/* At the end: one of what was trained, where the command line asks for some on the way; waits until it is written. */
lks_status trainer_checkpoint_finish(trainer_progress *p);
/* The last one that trainer_checkpoint_stop has written; NULL: none. */
const char *trainer_checkpoint_path(const trainer_progress *p);
/* Where --checkpoint-every writes. */
void trainer_checkpoint_directory(const trainer_flags *flags, char *directory, size_t nbytes);

/* --- signals (trainer_signals.c) --- */

/* From now on the first SIGTERM or SIGINT is noted, and another one ends the process. */
void trainer_signals_catch(void);
/* Its number; 0: none came. */
int trainer_signals_arrived(void);

/* --- the summary (trainer_summary.c) --- */

/* Writes it; 0, or 1 after an error, which it prints. */
int trainer_summary_write(const trainer_progress *p, const char *params_sha256, double wall_s);

#endif
