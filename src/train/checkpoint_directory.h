/* A directory of checkpoints, as rank 0 sees it:
 *
 *     step-000000000300.safetensors       written at that step, whole
 *     step-000000000400.safetensors.tmp   being written, or what a writer left that was killed
 *     lock                                held by the run that writes here; its death lets go of it */
#ifndef LKSI_CHECKPOINT_DIRECTORY_H
#define LKSI_CHECKPOINT_DIRECTORY_H

#include "base/base.h"

void lksi_checkpoint_path(char path[LKSI_PATH_NBYTES], const char *directory, int64_t step);
/* The steps that have a file, the newest first; the caller frees *steps. What has another name is passed over. */
lks_status lksi_checkpoint_list(const char *directory, int64_t **steps, size_t *count);
/* Once the file of step `newest` is durable: removes all but the `keep` newest up to it. Files of later steps go, too:
 * the run that wrote them was given up for an earlier step. What cannot be removed is a warning. */
lks_status lksi_checkpoint_prune(const char *directory, int64_t newest, int64_t keep);
/* Makes the directory where there is none, locks it, and removes what killed writers left. *descriptor holds the lock:
 * closing it lets go; -1 on a file system without locks, which is a warning.
 * Errors: LKS_ERR_FILE; LKS_ERR_STATE: another run has the lock, and which. */
lks_status lksi_checkpoint_take_directory(const char *directory, int *descriptor);

#endif
