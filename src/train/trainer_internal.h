/* Declarations that the files of train/ share. */
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
    void *recording; /* GPU: a recorded whole step; NULL if there is none yet */
    int64_t n_steps; /* GPU: steps made with it whose parts would allow a recording */
} lksi_compiled;

/* One rank's verdict on a file. */
typedef struct lksi_checkpoint_verdict {
    uint64_t hash;
    int64_t status; /* an lks_status */
} lksi_checkpoint_verdict;

/* One tensor per state of the options, row-major, in the memory of the device. Programs read them in place. */
typedef struct lksi_states {
    char **values;
    int64_t n_rows, capacity; /* rows in use, and allocated rows; the rows between them are 0 */
} lksi_states;

/* The samples to which the trainer's states belong. */
typedef struct lksi_seats {
    int64_t of_all; /* samples of the global batch; 0: the states belong to no samples and are zeros */
    int64_t begin;  /* first sample of this rank in the global batch */
    bool is_whole;  /* after loading a checkpoint, until the next step: every rank has the rows of all samples */
} lksi_seats;

/* The directory that a run was resumed from. Checkpoints in it that are newer than the run, up to `newest`, are known
 * to be unusable. */
typedef struct lksi_searched {
    bool is_any;
    uint64_t device, inode;
    int64_t newest; /* the latest step that had a file; -1: none had one */
} lksi_searched;

struct lks_trainer {
    lks_trainer_options options;
    lks_node *loss, *n_correct;
    lksi_ignored ignored; /* these labels do not count; if there are none, negative labels do not count */
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lksi_compiled *compiled; /* one program per batch size, created on first use */
    size_t n_compiled, capacity;
    int64_t n_steps;
    lksi_searched searched;            /* rank 0 */
    int stop;                          /* this rank's lks_trainer_request_stop */
    lksi_checkpoint_verdict *verdicts; /* space for one per rank */
    lks_node **outputs; /* nodes that programs must keep: n_correct, if it is counted, and the outputs of states */
    int n_outputs;
    lksi_states states;
    lksi_seats seats;
    lksi_bad_gradient bad_gradient; /* with check_gradients: the first one in the current step */
    lks_step_sums done;             /* of the steps that ended since metrics were last read */
    double lr;                      /* of the last step that ended */
    double lr_under_way;            /* of the step in progress on a GPU */
    bool makes_recordings;          /* whether steps on a GPU are recorded */
    bool is_under_way;              /* a step is in progress on a GPU */
    bool has_compared_batches;      /* done once, before the first step */
    lks_group *statistics;          /* for synchronised batch norms only; NULL if the model has none */
    void *stand_in;                 /* one sample of zeros, first its labels, then its features: see synchronise.c */
};

/* Compares model and options of all ranks. If they differ, all ranks get LKS_ERR_MISMATCH with a table. Collective. */
lks_status lksi_trainer_compare(const lks_trainer *trainer);
/* Before the first step: compares how the ranks' batches divide the data. Errors as above. Collective. */
lks_status lksi_trainer_compare_batches(lks_trainer *trainer, const lks_batch *batch);

/* If the model has synchronised batch norms, creates a group for them and a stand-in. It is collective only then. */
lks_status lksi_trainer_prepare_statistics(lks_trainer *trainer);
void lksi_trainer_release_statistics(lks_trainer *trainer);
/* The batch that a rank without samples computes, so that the other ranks do not wait. */
lks_batch lksi_stand_in(const lks_trainer *trainer);

/* Copies the options' states. Allocates room for the nodes that programs must keep. */
lks_status lksi_trainer_prepare_states(lks_trainer *trainer);

/* Bytes of one row (sample) of state `i`. */
size_t lksi_states_row_nbytes(const lks_trainer *trainer, int i);
/* Ensures at least `n_rows` rows of each state. New rows are 0. On a GPU the capacity is that of all ranks together
 * (`of_all`): all ranks record steps at the same time, so they must also drop the recordings at the same time, which
 * they do when the states move. A step in progress is finished first. */
lks_status lksi_states_reserve(lks_trainer *trainer, lksi_states *states, int64_t n_rows, int64_t of_all);
/* Sets all rows to 0, with none in use. */
lks_status lksi_states_clear(const lks_trainer *trainer, lksi_states *states);
/* LKS_ERR_ARGUMENT: the trainer's own states belong to other samples than this rank's part of `batch`. */
lks_status lksi_states_check(const lks_trainer *trainer, const lks_batch *batch);
/* Assigns the states to the samples of this rank's part of `batch`. */
lks_status lksi_states_seat(lks_trainer *trainer, const lks_batch *batch);
/* Whether lksi_states_seat would have to move the states. */
bool lksi_states_must_move(const lks_trainer *trainer, const lks_batch *batch);
void lksi_states_free(const lks_trainer *trainer, lksi_states *states);
/* The next run of `program`, whose first sample is row `first_row`, reads these states. */
lks_status lksi_states_bind(const lks_trainer *trainer, const lksi_states *states, int64_t first_row,
                            lks_program *program);
/* Copies the outputs of that run back to the states. Call it after the run, backward pass included. */
lks_status lksi_states_advance(const lks_trainer *trainer, lksi_states *states, int64_t first_row, int64_t n_rows,
                               const lks_program *program);

/* Number of correct labels in the last run. 0 if they are not counted. */
double lksi_trainer_n_correct(const lks_trainer *trainer, const lks_program *program);

/* LKS_ERR_ARGUMENT if it is not known which labels count. The text says that `what` needs it. */
lks_status lksi_trainer_check_counts(const lks_trainer *trainer, const char *what);
/* How many of `count` labels count. `labels` NULL (the samples have targets): all. */
int64_t lksi_trainer_count_labels(const lks_trainer *trainer, const int32_t *labels, int64_t count);

/* Sums over one chunk of an evaluation. */
typedef struct lksi_chunk_sums {
    double n_labels, loss, n_correct;
} lksi_chunk_sums;
/* Allocates zeros for `n_chunks` chunks, followed by one entry per rank for the hash of its data. The caller frees
 * them. */
lksi_chunk_sums *lksi_chunks_create(const lks_trainer *trainer, int64_t n_chunks);
/* Adds the last run of an evaluation over `count` labels. `labels` as above. */
void lksi_chunk_add(lks_trainer *trainer, const lks_program *program, const int32_t *labels, int64_t count,
                    lksi_chunk_sums *sums);
/* Computes the means over all chunks. Each chunk is 0 on all ranks but one, so the sum over the ranks is exact.
 * LKS_ERR_MISMATCH on all ranks: `hash`, of the data, differs between ranks. Collective. */
lks_status lksi_chunks_conclude(const lks_trainer *trainer, lksi_chunk_sums *sums, int64_t n_chunks, uint64_t hash,
                                lks_metrics *metrics);

/* Whether the model's input takes samples as bytes, which lks_images converts to images. */
bool lksi_trainer_takes_bytes(const lks_trainer *trainer);
/* LKS_ERR_SHAPE: samples of `n_features` features do not fit the model's input. */
lks_status lksi_trainer_check_features(const lks_trainer *trainer, int64_t n_features);

/* Number of labels per sample. The targets of a sample count as one label. */
int64_t lksi_trainer_labels_of_sample(const lks_trainer *trainer);

/* --- pieces (pieces.c): a rank computes its part of a batch in pieces, one after the other --- */

/* LKS_ERR_ARGUMENT: grains and accumulate of the options are invalid or contradict each other. */
lks_status lksi_pieces_check_options(const lks_trainer_options *options);
/* LKS_ERR_MISMATCH: `batch` does not consist of this rank's grains, or n_labels is not what its pieces count. */
lks_status lksi_pieces_check(const lks_trainer *trainer, const lks_batch *batch);
int64_t lksi_pieces_count(const lks_trainer *trainer, const lks_batch *batch);
/* Piece `index`. A grain may be empty. With synchronised batch norms any piece may be empty. */
lks_batch lksi_pieces_get(const lks_trainer *trainer, const lks_batch *batch, int64_t index);

/* --- steps on a GPU (flat.c): forward, backward, reduction and update are enqueued as one unit --- */

/* Whether a step on `batch` can be executed as one unit. */
bool lksi_flat_is_whole(const lks_trainer *trainer, const lks_batch *batch);
lks_status lksi_flat_trainer_step(lks_trainer *trainer, const lks_batch *batch);
lks_status lksi_flat_catch_up(lks_trainer *trainer); /* finishes the step in progress */
void lksi_flat_forget(lks_trainer *trainer);         /* frees all recordings */

/* Gives a program its inputs, random draws and states. `batch` may be a piece, which begins at this rank's row
 * `first_row`. */
lks_status lksi_trainer_bind(lks_trainer *trainer, const lks_batch *batch, int64_t first_row, lks_program *program);

/* Adds the results of a finished step, which was made at the learning rate `lr`, to `done`. */
void lksi_trainer_add_done(lks_trainer *trainer, const lks_step_sums *sums, double lr);
/* The learning rate of the step with this number, from 1, at the rate that is set now. */
double lksi_trainer_lr(const lks_trainer *trainer, int64_t step);
/* Finishes the step in progress, if there is one. */
lks_status lksi_trainer_catch_up(lks_trainer *trainer);

/* The trainer's record of the program for `batch` samples. NULL: not compiled yet. */
lksi_compiled *lksi_trainer_find(const lks_trainer *trainer, int64_t batch, bool is_training);
/* Gets the program for `batch` samples. Compiles it on first use. */
lks_status lksi_trainer_program(lks_trainer *trainer, int64_t batch, bool is_training, lks_program **program);

#endif
