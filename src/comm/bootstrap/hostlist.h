/* Parses Slurm's compressed lists of hosts, "n[1-3,7],gpu[01-04]-x", and of counts, "2(x3),1". */
#ifndef LKSI_HOSTLIST_H
#define LKSI_HOSTLIST_H

#include "base/base.h"

/* Writes the first host of the list. A bracket stands for each number of its ranges, with the width of the range's
 * first number. Returns false if the list is malformed, a range is descending, or the name does not fit. */
bool lksi_hostlist_first(const char *list, char *first, size_t first_nbytes);

/* Returns the count at `index`, the number of counts and their sum. Returns false if the list is malformed, a count is
 * not in 1 .. LKSI_MAX_RANKS, the sum is larger, or `index` is out of range. */
bool lksi_counts_read(const char *list, int index, int *count, int *n_counts, int *sum);

#endif
