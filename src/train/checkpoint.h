/* Code shared by saving and loading of checkpoints.
 *
 * The image is the data section of a checkpoint in the memory of rank 0. All ranks contribute to it. Once it is
 * complete, rank 0 writes it without the other ranks, and training may continue. */
#ifndef LKSI_CHECKPOINT_H
#define LKSI_CHECKPOINT_H

#include "train/trainer_internal.h"
#include "train/weights.h"

/* One entry of a checkpoint: a tensor of the store, or the optimizer's state for one. */
typedef struct lksi_checkpoint_item {
    const char *name;
    int tensor;
    int state;     /* index of the optimizer's state array; -1: the values themselves */
    size_t offset; /* of its first byte in the data section */
} lksi_checkpoint_item;

/* The entries, which all ranks process in the same order, and buffers for them. */
typedef struct lksi_checkpoint {
    lksi_checkpoint_item *items; /* weights in the order of their names, then state */
    size_t n_items;
    char *names;           /* of the state entries */
    void *values, *stored; /* space for any tensor: row-major, and in the layout of the store */
    int64_t *rows, n_rows; /* rows of the model's states: per rank, and their sum */
    size_t *counts;        /* space for one count per rank */
    size_t items_nbytes;   /* of the data section before the model's states */
    char *image;           /* rank 0: the data section; NULL until lksi_checkpoint_reserve */
    size_t image_nbytes;
} lksi_checkpoint;

/* Checks the arguments that saving and loading require. The names are those of train.h. */
lks_status lksi_checkpoint_check_given(const char *call, const char *owner_name, const void *owner, const char *path,
                                       const lks_position *position);

lks_status lksi_checkpoint_create(lksi_checkpoint *checkpoint, const lks_trainer *trainer);
void lksi_checkpoint_destroy(lksi_checkpoint *checkpoint);

/* Rank 0: allocates the image for the last counted number of state rows. Does nothing on other ranks. Not
 * collective. */
lks_status lksi_checkpoint_reserve(const lks_trainer *trainer, lksi_checkpoint *checkpoint);
/* Copies the current state of the trainer to rank 0's image, which must have been reserved.
 *
 * The return value covers communication. *status is an error of rank 0 alone, which the caller has to report to the
 * other ranks. No rank may update parameters before rank 0 has returned. The next step ensures this: no rank updates
 * before all ranks have begun that step. Collective. */
lks_status lksi_checkpoint_snapshot(lks_trainer *trainer, lksi_checkpoint *checkpoint, const lks_position *position,
                                    lks_status *status);
/* Rank 0: writes the image to `path` and returns when it is on disk. It reads only constant fields of the trainer, so
 * it may run concurrently with training. */
lks_status lksi_checkpoint_write(const lks_trainer *trainer, const lksi_checkpoint *checkpoint, const char *path);
/* Returns LKS_ERR_ARGUMENT if `position` is not the trainer's position. A checkpoint that could not be loaded must not
 * be saved. */
lks_status lksi_checkpoint_check_position(const lks_trainer *trainer, const char *path, const lks_position *position);

/* Whether `step` steps end at `position` and no number overflows. Otherwise *what says what is wrong. It is also used
 * for the counters of a file, before they are used in computations. */
bool lksi_checkpoint_adds_up(const lks_position *position, int64_t step, const char **what);

/* Entries "trainer.options" (u8), "trainer.counters" (i64) and "trainer.rule" (f64). The options are the text of the
 * position, filled up with zeros. The rule holds the fields of the rule that the trainer was created with, followed by
 * the current learning rate. */
enum { LKSI_CHECKPOINT_VERSION = 7 };
typedef struct lksi_checkpoint_counters {
    int64_t version, step, epoch, epoch_step, steps_per_epoch, global_batch, seed, data_hash, grains;
    int64_t precision;       /* an lks_type */
    int64_t is_synchronised; /* whether the model has synchronised batch norms */
} lksi_checkpoint_counters;
/* Version 6, which is still read, has neither precision nor is_synchronised. */
enum { LKSI_N_COUNTERS = 11, LKSI_N_COUNTERS_OF_6 = 9 };
enum { LKSI_N_RULE = LKSI_RULE_FIELDS + 1, LKSI_OPTIONS_NBYTES = 512 };
#define LKSI_OPTIONS_NAME LKSI_TRAINER_PREFIX "options"
#define LKSI_COUNTERS_NAME LKSI_TRAINER_PREFIX "counters"
#define LKSI_RULE_NAME LKSI_TRAINER_PREFIX "rule"

/* Rank 0's verdict on a file, which it sends to the other ranks. */
typedef struct lksi_checkpoint_head {
    lksi_checkpoint_counters counters;
    double rule[LKSI_N_RULE];
    int64_t n_rows;              /* of the model's states; 0: they are zeros */
    int64_t status;              /* an lks_status */
    char text[1024];             /* its error text */
    char path[LKSI_PATH_NBYTES]; /* of the file; empty if there is none to resume from */
    int64_t newest;              /* the latest step that has a file in the directory; -1: none, or not a directory */
} lksi_checkpoint_head;

/* Rank 0: finds, opens and checks the file to load. *file is NULL if there is none, and after an error. */
typedef lks_status (*lksi_checkpoint_find)(const lks_trainer *trainer, const lksi_checkpoint *checkpoint,
                                           const char *path, const lks_position *expected, lksi_safetensors **file,
                                           lksi_checkpoint_head *head);
/* Opens the file at `path`. LKS_ERR_FILE or LKS_ERR_FORMAT: it is not an intact checkpoint of this model.
 * LKS_ERR_ARGUMENT: it belongs to another run. */
lks_status lksi_checkpoint_open(const lks_trainer *trainer, const lksi_checkpoint *checkpoint, const char *path,
                                const lks_position *expected, lksi_safetensors **file, lksi_checkpoint_head *head);
/* Loads the file that `find_file` finds. *head, which must be all zeros, becomes rank 0's verdict on it. Collective. */
lks_status lksi_checkpoint_load(lks_trainer *trainer, const char *path, lks_position *position,
                                lksi_checkpoint_find find_file, lksi_checkpoint_head *head);

/* Rank 0: the latest step that had a file in `directory` when the trainer was resumed from it. -1: none had one, or the
 * trainer was not resumed from it. */
int64_t lksi_checkpoint_newest_known(const lks_trainer *trainer, const char *directory);

/* --- the model's states (checkpoint_states.c): "trainer.state.<i>" holds the rows of all ranks in rank order, that
 * is, in the order of the batch --- */

/* Counts the rows and reserves the image. LKS_ERR_ARGUMENT if a trainer could not load them. Collective. */
lks_status lksi_checkpoint_make_room(lks_trainer *trainer, lksi_checkpoint *checkpoint, const char *path,
                                     const lks_position *position);
/* Bytes of the states in the data section. */
size_t lksi_checkpoint_states_nbytes(const lks_trainer *trainer, const lksi_checkpoint *checkpoint);
lks_status lksi_checkpoint_declare_states(const lks_trainer *trainer, const lksi_checkpoint *checkpoint,
                                          lksi_safetensors_writer *writer);
/* Copies the rows of all ranks to the image. Collective. */
lks_status lksi_checkpoint_gather_states(lks_trainer *trainer, lksi_checkpoint *checkpoint);
/* Checks that the file has all states, with equal numbers of rows, and not more rows than the global batch. */
lks_status lksi_checkpoint_check_states(const lks_trainer *trainer, const lksi_safetensors *file, int64_t global_batch,
                                        int64_t *n_rows);
/* Allocates memory for `n_rows` rows. */
lks_status lksi_checkpoint_reserve_states(lks_trainer *trainer, int64_t n_rows);
/* Rank 0 reads the rows from `file` and broadcasts them. `file` is NULL on the other ranks. Collective. */
lks_status lksi_checkpoint_take_states(lks_trainer *trainer, const lksi_safetensors *file, int64_t n_rows);

/* Agrees on whether a call succeeded on all ranks. Each rank passes its own status as `mine`. If a rank failed,
 * those that succeeded get its status, with a text that names the lowest such rank and its reason. If all
 * succeeded, `hash` must be equal on all ranks, otherwise LKS_ERR_MISMATCH. Collective. */
lks_status lksi_checkpoint_agree(lks_trainer *trainer, const char *what, const char *path, lks_status mine,
                                 uint64_t hash);

#endif
