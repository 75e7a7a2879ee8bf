/* The loop that the trainers among the examples share: steps, progress, evaluation, checkpoints, summary. */
#ifndef TRAINER_RUN_H
#define TRAINER_RUN_H

#include "trainer_flags.h"

/* The part of the data on which the model is measured. */
typedef enum trainer_split { TRAINER_TRAIN, TRAINER_VALIDATION, TRAINER_TEST } trainer_split;

/* The source of batches and measurements. For data sets trainer_source.c provides one. For other data, such as a text,
 * the example fills one in. `context` is passed to each function. Functions that take a trainer are collective. They
 * return the same on all ranks or make the group fail. */
typedef struct trainer_source {
    void *context;
    int64_t steps_per_epoch; /* the same on all ranks */
    int64_t global_batch;    /* samples of a whole step, over all ranks */
    uint64_t hash;           /* of all data; equal on ranks that read the same data */
    uint64_t train_hash;     /* of the training data; a run must not be resumed on other data */
    /* Goes to batch `step` of `epoch`, both counted from 0. The states of a model are zeros at step 0. */
    void (*seek)(void *context, int64_t epoch, int64_t step);
    /* Gets this rank's part of the next global batch. Returns 0 at the end of the epoch. */
    int (*next)(void *context, lks_batch *batch);
    lks_status (*evaluate)(void *context, lks_trainer *trainer, trainer_split split, lks_metrics *metrics);
} trainer_source;

/* The job that an example passes to trainer_run. */
typedef struct trainer_job {
    const char *name; /* of the example */
    lks_group *group;
    lks_device *device;
    lks_node *loss, *logits, *features, *labels;
    const lks_state *states; /* carried from step to step */
    int n_states;
    lks_optimizer optimizer;
    int64_t report_every; /* steps between lines with train and test loss; 0: a line per epoch */
    /* Either data sets and the options of their loader (batch, seed and ranks are filled in) ... */
    lks_dataset *train_set, *test_set;
    lks_loader_options loader;
    /* ... or any other source. NULL: data sets. */
    const trainer_source *source;
    int has_validation;   /* 1: measure TRAINER_VALIDATION after every epoch */
    int shows_perplexity; /* 1: losses are also shown as exp(loss) */
} trainer_job;

/* Joins the world and checks the command line. One rank reports errors for all. Returns 0 to continue. Otherwise the
 * exit code is in *exit_code (0 after --help) and *group is NULL. */
int trainer_begin(const trainer_flags *flags, const trainer_flag *own, char **argv, lks_group **group, int *exit_code);

/* The directory of the data set `name`: --data, or the result of lks_data_directory. With --download the set is
 * downloaded first. The call is then collective, and an error is the same on all ranks. */
lks_status trainer_data(const trainer_flags *flags, lks_group *group, const char *name, char *directory, size_t nbytes);

/* Reads a data set. With --share-data it is read once per host. The call is then collective. */
lks_status trainer_read_set(const trainer_flags *flags, lks_group *group, lks_dataset **set, lks_read_dataset read,
                            char *directory);

/* Creates the device that the command line requests. */
lks_status trainer_device_create(lks_device **device, const trainer_flags *flags, const lks_group *group);

/* Whether `status` is LKS_OK on all ranks. If not, each rank that failed for its own reason prints it. If several ranks
 * have the same text, the lowest of them prints it. Collective. */
int trainer_all_ok(lks_group *group, lks_status status);
/* The same if the rank that failed has already printed the reason. */
int trainer_all_did(lks_group *group, int is_done);
/* The exit code of a run that could not start because of `status`. 2: the command line requests something invalid or
 * unsupported, so launchers do not restart it. Otherwise 1. */
int trainer_begin_exit_code(lks_status status);

/* Samples of a whole step over all ranks: --batch. If ranks get whole batches, it is rounded down to a multiple of the
 * number of ranks. */
int64_t trainer_global_batch(const trainer_flags *flags, lks_shard_mode shard, const lks_group *group);
/* Steps of the whole training: --epochs or --steps, whichever ends first. */
int64_t trainer_n_steps(const trainer_flags *flags, int64_t steps_per_epoch);

/* Trains and reports. Returns an exit code. Collective. */
int trainer_run(const trainer_job *job, const trainer_flags *flags);

#endif
