/* A directory of checkpoints, which only rank 0 uses:
 *
 *     step-000000000300.safetensors       complete checkpoint of that step
 *     step-000000000400.safetensors.tmp   being written, or left by a writer that was killed
 *     lock                                locked by the run that writes here; released when its process ends */
#ifndef LKSI_CHECKPOINT_DIRECTORY_H
#define LKSI_CHECKPOINT_DIRECTORY_H

#include "base/base.h"

void lksi_checkpoint_path(char path[LKSI_PATH_NBYTES], const char *directory, int64_t step);
/* Lists the steps that have a file, newest first. Other file names are ignored. The caller frees *steps. */
lks_status lksi_checkpoint_list(const char *directory, int64_t **steps, size_t *count);
/* Removes all checkpoints except the `keep` newest ones of the run that has just written `newest`. Call it when that
 * file is durable. The run's checkpoint before it is of step `previous` or earlier. So files between the two are not
 * its own, nor are those of later steps: it was resumed from before them because they could not be used. A file that
 * cannot be removed is a warning. */
void lksi_checkpoint_prune(const char *directory, int64_t previous, int64_t newest, int64_t keep);
/* Creates the directory if it is missing, locks it, and removes partial files of killed writers. *descriptor holds the
 * lock and releases it when closed. It is -1 on a file system without locks, which is a warning.
 * Errors: LKS_ERR_FILE. LKS_ERR_STATE: another run holds the lock. The text names it. */
lks_status lksi_checkpoint_take_directory(const char *directory, int *descriptor);
/* Whether the lock that was taken is still that of the directory. Errors: LKS_ERR_STATE: the directory was removed and
 * made anew, so another run may hold its lock. */
lks_status lksi_checkpoint_check_directory(const char *directory, int descriptor);

#endif
