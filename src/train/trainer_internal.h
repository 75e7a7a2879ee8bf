/* What the files of train/ share. */
#ifndef LKSI_TRAINER_INTERNAL_H
#define LKSI_TRAINER_INTERNAL_H

#include "comm/comm.h"
#include "graph/graph.h"
#include "optim/optim.h"
#include "parallel/parallel.h"

#include <lockstep/train.h>

typedef struct lksi_compiled {
    int64_t batch;
    bool is_training;
    lks_program *program;
    void *recording; /* a whole step of it on a GPU, once it is recorded; else NULL */
    int64_t n_steps; /* made of it on a GPU, of parts that could be recorded */
} lksi_compiled;

/* What one rank makes of a file. */
typedef struct lksi_checkpoint_verdict {
    uint64_t hash;
    int64_t status; /* an lks_status */
} lksi_checkpoint_verdict;

/* One tensor per state of the options, row-major, where the device computes. A program reads them in place. */
typedef struct lksi_states {
    char **values;
    int64_t n_rows, capacity; /* rows each: in use, and in all; those between are 0 */
} lksi_states;

/* Which samples the trainer's states belong to. */
typedef struct lksi_seats {
    int64_t of_all; /* the samples of the global batch; 0: of none, the states are zeros */
    int64_t begin;  /* there, the first of this rank's */
    bool is_whole;  /* as a checkpoint was loaded: every rank has all of them, until its next step */
} lksi_seats;

/* The directory that a run was resumed from: what is newer there than this run is known to be no good. */
typedef struct lksi_searched {
    bool is_any;
    uint64_t device, inode;
} lksi_searched;

struct lks_trainer {
    lks_trainer_options options;
    lks_node *loss, *n_correct;
    bool has_ignored; /* labels that are `ignored` do not count; else those below 0 */
    int32_t ignored;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lksi_compiled *compiled; /* programs by batch size, each made when first needed */
    size_t n_compiled, capacity;
    int64_t n_steps;
    lksi_searched searched;            /* rank 0's */
    int stop;                          /* what this rank asks for: lks_trainer_request_stop */
    lksi_checkpoint_verdict *verdicts; /* room for every rank's */
    lks_node **outputs; /* what programs have to keep: the number of hits, where it is counted, and the states */
    int n_outputs;
    lksi_states states;
    lksi_seats seats;
    lksi_bad_gradient bad_gradient; /* where gradients are checked: the first in the step under way */
    lks_step_sums done;             /* of the steps that ended since metrics were asked for */
    bool makes_recordings;          /* of steps on a GPU */
    bool is_under_way;              /* a step is on a GPU */
    bool has_compared_batches;      /* once, before the first step */
    lks_group *statistics;          /* of synchronised batch norms, and nothing else; NULL where the model has none */
    void *stand_in;                 /* one sample of zeros, its labels behind its features: see synchronise.c */
};

/* Are all ranks about to train the same model in the same way? LKS_ERR_MISMATCH on all of them with a table where they
 * are not. Collective. */
lks_status lksi_trainer_compare(const lks_trainer *trainer);
/* Before the first step: do their batches come from the same division of the data? Likewise. */
lks_status lksi_trainer_compare_batches(lks_trainer *trainer, const lks_batch *batch);

/* Where the model has synchronised batch norms, a group for them and a stand-in. Collective then. */
lks_status lksi_trainer_prepare_statistics(lks_trainer *trainer);
void lksi_trainer_release_statistics(lks_trainer *trainer);
/* What a rank without samples computes, so that the others need not wait. */
lks_batch lksi_stand_in(const lks_trainer *trainer);

/* Takes over the options' states and says what programs have to keep. */
lks_status lksi_trainer_prepare_states(lks_trainer *trainer);

/* Bytes of one row (sample) of state `i`. */
size_t lksi_states_row_nbytes(const lks_trainer *trainer, int i);
/* `n_rows` rows of each state at least; new ones are 0. On a GPU there is room for those of all ranks together, for
 * they make recordings of steps at the same time, and so must forget them at the same time: where the states move. A
 * step under way then ends first. */
lks_status lksi_states_reserve(lks_trainer *trainer, lksi_states *states, int64_t n_rows, int64_t of_all);
/* All are 0, and none in use. */
lks_status lksi_states_clear(const lks_trainer *trainer, lksi_states *states);
/* LKS_ERR_ARGUMENT where the trainer's own belong to other samples than this rank's of `batch`. */
lks_status lksi_states_check(const lks_trainer *trainer, const lks_batch *batch);
/* From now on they belong to those. */
lks_status lksi_states_seat(lks_trainer *trainer, const lks_batch *batch);
/* Whether they have to move for that. */
bool lksi_states_must_move(const lks_trainer *trainer, const lks_batch *batch);
void lksi_states_free(const lks_trainer *trainer, lksi_states *states);
/* The next run of `program`, whose first sample is row `first_row`, begins with these states. */
lks_status lksi_states_bind(const lks_trainer *trainer, const lksi_states *states, int64_t first_row,
                            lks_program *program);
/* After that run (backward included) they are those it ended with. */
lks_status lksi_states_advance(const lks_trainer *trainer, lksi_states *states, int64_t first_row, int64_t n_rows,
                               const lks_program *program);

/* How many labels the model hit in the last run; 0 where it is not counted. */
double lksi_trainer_n_correct(const lks_trainer *trainer, const lks_program *program);

/* How many of `count` labels count; `labels` NULL: of targets, all. */
int64_t lksi_trainer_count_labels(const lks_trainer *trainer, const int32_t *labels, int64_t count);

/* What one rank's chunk of what is evaluated comes to. */
typedef struct lksi_chunk_sums {
    double n_labels, loss, n_correct;
} lksi_chunk_sums;
/* Zeros, of `n_chunks` chunks and with room for what the ranks tell of their data; the caller frees them. */
lksi_chunk_sums *lksi_chunks_create(const lks_trainer *trainer, int64_t n_chunks);
/* Adds the last run of an evaluation, over `count` labels, likewise. */
void lksi_chunk_add(lks_trainer *trainer, const lks_program *program, const int32_t *labels, int64_t count,
                    lksi_chunk_sums *sums);
/* The means over all chunks, each of which is 0 on all ranks but one: so their sum over the ranks is exact.
 * LKS_ERR_MISMATCH on all ranks where `hash`, of the data, is not the same on all. Collective. */
lks_status lksi_chunks_conclude(const lks_trainer *trainer, lksi_chunk_sums *sums, int64_t n_chunks, uint64_t hash,
                                lks_metrics *metrics);

/* Whether the model's input is samples in bytes, from which lks_images makes images. */
bool lksi_trainer_takes_bytes(const lks_trainer *trainer);
/* LKS_ERR_SHAPE where a data set's samples of `n_features` do not fit the model's input. */
lks_status lksi_trainer_check_features(const lks_trainer *trainer, int64_t n_features);

/* Labels of a sample: of targets, all of them are one. */
int64_t lksi_trainer_labels_of_sample(const lks_trainer *trainer);

/* --- pieces (pieces.c): a rank's part of a batch is computed in some, one after the other --- */

/* LKS_ERR_ARGUMENT where grains and accumulate of the options cannot be meant. */
lks_status lksi_pieces_check_options(const lks_trainer_options *options);
/* LKS_ERR_MISMATCH where `batch` is not made of this rank's grains. */
lks_status lksi_pieces_check(const lks_trainer *trainer, const lks_batch *batch);
int64_t lksi_pieces_count(const lks_trainer *trainer, const lks_batch *batch);
/* One of them; a grain may be empty, and so may be any piece where batch norms are synchronised. */
lks_batch lksi_pieces_get(const lks_trainer *trainer, const lks_batch *batch, int64_t index);

/* --- steps on a GPU (flat.c): forward, backward, sums over the ranks and update are put on it together --- */

/* Whether a step on `batch` can be. */
bool lksi_flat_is_whole(const lks_trainer *trainer, const lks_batch *batch);
lks_status lksi_flat_trainer_step(lks_trainer *trainer, const lks_batch *batch);
lks_status lksi_flat_catch_up(lks_trainer *trainer); /* finishes the one under way */
void lksi_flat_forget(lks_trainer *trainer);         /* all recordings */

/* Gives a program its inputs, draws and states: a piece of a batch whose first row is this rank's `first_row`. */
lks_status lksi_trainer_bind(lks_trainer *trainer, const lks_batch *batch, int64_t first_row, lks_program *program);

/* A step is known to be one, and what it came to. */
void lksi_trainer_add_done(lks_trainer *trainer, const lks_step_sums *sums);
/* Finishes the step under way, if there is one. */
lks_status lksi_trainer_catch_up(lks_trainer *trainer);

/* What the trainer knows of one of its programs. */
lksi_compiled *lksi_trainer_compiled(const lks_trainer *trainer, const lks_program *program);
/* The program for `batch` samples. */
lks_status lksi_trainer_program(lks_trainer *trainer, int64_t batch, bool is_training, lks_program **program);

#endif
