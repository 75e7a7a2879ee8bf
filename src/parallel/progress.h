/* A row of numbered items that run strictly in order, on a thread of their own or in the caller that waits for them. */
#ifndef LKSI_PROGRESS_H
#define LKSI_PROGRESS_H

#include "base/base.h"

typedef struct lksi_progress_row lksi_progress_row;

/* `run` runs one item. Any status other than LKS_OK ends the row, and waits return it with its text.
 * `may_spin`: the caller and the thread have a CPU each, so a wait spins before it sleeps. */
lks_status lksi_progress_row_create(lksi_progress_row **progress, lks_status (*run)(void *context, size_t item),
                                    void *context, bool may_spin);
/* Joins the thread. An item that is running must end by itself. Accepts NULL. */
void lksi_progress_row_destroy(lksi_progress_row *progress);
/* Starts a thread that runs the items as soon as they are allowed. Does nothing if there is one. */
lks_status lksi_progress_row_start(lksi_progress_row *progress);

/* The functions below are for the caller. One thread at a time may call them. */

/* Allows the items before `n` to run. */
void lksi_progress_row_allow(lksi_progress_row *progress, size_t n);
/* Waits until the items before `n` have run. They must be allowed. Without a thread it runs them. */
lks_status lksi_progress_row_wait(lksi_progress_row *progress, size_t n);
/* Prevents further items from beginning until more are allowed. Returns how many have begun. */
size_t lksi_progress_row_hold(lksi_progress_row *progress);
/* Restarts the row at item 0. No item may be running. After an error it does nothing. */
void lksi_progress_row_reset(lksi_progress_row *progress);

#endif
