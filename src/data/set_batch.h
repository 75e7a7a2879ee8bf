/* What a batch gives a program, for train/. */
#ifndef LKSI_SET_BATCH_H
#define LKSI_SET_BATCH_H

#include <lockstep/data.h>

/* lks_program_set_batch of a batch that is as large as the program. */
lks_status lksi_program_give(lks_program *program, lks_node *features, lks_node *labels, const lks_batch *batch);

/* LKS_ERR_SHAPE where the input `labels` is not for samples with so many targets, of 0 for labels. */
lks_status lksi_check_targets(const lks_node *labels, int64_t n_targets);

#endif
