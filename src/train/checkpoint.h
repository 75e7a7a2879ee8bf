/* What saving and loading of checkpoints share. */
#ifndef LKSI_CHECKPOINT_H
#define LKSI_CHECKPOINT_H

#include "train/trainer_internal.h"
#include "train/weights.h"

/* One entry of a checkpoint: a tensor of the store, or the optimizer's state for one. */
typedef struct lksi_checkpoint_item {
    const char *name;
    int tensor;
    int state; /* which of the optimizer's arrays; -1: the values themselves */
} lksi_checkpoint_item;

/* What all ranks go through in the same order, and the memory for it. */
typedef struct lksi_checkpoint {
    lksi_checkpoint_item *items; /* weights in the order of their names, then state */
    size_t n_items;
    char *names;           /* of the state's entries */
    void *values, *stored; /* room for any tensor: row-major, and as the store keeps it */
    int64_t *rows, n_rows; /* of the model's states: every rank's, and all of them */
    size_t *counts;        /* room for a number per rank */
    void *states;          /* rank 0: room for all rows of any state */
} lksi_checkpoint;

lks_status lksi_checkpoint_create(lksi_checkpoint *checkpoint, const lks_trainer *trainer);
void lksi_checkpoint_destroy(lksi_checkpoint *checkpoint);

/* Whether `step` steps end at `position`, and neither is beyond what numbers hold; *what says what is wrong. Of a
 * file's counters too: what they say is computed with. */
bool lksi_checkpoint_adds_up(const lks_position *position, int64_t step, const char **what);

/* "trainer.counters" (i64) and "trainer.rule" (f64: the fields of the rule that the trainer was made with, then the
 * learning rate that is set now). */
enum { LKSI_CHECKPOINT_VERSION = 3 };
typedef struct lksi_counters {
    int64_t version, step, epoch, epoch_step, steps_per_epoch, global_batch, seed, data_hash, grains;
} lksi_counters;
enum { LKSI_N_COUNTERS = 9, LKSI_N_RULE = LKSI_RULE_FIELDS + 1 };
#define LKSI_COUNTERS_NAME LKSI_TRAINER_PREFIX "counters"
#define LKSI_RULE_NAME LKSI_TRAINER_PREFIX "rule"

/* --- what the model carries from step to step (checkpoint_states.c): "trainer.state.<i>", the ranks' rows one after
 * the other, which are the global batch's --- */

/* How many rows there are. Collective where the model has states. */
lks_status lksi_checkpoint_count_rows(lks_trainer *trainer, lksi_checkpoint *checkpoint);
/* Rank 0: declares them and makes room. */
lks_status lksi_checkpoint_declare_states(const lks_trainer *trainer, lksi_checkpoint *checkpoint,
                                          lksi_safetensors_writer *writer);
/* All ranks bring their rows; `writer` and *status as in write_items. */
lks_status lksi_checkpoint_write_states(lks_trainer *trainer, lksi_checkpoint *checkpoint,
                                        lksi_safetensors_writer *writer, lks_status *status);
/* Are they in the file, and are there none or as many rows as the global batch has? Makes room for this rank's. */
lks_status lksi_checkpoint_check_states(lks_trainer *trainer, const lksi_safetensors *file, int64_t global_batch);
lks_status lksi_checkpoint_take_states(lks_trainer *trainer, const lksi_safetensors *file, int64_t global_batch);

/* Whether the call went well on all ranks: each gives its own status. Where it did not, ranks that went well get
 * LKS_ERR_FILE naming the lowest one that did not; `hash` must be equal where all did, LKS_ERR_MISMATCH. Collective. */
lks_status lksi_checkpoint_agree(lks_trainer *trainer, const char *what, const char *path, lks_status mine,
                                 uint64_t hash);

#endif
