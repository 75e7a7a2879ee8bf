/* How ranks wait for each other (wait.c), and which CPUs they wait on (cpus.c). */
#ifndef LKSI_WAIT_H
#define LKSI_WAIT_H

#include "comm/clock.h"
#include "comm/group.h"

typedef struct lksi_condition {
    const _Atomic uint64_t *counter;
    uint64_t target;
    int rank; /* whose counter it is */
} lksi_condition;

typedef struct lksi_await {
    lksi_context context;
    const lksi_condition *conditions; /* one that holds ends the wait */
    int n_conditions;
    const int *ranks; /* the awaited ranks: errors name them, and the wait fails if one has left */
    int n_ranks;      /* 0: any rank */
    bool is_sliced;   /* the wait also ends after one sleep */
} lksi_await;

/* Spins, yields, then sleeps until a condition holds. Checks the abort word and the deadline. */
lks_status lksi_wait_for(lks_group *group, const lksi_await *await);
/* The same in the collective context, for the counter of one rank. */
lks_status lksi_wait_one(lks_group *group, const _Atomic uint64_t *counter, uint64_t target, int rank);

/* Looks before lksi_wait_one is called: most waits end within a microsecond. */
enum { LKSI_MOST_LOOKS = 32 };
/* Waits for one counter and counts the looks in vain. *n_in_vain becomes the maximum of all waits so far. */
static inline lks_status lksi_wait_counting(lks_group *group, const _Atomic uint64_t *counter, uint64_t target,
                                            int rank, int *n_in_vain) {
    int n = 0, most = group->may_spin ? LKSI_MOST_LOOKS : 0;
    while (atomic_load_explicit(counter, memory_order_acquire) < target) {
        if (n++ == most) {
            *n_in_vain = LKSI_MOST_LOOKS;
            return lksi_wait_one(group, counter, target, rank);
        }
        lksi_relax();
    }
    if (n > *n_in_vain) *n_in_vain = n;
    return LKS_OK;
}
static inline lks_status lksi_wait(lks_group *group, const _Atomic uint64_t *counter, uint64_t target, int rank) {
    int n_in_vain = 0;
    return lksi_wait_counting(group, counter, target, rank, &n_in_vain);
}
/* For ranks that may not spin, because they share CPUs. Waits until the counter at `offset` in every seat has about
 * reached `target`. It yields this CPU to the ranks that share it, as long as these are needed. The caller then waits
 * for each counter. Only in a collective of a group on one host. */
lks_status lksi_wait_by_turns(lks_group *group, size_t offset, uint64_t target);
/* The error if a rank has declared the group dead: this rank's own, if another of its threads has. LKS_OK otherwise. */
lks_status lksi_refuse_aborted(const lks_group *group, lksi_context context);
/* The error of a wait for a rank that has left. It says why the rank left. */
lks_status lksi_refuse_left(const lks_group *group, lksi_context context, int rank, const lksi_reason *farewell);
/* The error of the call `waiting`, which waited in vain for the end of `ahead`, a call of the group's worker. */
lks_status lksi_refuse_late(const lks_group *group, const char *waiting, int64_t waited_ms, const char *ahead);
/* How long a deadline must look missed before it counts as missed: a stop of the process may not be subtracted yet. */
enum { LKSI_SECOND_LOOK_NS = 20 * 1000 * 1000 };
/* Checks everything that ends a wait early: the abort word, ranks that left, a mismatch and the deadline. Reports a
 * stall. *left_ns: time until the deadline. A rank may have published something before it aborted or left, so after an
 * error the caller checks its condition once more. */
lks_status lksi_look(lks_group *group, lksi_context context, const int *ranks, int n_ranks, int64_t *left_ns);
/* Deadline of the group's current call. If its clock has not started, it counts from now. */
int64_t lksi_deadline_ns(lks_group *group, lksi_context context);
/* State of one wait. The caller zeroes it before the wait and whenever data has moved. */
typedef struct lksi_pauses {
    int n;
    int64_t since_ns, looked_ns;
} lksi_pauses;

/* One turn of a wait without a counter to poll: spins for a moment or yields. False: the thread should sleep. */
bool lksi_pause(const lks_group *group, lksi_context context, lksi_pauses *pauses);
/* Tells that the thread slept for `slept_ns` before data came. Adapts how long it spins the next time. */
void lksi_was_woken(lks_group *group, lksi_context context, int64_t slept_ns);
/* Point-to-point messages progress only inside calls on groups of their world, by the thread that began them. So a
 * thread that waits for something else progresses them, and sleeps no longer than this meanwhile. */
enum { LKSI_POKE_NS = 100 * 1000 };
/* Progresses this thread's messages in all groups of the world. In the user context it leaves out `group` itself, whose
 * messages the caller progresses. False if there are none. */
bool lksi_poke(lks_group *group, lksi_context context);
/* Progresses the messages of `group` and its parents only. For callers that do not wait. */
bool lksi_poke_own(lks_group *group);
/* Called after all ranks have joined. The number of CPUs that they share decides whether waits may spin. */
void lksi_wait_configure(lks_group *group);

/* --- CPUs --- */

/* The number of CPUs that the ranks of this host may use together. */
int lksi_shared_cpu_count(const lks_group *group);
/* Moves this thread to its home CPU (group->home_cpu), so that ranks that need all CPUs start evenly spread. The
 * affinity is restored, so the kernel may move the thread later. */
void lksi_go_home(lks_group *group);
/* Reports whether the awaited rank was on this rank's CPU. After many such reports in a row the rank goes home. To be
 * called by the thread that calls the group, not by a worker. */
void lksi_leave_crowd(lks_group *group, bool is_crowded);

#endif
