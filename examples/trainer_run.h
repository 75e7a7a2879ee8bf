/* The loop that the trainers among the examples share: steps, progress, evaluation, checkpoints, summary. */
#ifndef TRAINER_RUN_H
#define TRAINER_RUN_H

#include "trainer_flags.h"

/* Which part of the data to measure the model on. */
typedef enum trainer_split { TRAINER_TRAIN, TRAINER_VALIDATION, TRAINER_TEST } trainer_split;

/* Where batches come from and what the model is measured on. Data sets have one (trainer_source.c); who trains on
 * something else, a text say, fills one in. `context` is handed to each function; collective are those that take a
 * trainer, and they return the same on all ranks or make the group fail. */
typedef struct trainer_source {
    void *context;
    int64_t steps_per_epoch; /* the same on all ranks */
    int64_t global_batch;    /* samples of a whole step, over all ranks */
    uint64_t hash;           /* of all data: ranks that read the same have the same */
    uint64_t train_hash;     /* of what is trained on: a run is not resumed on something else */
    /* Goes to batch `step` of `epoch`, both from 0. The states of a model that has any are zeros where step is 0. */
    void (*seek)(void *context, int64_t epoch, int64_t step);
    /* This rank's part of the next global batch; 0 at the end of the epoch. */
    int (*next)(void *context, lks_batch *batch);
    lks_status (*evaluate)(void *context, lks_trainer *trainer, trainer_split split, lks_metrics *metrics);
} trainer_source;

/* What an example hands over once its model and its data stand. */
typedef struct trainer_job {
    const char *name; /* of the example */
    lks_group *group;
    lks_device *device;
    lks_node *loss, *logits, *features, *labels;
    const lks_state *states; /* what the model carries from step to step */
    int n_states;
    lks_optimizer optimizer;
    int64_t report_every; /* steps between lines with train and test loss; 0: a line per epoch */
    /* Either data sets, and how their batches are made (batch, seed and ranks are filled in) ... */
    lks_dataset *train_set, *test_set;
    lks_loader_options loader;
    /* ... or anything else; NULL: data sets. */
    const trainer_source *source;
    int has_validation;   /* 1: measure TRAINER_VALIDATION after every epoch */
    int shows_perplexity; /* 1: losses are also shown as exp(loss) */
} trainer_job;

/* Joins the world and settles the command line: one rank speaks for all. Returns 0 to go on; else the exit code is in
 * *exit_code (0 after --help) and `group` is NULL. */
int trainer_begin(const trainer_flags *flags, const trainer_flag *own, char **argv, lks_group **group, int *exit_code);

/* The directory in which the data set `name` lies: --data, or where lks_data_directory finds it. With --download it is
 * got first: collective then, and an error is the same on all ranks. */
lks_status trainer_data(const trainer_flags *flags, lks_group *group, const char *name, char *directory, size_t nbytes);

/* The device that the command line asks for. */
lks_status trainer_device_create(lks_device **device, const trainer_flags *flags, const lks_group *group);

/* Whether `status` is LKS_OK on all ranks. Where it is not, each rank that failed for a reason of its own prints it;
 * what several say, the lowest of them does. Collective. */
int trainer_all_ok(lks_group *group, lks_status status);
/* The same where the rank that failed has said why. */
int trainer_all_did(lks_group *group, int is_done);
/* Of this rank, where a run could not begin because of `status`: 2 where the command line asks for what there is not,
 * which no launcher tries again; else 1. */
int trainer_begin_exit_code(lks_status status);

/* Samples of a whole step over all ranks: --batch, or where every rank gets whole batches, as many of it as they can
 * share evenly. */
int64_t trainer_global_batch(const trainer_flags *flags, lks_shard_mode shard, const lks_group *group);
/* Steps of the whole training, by whichever of --epochs and --steps ends first. */
int64_t trainer_n_steps(const trainer_flags *flags, int64_t steps_per_epoch);

/* Trains and reports. Returns an exit code. Collective. */
int trainer_run(const trainer_job *job, const trainer_flags *flags);

#endif
