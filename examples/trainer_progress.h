/* What the files of the trainers' loop share: where the run is, and what it has measured. */
#ifndef TRAINER_PROGRESS_H
#define TRAINER_PROGRESS_H

#include "trainer_run.h"

#include <stdio.h>

enum { TRAINER_WARM_UP_STEPS = 20 }; /* not counted in the step time */

typedef struct trainer_progress {
    const trainer_job *job;
    const trainer_flags *flags;
    const trainer_source *source;
    lks_trainer *trainer;
    int is_speaker, is_terminal;
    int64_t first_step, step, n_steps; /* of the whole training; a resumed run begins at first_step */
    int64_t epoch, n_epochs;
    double *step_us; /* of the steps of this run */
    double began_s, shown_s;
    double epoch_s;                /* of the last whole epoch */
    double spent_s;                /* in the last epoch by this run, which may have begun or ended within it */
    double loss_sum, accuracy_sum; /* over the steps since the last report */
    int64_t n_summed, n_samples;
    lks_metrics last;                    /* of the last step */
    lks_metrics train, validation, test; /* as last reported */
    FILE *metrics;                       /* metrics.jsonl, or NULL */
    int output_errno;                    /* why standard output could not be written, or 0 */
} trainer_progress;

double trainer_now_s(void);

/* --- the source over data sets (trainer_source.c) --- */

lks_status trainer_source_create(trainer_source *source, const trainer_job *job, const trainer_flags *flags);
void trainer_source_destroy(trainer_source *source); /* accepts one that was never created */

/* --- reports (trainer_report.c) --- */

/* Which of the measurements a report is about, as bits. */
enum { TRAINER_HAS_TRAIN = 1, TRAINER_HAS_VALIDATION = 2, TRAINER_HAS_TEST = 4 };

/* Counts one step's metrics and shows the live line. */
void trainer_report_step(trainer_progress *p, const lks_metrics *metrics, double elapsed_us);
/* The means over the steps since the last report. */
lks_metrics trainer_take_train_metrics(trainer_progress *p);
/* The line of a report by steps, and that of an epoch. */
void trainer_report_steps_line(trainer_progress *p);
void trainer_report_epoch_line(trainer_progress *p);
/* A line of metrics.jsonl. */
void trainer_report_metrics(trainer_progress *p, int has);
/* The last line. */
void trainer_report_end(trainer_progress *p, const char *params_sha256, double wall_s);
/* The kernels of a training step, where the command line asks for them. */
void trainer_report_program(trainer_progress *p);
/* Opens metrics.jsonl where the command line asks for it. Returns 0 after an error, which it prints. */
int trainer_metrics_open(trainer_progress *p);
/* Closes it. Returns 0 where it or standard output could not take all lines, which it prints. */
int trainer_outputs_close(trainer_progress *p);

/* --- checkpoints (trainer_checkpoint.c), collective --- */

/* Weights or a whole state to begin with, where the command line names any. */
lks_status trainer_checkpoint_begin(trainer_progress *p);
/* Where the command line asks for it. */
lks_status trainer_checkpoint_save(trainer_progress *p);

/* --- the summary (trainer_summary.c) --- */

/* Writes it; 0, or 1 after an error, which it prints. */
int trainer_summary_write(const trainer_progress *p, const char *params_sha256, double wall_s);

#endif
