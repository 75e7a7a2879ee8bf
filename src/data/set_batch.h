/* How train/ passes a batch to a program, and what it asks of data sets. */
#ifndef LKSI_SET_BATCH_H
#define LKSI_SET_BATCH_H

#include <lockstep/data.h>

/* lks_program_set_batch without checking the batch size and without noting the batch. */
lks_status lksi_program_give(lks_program *program, lks_node *features, lks_node *labels, const lks_batch *batch);

/* The error of a batch whose samples could not be read. */
lks_status lksi_batch_check(const lks_batch *batch);

/* lks_dataset_hash, with the error of a read function. `dataset` is not NULL. */
lks_status lksi_dataset_hash(const lks_dataset *dataset, uint64_t *hash);

/* LKS_ERR_SHAPE: the input `labels` does not fit samples with `n_targets` targets. 0: the samples have labels. */
lks_status lksi_check_targets(const lks_node *labels, int64_t n_targets);

#endif
