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
} lksi_compiled;

/* What one rank makes of a file. */
typedef struct lksi_verdict {
    uint64_t hash;
    int64_t is_good;
} lksi_verdict;

/* One tensor per state of the options, row-major, `n_rows` rows each. A program reads them in place. */
typedef struct lksi_states {
    char **values;
    int64_t n_rows;
} lksi_states;

struct lks_trainer {
    lks_trainer_options options;
    lks_node *loss, *n_correct;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lksi_compiled *compiled; /* programs by batch size, each made when first needed */
    size_t n_compiled, capacity;
    int64_t n_steps;
    lksi_verdict *verdicts; /* room for every rank's */
    lks_node **outputs;     /* what programs have to keep: the number of hits, where it is counted, and the states */
    int n_outputs;
    lksi_states states;
};

/* Takes over the options' states and says what programs have to keep. */
lks_status lksi_trainer_prepare_states(lks_trainer *trainer);

/* Bytes of one row (sample) of state `i`. */
size_t lksi_states_row_nbytes(const lks_trainer *trainer, int i);
/* Room for `n_rows` rows of each state; new ones are 0. */
lks_status lksi_states_reserve(const lks_trainer *trainer, lksi_states *states, int64_t n_rows);
void lksi_states_clear(const lks_trainer *trainer, lksi_states *states);
void lksi_states_free(const lks_trainer *trainer, lksi_states *states);
/* The next run of `program`, whose first sample is row `first_row`, begins with these states. */
lks_status lksi_states_bind(const lks_trainer *trainer, const lksi_states *states, int64_t first_row,
                            lks_program *program);
/* After that run (backward included) they are those it ended with. */
void lksi_states_advance(const lks_trainer *trainer, lksi_states *states, int64_t first_row, int64_t n_rows,
                         const lks_program *program);

/* How many labels the model hit in the last run; 0 where it is not counted. */
double lksi_trainer_n_correct(const lks_trainer *trainer, const lks_program *program);

/* LKS_ERR_SHAPE where samples of `n_features` do not fit the model's input. */
lks_status lksi_trainer_check_features(const lks_trainer *trainer, int64_t n_features);

/* --- pieces (pieces.c): a rank's part of a batch is computed in some, one after the other --- */

/* LKS_ERR_ARGUMENT where grains and accumulate of the options cannot be meant. */
lks_status lksi_pieces_check_options(const lks_trainer_options *options);
/* LKS_ERR_MISMATCH where the ranks have different grains. Collective. */
lks_status lksi_pieces_agree(lks_trainer *trainer);
/* LKS_ERR_MISMATCH where `batch` is not made of this rank's grains. */
lks_status lksi_pieces_check(const lks_trainer *trainer, const lks_batch *batch);
int64_t lksi_pieces_count(const lks_trainer *trainer, const lks_batch *batch);
/* One of them; a grain may be empty. */
lks_batch lksi_pieces_get(const lks_trainer *trainer, const lks_batch *batch, int64_t index);

/* The program for `batch` samples. */
lks_status lksi_trainer_program(lks_trainer *trainer, int64_t batch, bool is_training, lks_program **program);

#endif
