/* What saving and loading of checkpoints share.
 *
 * A checkpoint's data section is put together in memory on rank 0, the image, from what all ranks bring; from there on
 * nobody else is needed to write it, and training may go on. */
#ifndef LKSI_CHECKPOINT_H
#define LKSI_CHECKPOINT_H

#include "train/trainer_internal.h"
#include "train/weights.h"

/* One entry of a checkpoint: a tensor of the store, or the optimizer's state for one. */
typedef struct lksi_checkpoint_item {
    const char *name;
    int tensor;
    int state;     /* which of the optimizer's arrays; -1: the values themselves */
    size_t offset; /* of its bytes, in the data section */
} lksi_checkpoint_item;

/* What all ranks go through in the same order, and the memory for it. */
typedef struct lksi_checkpoint {
    lksi_checkpoint_item *items; /* weights in the order of their names, then state */
    size_t n_items;
    char *names;           /* of the state's entries */
    void *values, *stored; /* room for any tensor: row-major, and as the store keeps it */
    int64_t *rows, n_rows; /* of the model's states: every rank's, and all of them */
    size_t *counts;        /* room for a number per rank */
    size_t items_nbytes;   /* of the data section up to the states */
    char *image;           /* rank 0: the data section; NULL until lksi_checkpoint_reserve */
    size_t image_nbytes, image_capacity;
} lksi_checkpoint;

/* What saving and loading must be given, by its names in train.h. */
lks_status lksi_checkpoint_check_given(const char *call, const char *owner_name, const void *owner, const char *path,
                                       const lks_position *position);

lks_status lksi_checkpoint_create(lksi_checkpoint *checkpoint, const lks_trainer *trainer);
void lksi_checkpoint_destroy(lksi_checkpoint *checkpoint);

/* Rank 0: room for the image, with as many rows of states as were counted last; elsewhere nothing. Not collective. */
lks_status lksi_checkpoint_reserve(const lks_trainer *trainer, lksi_checkpoint *checkpoint);
/* Fills rank 0's image, for which room was made, with what the trainer is now. What goes wrong on rank 0 alone is its
 * own, in *status, to be told by the caller; what is returned is what goes wrong between ranks. Another rank's
 * parameters may not be updated before rank 0 has returned, which the next step sees to: no rank updates before all
 * have begun it. Collective. */
lks_status lksi_checkpoint_snapshot(lks_trainer *trainer, lksi_checkpoint *checkpoint, const lks_position *position,
                                    lks_status *status);
/* Rank 0: writes the image to `path`, and returns when the disk has it. Touches nothing of the trainer that changes, so
 * that it may run beside training. */
lks_status lksi_checkpoint_write(const lks_trainer *trainer, const lksi_checkpoint *checkpoint, const char *path);
/* LKS_ERR_ARGUMENT where `position` is not where the trainer stands: what no trainer would load is not saved. */
lks_status lksi_checkpoint_check_position(const lks_trainer *trainer, const char *path, const lks_position *position);

/* Whether `step` steps end at `position`, and neither is beyond what numbers hold; *what says what is wrong. Of a
 * file's counters too: what they say is computed with. */
bool lksi_checkpoint_adds_up(const lks_position *position, int64_t step, const char **what);

/* "trainer.counters" (i64) and "trainer.rule" (f64: the fields of the rule that the trainer was made with, then the
 * learning rate that is set now). */
enum { LKSI_CHECKPOINT_VERSION = 4 };
typedef struct lksi_checkpoint_counters {
    int64_t version, step, epoch, epoch_step, steps_per_epoch, global_batch, seed, data_hash, grains;
} lksi_checkpoint_counters;
enum { LKSI_N_COUNTERS = 9, LKSI_N_RULE = LKSI_RULE_FIELDS + 1 };
#define LKSI_COUNTERS_NAME LKSI_TRAINER_PREFIX "counters"
#define LKSI_RULE_NAME LKSI_TRAINER_PREFIX "rule"

/* What rank 0 knows of a file once it has checked it, and tells the others. */
typedef struct lksi_checkpoint_head {
    lksi_checkpoint_counters counters;
    double rule[LKSI_N_RULE];
    int64_t n_rows;              /* of the model's states; 0: they are zeros */
    int64_t status;              /* an lks_status, with ... */
    char text[1024];             /* ... its text */
    char path[LKSI_PATH_NBYTES]; /* of the file; empty where there is none to go on from */
} lksi_checkpoint_head;

/* Rank 0: opens the file to go on from, and finds it good; *file is NULL where there is none, and after an error. */
typedef lks_status (*lksi_checkpoint_find)(const lks_trainer *trainer, const lksi_checkpoint *checkpoint,
                                           const char *path, const lks_position *expected, lksi_safetensors **file,
                                           lksi_checkpoint_head *head);
/* The one at `path`. LKS_ERR_FILE or LKS_ERR_FORMAT: it is no whole checkpoint of this model; LKS_ERR_ARGUMENT: it is
 * one of another run. */
lks_status lksi_checkpoint_open(const lks_trainer *trainer, const lksi_checkpoint *checkpoint, const char *path,
                                const lks_position *expected, lksi_safetensors **file, lksi_checkpoint_head *head);
/* Goes on from what `find_file` finds; its path goes to `taken` (may be NULL). Collective. */
lks_status lksi_checkpoint_load(lks_trainer *trainer, const char *path, lks_position *position,
                                lksi_checkpoint_find find_file, char *taken, size_t taken_nbytes);

/* Rank 0: whether the trainer was resumed from what `directory` holds, or found nothing there. */
bool lksi_checkpoint_was_searched(const lks_trainer *trainer, const char *directory);

/* --- what the model carries from step to step (checkpoint_states.c): "trainer.state.<i>", the ranks' rows one after
 * the other, which are those of its batches --- */

/* Counts the rows, and makes room for the image. LKS_ERR_ARGUMENT where no trainer would load them. Collective. */
lks_status lksi_checkpoint_make_room(lks_trainer *trainer, lksi_checkpoint *checkpoint, const char *path,
                                     const lks_position *position);
/* What they take in the data section. */
size_t lksi_checkpoint_states_nbytes(const lks_trainer *trainer, const lksi_checkpoint *checkpoint);
lks_status lksi_checkpoint_declare_states(const lks_trainer *trainer, const lksi_checkpoint *checkpoint,
                                          lksi_safetensors_writer *writer);
/* All ranks bring their rows. Collective. */
lks_status lksi_checkpoint_gather_states(lks_trainer *trainer, lksi_checkpoint *checkpoint);
/* Are they in the file, with the same number of rows each, no more than the global batch has? */
lks_status lksi_checkpoint_check_states(const lks_trainer *trainer, const lksi_safetensors *file, int64_t global_batch,
                                        int64_t *n_rows);
/* Room for all rows. */
lks_status lksi_checkpoint_reserve_states(lks_trainer *trainer, int64_t n_rows);
/* Rank 0 reads the rows from `file`, NULL elsewhere, and hands them out. Collective. */
lks_status lksi_checkpoint_take_states(lks_trainer *trainer, const lksi_safetensors *file, int64_t n_rows);

/* Whether the call went well on all ranks: each gives its own status. Where it did not, ranks that went well get
 * LKS_ERR_FILE naming the lowest one that did not, and its reason; `hash` must be equal where all did,
 * LKS_ERR_MISMATCH. Collective. */
lks_status lksi_checkpoint_agree(lks_trainer *trainer, const char *what, const char *path, lks_status mine,
                                 uint64_t hash);

#endif
