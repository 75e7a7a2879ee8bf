#include "launch/plan.h"

int lksi_plan_size(int n_slots, int n_wanted, int n_min, int grains) {
    for (int size = n_slots < n_wanted ? n_slots : n_wanted; size >= n_min && size > 0; size--)
        if (grains == 0 || grains % size == 0) return size;
    return 0;
}

void lksi_plan_blocks(const int *slots, int n_hosts, int size, int *counts) {
    for (int i = 0; i < n_hosts; i++) {
        counts[i] = slots[i] < size ? slots[i] : size;
        size -= counts[i];
    }
}
