/* Parses Slurm's compressed lists of hosts, "n[1-3,7],gpu[01-04]-x", and lists of tasks, "0,3,4". */
#ifndef LKSI_HOSTLIST_H
#define LKSI_HOSTLIST_H

#include "base/base.h"

/* Writes the first host of the list. A bracket stands for each number of its ranges, with the width of the range's
 * first number. Returns false if the list is malformed, a range is descending, or the name does not fit. */
bool lksi_hostlist_first(const char *list, char *first, size_t first_nbytes);

/* Returns the number of tasks in the list, and whether task 0 is among them. Returns false if the list is malformed,
 * has more than `n_ranks` tasks, or one that is not in 0 .. n_ranks - 1. */
bool lksi_tasks_read(const char *list, int n_ranks, int *n_tasks, bool *has_rank_0);

#endif
