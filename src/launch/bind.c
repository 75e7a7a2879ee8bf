/* One CPU per rank, where that is asked for. */
#define _GNU_SOURCE /* affinity */
#include "launch/launch.h"

#include <sched.h>

lks_status lksi_bind_to_cpu(int index) {
    cpu_set_t allowed, chosen;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return lksi_error_errno("cannot read the allowed CPUs");
    int to_skip = index % CPU_COUNT(&allowed);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &allowed) || to_skip-- > 0) cpu++;
    CPU_ZERO(&chosen);
    CPU_SET(cpu, &chosen);
    if (sched_setaffinity(0, sizeof chosen, &chosen) != 0) return lksi_error_errno("cannot bind to CPU %zu", cpu);
    return LKS_OK;
}
