/* The size of a generation. */
#include "launch/plan.h"

int lksi_plan_size(int n_slots, int n_wanted, int n_min, int grains) {
    for (int size = n_slots < n_wanted ? n_slots : n_wanted; size >= n_min && size > 0; size--)
        if (grains == 0 || grains % size == 0) return size;
    return 0;
}
