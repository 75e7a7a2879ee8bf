/* How many ranks a generation has, and where they run. */
#ifndef LKSI_LAUNCH_PLAN_H
#define LKSI_LAUNCH_PLAN_H

/* The largest number of ranks that `n_slots` hold, up to `n_wanted` and at least `n_min`, and that divides `grains`
 * where that is not 0; 0 where there is none. */
int lksi_plan_size(int n_slots, int n_wanted, int n_min, int grains);

/* Gives `size` ranks to hosts with slots[i] places each, in their order, so that each host's ranks are neighbours and
 * as few hosts as possible take part: counts[i]. `size` is at most the sum of the slots. */
void lksi_plan_blocks(const int *slots, int n_hosts, int size, int *counts);

#endif
