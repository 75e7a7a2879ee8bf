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

struct lks_trainer {
    lks_trainer_options options;
    lks_node *loss, *n_correct;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lksi_compiled *compiled; /* programs by batch size, each made when first needed */
    size_t n_compiled, capacity;
    int64_t n_steps;
    lksi_verdict *verdicts; /* room for every rank's */
};

/* LKS_ERR_SHAPE where samples of `n_features` do not fit the model's input. */
lks_status lksi_trainer_check_features(const lks_trainer *trainer, int64_t n_features);

/* Piece `index` of `n`, at most batch->count, of this rank's part of a batch. */
lks_batch lksi_micro_batch(const lks_trainer *trainer, const lks_batch *batch, int64_t index, int64_t n);

/* The program for `batch` samples. */
lks_status lksi_trainer_program(lks_trainer *trainer, int64_t batch, bool is_training, lks_program **program);

#endif
