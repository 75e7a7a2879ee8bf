/* The number of ranks of a generation. */
#ifndef LKSI_LAUNCH_PLAN_H
#define LKSI_LAUNCH_PLAN_H

/* Returns the largest number of ranks that fits into `n_slots`, is between `n_min` and `n_wanted`, and divides `grains`
 * if that is not 0. Returns 0 if there is none. */
int lksi_plan_size(int n_slots, int n_wanted, int n_min, int grains);

#endif
