/* How a rank waits for another: spin, yield, sleep.
 *
 * Spinning is the fastest where every rank has a CPU of its own, and the slowest where the awaited rank needs ours; so
 * it is for at most 50 us, and only while there are no more ranks than CPUs. Sleeps are cut into slices, so that a
 * wake-up that got lost with a killed rank costs a slice and not the deadline.
 */
#define _GNU_SOURCE /* affinity, syscall */
#include "comm/comm_internal.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 50 * 1000,
    SPINS_PER_LOOK = 32, /* at the clock and the abort word: about a microsecond */
    N_YIELDS = 8,
    SLICE_NS = 50 * 1000 * 1000,
};
static const int64_t stall_report_ns = INT64_C(10) * 1000 * 1000 * 1000;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline bool holds(const lksi_condition *conditions, int n_conditions) {
    for (int i = 0; i < n_conditions; i++)
        if (atomic_load(conditions[i].counter) >= conditions[i].target) return true;
    return false;
}

static bool spin(const lks_group *group, const lksi_condition *conditions, int n_conditions) {
    int64_t start_ns = 0;
    for (int i = 1;; i++) {
        relax();
        if (holds(conditions, n_conditions)) return true;
        if (i % SPINS_PER_LOOK != 0) continue;
        int64_t now_ns = lksi_now_ns();
        if (start_ns == 0) start_ns = now_ns;
        if (now_ns - start_ns > SPIN_NS || lksi_control_is_aborted(group->control)) return false;
    }
}

static bool yield(const lksi_condition *conditions, int n_conditions) {
    for (int i = 0; i < N_YIELDS; i++) {
        sched_yield();
        if (holds(conditions, n_conditions)) return true;
    }
    return false;
}

static void sleep_until_rung(lks_group *group, const lksi_condition *conditions, int n_conditions, int64_t limit_ns) {
    lksi_bell *bell = &group->control->seats[group->rank].bell;
    uint32_t rings = atomic_load(&bell->rings);
    atomic_store(&bell->awaited, n_conditions == 1 ? conditions[0].rank + 1 : LKSI_AWAITS_ANY);
    if (!holds(conditions, n_conditions) && !lksi_control_is_aborted(group->control)) {
        int64_t slice_ns = limit_ns < SLICE_NS ? limit_ns : SLICE_NS;
        struct timespec slice = {.tv_nsec = (long)slice_ns};
        syscall(SYS_futex, &bell->rings, FUTEX_WAIT, rings, &slice, NULL, 0);
    }
    atomic_store(&bell->awaited, 0);
}

void lksi_progress_describe(const lks_group *group, char *text, size_t text_nbytes) {
    const lksi_progress *progress = &group->progress;
    snprintf(text, text_nbytes, "%s, call %llu, %zu bytes done", progress->name, (unsigned long long)progress->sequence,
             progress->done_nbytes);
}

/* "rank 1 (host a, pid 7)", or several. */
static void describe_awaited(const lks_group *group, const lksi_condition *conditions, int n_conditions, char *text,
                             size_t text_nbytes) {
    size_t used = 0;
    for (int i = 0; i < n_conditions && used < text_nbytes; i++) {
        if (i > 0 && conditions[i].rank == conditions[0].rank) continue;
        const lksi_identity *identity = &group->control->seats[conditions[i].rank].identity;
        used += (size_t)snprintf(text + used, text_nbytes - used, "%srank %d (host %s, pid %d)", i > 0 ? " or " : "",
                                 conditions[i].rank, identity->host, (int)identity->pid);
    }
}

static void report_stall(lks_group *group, const lksi_condition *conditions, int n_conditions, int64_t waited_ns) {
    char doing[160], awaited[256];
    group->progress.is_stall_reported = true;
    lksi_progress_describe(group, doing, sizeof doing);
    describe_awaited(group, conditions, n_conditions, awaited, sizeof awaited);
    lksi_log(LKS_LOG_WARNING, "rank %d has waited %lld s for %s; %s", group->rank, (long long)(waited_ns / 1000000000),
             awaited, doing);
}

static lks_status timed_out(const lks_group *group, const lksi_condition *conditions, int n_conditions) {
    char doing[160], awaited[256];
    lksi_progress_describe(group, doing, sizeof doing);
    describe_awaited(group, conditions, n_conditions, awaited, sizeof awaited);
    return lksi_error(LKS_ERR_TIMEOUT, "rank %d waited %lld ms for %s; %s", group->rank,
                      (long long)group->progress.timeout_ms, awaited, doing);
}

/* A rank that left cannot come any more: it has said goodbye, so this is a bug of the program and not a crash. */
static lks_status check_presence(const lks_group *group, const lksi_condition *conditions, int n_conditions) {
    for (int i = 0; i < n_conditions; i++) {
        const lksi_seat *seat = &group->control->seats[conditions[i].rank];
        if (atomic_load(&seat->presence.value) != LKSI_LEFT) continue;
        char doing[160];
        lksi_progress_describe(group, doing, sizeof doing);
        return lksi_error(LKS_ERR_PEER, "rank %d (host %s, pid %d) has left the group and is waited for; %s",
                          conditions[i].rank, seat->identity.host, (int)seat->identity.pid, doing);
    }
    return LKS_OK;
}

/* Everything that ends a wait early. Whoever published and then aborted or left has published: conditions go first. */
static lks_status look(lks_group *group, const lksi_condition *conditions, int n_conditions, int64_t *left_ns) {
    lks_status status = LKS_OK;
    if (lksi_control_is_aborted(group->control)) {
        if (holds(conditions, n_conditions)) return LKS_OK;
        char doing[160];
        lksi_progress_describe(group, doing, sizeof doing);
        return lksi_control_abort_error(group->control, doing);
    }
    status = check_presence(group, conditions, n_conditions);
    if (status != LKS_OK) return holds(conditions, n_conditions) ? LKS_OK : status;
    lksi_progress *progress = &group->progress;
    int64_t now_ns = lksi_now_ns();
    if (progress->started_ns == 0) progress->started_ns = now_ns;
    int64_t waited_ns = now_ns - progress->started_ns;
    if (waited_ns > stall_report_ns && !progress->is_stall_reported)
        report_stall(group, conditions, n_conditions, waited_ns);
    *left_ns = progress->timeout_ms * 1000000 - waited_ns;
    return *left_ns > 0 ? LKS_OK : timed_out(group, conditions, n_conditions);
}

lks_status lksi_wait_any(lks_group *group, const lksi_condition *conditions, int n_conditions) {
    if (group->may_spin ? spin(group, conditions, n_conditions) : yield(conditions, n_conditions)) return LKS_OK;
    while (!holds(conditions, n_conditions)) {
        int64_t left_ns = 0;
        LKS_TRY(look(group, conditions, n_conditions, &left_ns));
        if (left_ns > 0) sleep_until_rung(group, conditions, n_conditions, left_ns);
    }
    return LKS_OK;
}

void lksi_wait_configure(lks_group *group) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    int n_cpus = lksi_cpu_count(); /* cut by the cgroup's quota, which the masks do not know */
    if (sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) <= n_cpus) {
        uint64_t united[LKSI_AFFINITY_WORDS] = {0};
        for (int rank = 0; rank < group->size; rank++)
            for (int i = 0; i < LKSI_AFFINITY_WORDS; i++) united[i] |= group->control->seats[rank].affinity[i];
        n_cpus = 0;
        for (int i = 0; i < LKSI_AFFINITY_WORDS; i++) n_cpus += __builtin_popcountll(united[i]);
    }
    group->may_spin = group->size <= n_cpus;
}
