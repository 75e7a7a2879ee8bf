/* How many ranks a generation has. */
#ifndef LKSI_LAUNCH_PLAN_H
#define LKSI_LAUNCH_PLAN_H

/* The largest number of ranks that `n_slots` hold, up to `n_wanted` and at least `n_min`, and that divides `grains`
 * where that is not 0; 0 where there is none. */
int lksi_plan_size(int n_slots, int n_wanted, int n_min, int grains);

#endif
