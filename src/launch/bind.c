/* Binding a rank to one CPU (--bind). */
#define _GNU_SOURCE /* affinity */
#include "launch/launch.h"

#include <sched.h>

lks_status lksi_bind_to_cpu(int index) {
    cpu_set_t allowed[LKSI_N_CPU_SETS], chosen[LKSI_N_CPU_SETS];
    if (sched_getaffinity(0, sizeof allowed, allowed) != 0) return lksi_error_errno("cannot read the allowed CPUs");
    int to_skip = index % CPU_COUNT_S(sizeof allowed, allowed);
    size_t cpu = 0;
    while (!CPU_ISSET_S(cpu, sizeof allowed, allowed) || to_skip-- > 0) cpu++;
    CPU_ZERO_S(sizeof chosen, chosen);
    CPU_SET_S(cpu, sizeof chosen, chosen);
    if (sched_setaffinity(0, sizeof chosen, chosen) != 0) return lksi_error_errno("cannot bind to CPU %zu", cpu);
    return LKS_OK;
}
