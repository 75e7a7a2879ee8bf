/* State that the files of the trainers' loop share: the progress of the run and its measurements. */
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
    TRAINER_WARM_UP_STEPS = 20,   /* excluded from the step time */
    TRAINER_MOST_TIMES = 1 << 20, /* limit, because a run may last for weeks; the last steps are kept */
};

typedef struct trainer_progress {
    const trainer_job *job;
    const trainer_flags *flags;
    const trainer_source *source;
    lks_trainer *trainer;
    lks_checkpointer *checkpointer;           /* NULL without --checkpoint-every */
    char resumed_from[4096];                  /* the checkpoint that this run was resumed from; empty: none */
    char own_flags[TRAINER_OWN_FLAGS_NBYTES]; /* see trainer_flags_own */
    int stop;                                 /* the signal that ends the run early; 0: none */
    int is_speaker, is_terminal;
    int64_t first_step, step, n_steps; /* in the whole training; a resumed run begins at first_step */
    int64_t epoch, n_epochs;
    double *step_us; /* times of the last n_times steps of this run; step i is at i mod n_times */
    int64_t n_times;
    double began_s, shown_s;
    double epoch_s;                /* time of the last whole epoch */
    double spent_s;                /* time of the last epoch in this run, which may be a part of an epoch */
    double loss_sum, accuracy_sum; /* over the steps since the last report */
    int64_t n_summed, n_samples;
    lks_metrics last;                    /* of the last step */
    lks_metrics train, validation, test; /* as last reported */
    FILE *metrics;                       /* metrics.jsonl, or NULL */
    int are_metrics_told;                /* the file already has the final line of the resumed run */
    int metrics_errno;                   /* errno of the first failed write, or 0 */
    int output_errno;                    /* errno of the first failed write to standard output, or 0 */
} trainer_progress;

double trainer_now_s(void);

/* --- data sets as the source of batches (trainer_source.c) --- */

lks_status trainer_source_create(trainer_source *source, const trainer_job *job, const trainer_flags *flags);
void trainer_source_destroy(trainer_source *source); /* accepts a source of zeros */
/* Whether the samples of test set and training set have the same size. If not, rank 0 reports it. */
int trainer_sets_fit(const trainer_progress *p);

/* --- reports (trainer_report.c) --- */

/* The measurements of a report, as bits. */
enum { TRAINER_HAS_TRAIN = 1, TRAINER_HAS_VALIDATION = 2, TRAINER_HAS_TEST = 4 };

/* Counts the metrics of a step and updates the live line. */
void trainer_report_step(trainer_progress *p, const lks_metrics *metrics, double elapsed_us);
/* Counts metrics that arrive after their step. */
void trainer_count_metrics(trainer_progress *p, const lks_metrics *metrics);
/* Returns the means over the steps since the last report. */
lks_metrics trainer_take_train_metrics(trainer_progress *p);
/* Print the line of a report by steps, and the line of an epoch. */
void trainer_report_steps_line(trainer_progress *p);
void trainer_report_epoch_line(trainer_progress *p);
/* Prints the final line. */
void trainer_report_end(trainer_progress *p, const char *params_sha256, double wall_s);
/* Prints the kernels of a training step, if the command line requests it. */
void trainer_report_program(trainer_progress *p);
/* Prints where the run was resumed, or, also with --quiet, that it starts from the beginning. */
void trainer_report_resumed(trainer_progress *p);
/* Prints the final line of a run that a signal ends. `checkpoint` may be NULL. */
void trainer_report_stop(trainer_progress *p, const char *checkpoint);
/* Returns 0 if output was lost, after reporting it. */
int trainer_output_end(trainer_progress *p);

/* --- metrics.jsonl (trainer_metrics.c) --- */

/* Opens the file if the command line requests it. A resumed run appends after the lines up to its first step. Returns 0
 * after an error, which it prints. */
int trainer_metrics_open(trainer_progress *p);
/* Writes a line. */
void trainer_metrics_report(trainer_progress *p, int has);
/* Returns 0 if lines were lost, after reporting it. */
int trainer_metrics_close(trainer_progress *p);

/* --- checkpoints (trainer_checkpoint.c). All functions are collective except the last two and ..._exit_code --- */

/* Loads weights or a checkpoint if the command line names one or the run was restarted. */
lks_status trainer_checkpoint_begin(trainer_progress *p);
int trainer_checkpoint_exit_code(lks_status status); /* exit code if trainer_checkpoint_begin failed with `status` */
/* --checkpoint-every. Call it after a step and after its report. */
lks_status trainer_checkpoint_step(trainer_progress *p);
/* --save, if it was given. */
lks_status trainer_checkpoint_save(trainer_progress *p);
/* Saves the present state because a signal ends the run. */
lks_status trainer_checkpoint_stop(trainer_progress *p);
/* At the end: saves the final state if --checkpoint-every was given, and waits until it is written. */
lks_status trainer_checkpoint_finish(trainer_progress *p);
/* The path of the last checkpoint, or that of --save. NULL: neither. */
const char *trainer_checkpoint_path(const trainer_progress *p);
/* The directory of --checkpoint-every. */
void trainer_checkpoint_directory(const trainer_flags *flags, char *directory, size_t nbytes);

/* --- signals (trainer_signals.c) --- */

/* From now on the first SIGTERM, SIGINT or SIGHUP is noted, and a later one ends the process. */
void trainer_signals_catch(void);
/* The number of the signal that was noted. 0: none. */
int trainer_signals_arrived(void);

/* --- the summary (trainer_summary.c) --- */

/* Writes the summary. Returns 0, or 1 after an error, which it prints. */
int trainer_summary_write(const trainer_progress *p, const char *params_sha256, double wall_s);

#endif
