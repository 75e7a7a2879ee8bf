/* Slurm's short forms of lists: of hosts, "n[1-3,7],gpu[01-04]-x", and of counts, "2(x3),1". */
#ifndef LKSI_HOSTLIST_H
#define LKSI_HOSTLIST_H

#include "base/base.h"

/* The first host of the list: a bracket stands for each number of its ranges, as wide as the first is written. False
 * where the list is malformed, a range runs backwards, or the name does not fit. */
bool lksi_hostlist_first(const char *list, char *first, size_t first_nbytes);

/* Count number `index`, how many counts there are, and their sum. False where the list is malformed, a count is not
 * from 1 to LKSI_MAX_RANKS, the sum is more, or there is no count of that number. */
bool lksi_counts_read(const char *list, int index, int *count, int *n_counts, int *sum);

#endif
