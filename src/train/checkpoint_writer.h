/* The thread that writes checkpoints while training goes on. On rank 0 only. */
#ifndef LKSI_CHECKPOINT_WRITER_H
#define LKSI_CHECKPOINT_WRITER_H

#include "train/checkpoint.h"

typedef struct lksi_checkpoint_writer lksi_checkpoint_writer;

/* It writes `checkpoint`'s image; trainer, checkpoint and directory must outlive it. */
lks_status lksi_checkpoint_writer_create(lksi_checkpoint_writer **writer, const lks_trainer *trainer,
                                         const lksi_checkpoint *checkpoint, const char *directory, int64_t keep);
/* Ends what is being written first; accepts NULL. */
void lksi_checkpoint_writer_destroy(lksi_checkpoint_writer *writer);

/* Hands over the image, as of `step` (it took `copied_ns` to fill, which is only shown), which is the writer's until
 * lksi_checkpoint_writer_wait has returned. Not while one is being written. `status`: of filling it; where that is an
 * error, nothing is written and the next wait gives it. */
void lksi_checkpoint_writer_start(lksi_checkpoint_writer *writer, int64_t step, int64_t copied_ns, lks_status status);
/* Waits until nothing is being written, and gives the error of what was written last, once. LKS_ERR_TIMEOUT where it
 * takes longer than `timeout_ms`: the image is still the writer's. */
lks_status lksi_checkpoint_writer_wait(lksi_checkpoint_writer *writer, int64_t timeout_ms);

#endif
