/* Which CPUs the ranks of a host may use, and where a rank runs on them. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "comm/bootstrap/rendezvous.h"
#include "comm/comm_internal.h"

#include <sched.h>
#include <string.h>

/* --- number of CPUs --- */

/* The count as the ranks reported it when they met. Ranks with different CPU sets count as using disjoint ones. */
static int told_cpu_count(const lks_group *group) {
    const lksi_member *members = group->members, *mine = &members[group->rank];
    int64_t n_cpus = 0;
    for (int rank = 0; rank < group->size; rank++) {
        int first = 0;
        if (members[rank].host_id != mine->host_id) continue;
        while (members[first].host_id != mine->host_id || members[first].cpus_id != members[rank].cpus_id) first++;
        if (first == rank) n_cpus += members[rank].n_cpus;
    }
    return n_cpus < INT32_MAX ? (int)n_cpus : INT32_MAX;
}

int lksi_shared_cpu_count(const lks_group *group) {
    cpu_set_t mine[LKSI_N_CPU_SETS];
    int n_cpus = lksi_cpu_count(); /* cut by the cgroup's quota, which the masks do not know */
    bool is_quota = sched_getaffinity(0, sizeof mine, mine) != 0 || CPU_COUNT_S(sizeof mine, mine) > n_cpus;
    if (is_quota) return n_cpus;
    if (group->n_seats < group->n_local) return told_cpu_count(group);
    uint64_t united[LKSI_AFFINITY_WORDS] = {0};
    for (int seat = 0; seat < group->n_seats; seat++)
        for (int i = 0; i < LKSI_AFFINITY_WORDS; i++) united[i] |= group->control->seats[seat].affinity[i];
    n_cpus = 0;
    for (int i = 0; i < LKSI_AFFINITY_WORDS; i++) n_cpus += __builtin_popcountll(united[i]);
    return n_cpus;
}

/* --- placement --- */

/* The number of ranks before this one that may use the same CPUs. */
static int count_before(const lks_group *group) {
    int n = 0;
    if (group->n_seats < group->n_local) return group->local_rank; /* not all CPU sets are known */
    for (const lksi_seat *seat = group->control->seats; seat < group->own_seat; seat++)
        n += memcmp(seat->affinity, group->own_seat->affinity, sizeof seat->affinity) == 0;
    return n;
}

void lksi_go_home(lks_group *group) {
    cpu_set_t all[LKSI_N_CPU_SETS], one[LKSI_N_CPU_SETS];
    if (sched_getaffinity(0, sizeof all, all) != 0) return;
    const int n_all = CPU_COUNT_S(sizeof all, all);
    if (n_all == 0 || n_all > lksi_shared_cpu_count(group))
        return; /* a quota: the kernel decides where the ranks run */
    int n_before = count_before(group) % n_all;
    size_t cpu = 0;
    while (!CPU_ISSET_S(cpu, sizeof all, all) || n_before-- > 0) cpu++; /* the n_before-th CPU of the set */
    CPU_ZERO_S(sizeof one, one);
    CPU_SET_S(cpu, sizeof one, one);
    if (sched_setaffinity(0, sizeof one, one) == 0) (void)sched_setaffinity(0, sizeof all, all);
    group->home_cpu = (int)cpu;
}

/* The kernel leaves two spinning ranks on one CPU for tens of milliseconds, and three of four ranks that take turns for
 * a tenth of a second and more. Small collectives are several times slower meanwhile, so the rank moves itself. */
void lksi_leave_crowd(lks_group *group, bool is_crowded) {
    enum { PATIENCE = 256 };
    group->n_crowded = is_crowded ? group->n_crowded + 1 : 0;
    if (group->n_crowded < PATIENCE) return;
    group->n_crowded = 0;
    if (group->home_cpu >= 0 && sched_getcpu() != group->home_cpu) lksi_go_home(group);
}
