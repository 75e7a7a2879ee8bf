/* The thread that writes checkpoints while training continues. Exists on rank 0 only. */
#ifndef LKSI_CHECKPOINT_WRITER_H
#define LKSI_CHECKPOINT_WRITER_H

#include "train/checkpoint.h"

typedef struct lksi_checkpoint_writer lksi_checkpoint_writer;

/* Creates a writer of `checkpoint`'s image. trainer, checkpoint and directory must outlive it. */
lks_status lksi_checkpoint_writer_create(lksi_checkpoint_writer **writer, const lks_trainer *trainer,
                                         const lksi_checkpoint *checkpoint, const char *directory, int64_t keep);
/* Finishes a write in progress first. Accepts NULL. */
void lksi_checkpoint_writer_destroy(lksi_checkpoint_writer *writer);

/* Hands the image of step `step` to the writer. It belongs to the writer until lksi_checkpoint_writer_wait has
 * returned. No write may be in progress. `previous` is as in lksi_checkpoint_prune. `copied_ns` is the duration of the
 * snapshot, for the log. `status` is the result of the snapshot: if it is an error, nothing is written and the next
 * wait returns it. */
void lksi_checkpoint_writer_start(lksi_checkpoint_writer *writer, int64_t previous, int64_t step, int64_t copied_ns,
                                  lks_status status);
/* Waits until no write is in progress, and returns the error of the last write, once. LKS_ERR_TIMEOUT after
 * `timeout_ms`: the image still belongs to the writer. */
lks_status lksi_checkpoint_writer_wait(lksi_checkpoint_writer *writer, int64_t timeout_ms);

#endif
