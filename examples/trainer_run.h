/* The loop that the trainers among the examples share: steps, progress, evaluation, summary. */
#ifndef TRAINER_RUN_H
#define TRAINER_RUN_H

#include "trainer_flags.h"

/* What an example hands over once its model and its data stand. */
typedef struct trainer_job {
    const char *name; /* of the example */
    lks_group *group;
    lks_device *device;
    lks_node *loss, *logits, *features, *labels;
    lks_optimizer optimizer;
    lks_shard_mode shard;
    lks_dataset *train_set, *test_set;
    int64_t report_every; /* steps between lines with train and test loss; 0: a line per epoch */
} trainer_job;

/* Joins the world and settles the command line: one rank speaks for all. Returns 0 to go on; else the exit code is in
 * *exit_code (0 after --help) and `group` is NULL. */
int trainer_begin(const trainer_flags *flags, const trainer_flag *own, char **argv, lks_group **group, int *exit_code);

/* Whether `status` is LKS_OK on all ranks. Where it is not, the lowest rank that failed prints its error. Collective.
 */
int trainer_all_ok(lks_group *group, lks_status status);

/* Trains and reports. Returns an exit code. Collective. */
int trainer_run(const trainer_job *job, const trainer_flags *flags);

#endif
