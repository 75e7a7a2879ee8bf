/* A row of numbered items, run strictly in order, by a thread of their own or by whoever waits for them. */
#ifndef LKSI_PROGRESS_H
#define LKSI_PROGRESS_H

#include "base/base.h"

typedef struct lksi_progress_row lksi_progress_row;

/* `run` runs one item; what it returns but LKS_OK ends the row, and whoever waits gets it with its text.
 * `may_spin`: who waits for the thread does not sleep at once, as both have CPUs of their own. */
lks_status lksi_progress_row_create(lksi_progress_row **progress, lks_status (*run)(void *context, size_t item),
                                    void *context, bool may_spin);
/* Joins the thread: items that are allowed must come to an end by themselves. Accepts NULL. */
void lksi_progress_row_destroy(lksi_progress_row *progress);
/* From now on a thread runs the items as soon as they are allowed. Does nothing where there is one. */
lks_status lksi_progress_row_start(lksi_progress_row *progress);

/* These are the caller's, one thread at a time. */

/* Items before `n` may run. */
void lksi_progress_row_allow(lksi_progress_row *progress, size_t n);
/* Returns once the items before `n`, which are allowed, have run. Without a thread it runs them. */
lks_status lksi_progress_row_wait(lksi_progress_row *progress, size_t n);
/* No further item begins until more are allowed. How many have. */
size_t lksi_progress_row_hold(lksi_progress_row *progress);
/* The next row begins with item 0. Nothing may be under way. An error stays. */
void lksi_progress_row_reset(lksi_progress_row *progress);

#endif
