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
    const int *ranks; /* that are waited for: named in errors, and one that has left ends the wait. None: anybody */
    int n_ranks;
    bool is_sliced; /* ends after one sleep, too */
} lksi_await;

/* Spins, yields, sleeps; looks at the abort word and the deadline. */
lks_status lksi_wait_for(lks_group *group, const lksi_await *await);
/* In the collective context, for one rank's counter. */
lks_status lksi_wait_one(lks_group *group, const _Atomic uint64_t *counter, uint64_t target, int rank);

/* Looks that may be in vain before a wait is any other's: most waits are over within a microsecond. */
enum { LKSI_MOST_LOOKS = 32 };
/* Counts the looks that were in vain: into the most of any wait so far. */
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
/* In a collective of a group on one host: waits until the counter that lies at `offset` in every seat is `target`, more
 * or less; its caller then waits for each. For whoever may not spin, because ranks share CPUs: it gives its CPU to
 * those that it shares it with, as long as they are needed. */
lks_status lksi_wait_by_turns(lks_group *group, size_t offset, uint64_t target);
/* The error of a group that somebody has declared dead. */
lks_status lksi_refuse_aborted(const lks_group *group, lksi_context context);
/* The error of whoever waits for a rank that has left, saying why. */
lks_status lksi_refuse_left(const lks_group *group, lksi_context context, int rank, const lksi_reason *farewell);
/* Everything that ends a wait early: the abort word, a rank that left, the deadline; reports a stall. *left_ns: until
 * the deadline. Whoever published something and then aborted or left has published: after an error look again. */
lks_status lksi_look(lks_group *group, lksi_context context, const int *ranks, int n_ranks, int64_t *left_ns);
/* Of the call that the group is in; where its clock has not started, as if it did now. */
int64_t lksi_deadline_ns(lks_group *group, lksi_context context);
/* Of one wait: zeroed before it, and where something has moved. */
typedef struct lksi_pauses {
    int n;
    int64_t since_ns;
} lksi_pauses;

/* What a thread that waits without a counter to look at does for one turn: spin for a moment, yield, or nothing: then
 * false, and the thread should sleep. */
bool lksi_pause(const lks_group *group, lksi_context context, lksi_pauses *pauses);
/* It slept that long for what has come now: how long it spins the next time follows from that. */
void lksi_was_woken(lks_group *group, lksi_context context, int64_t slept_ns);
/* Messages of users that are under way move only inside calls on groups of their world by the thread that began them;
 * so whoever waits for something else moves them on, and sleeps no longer than this meanwhile. */
enum { LKSI_POKE_NS = 100 * 1000 };
/* Moves on this thread's, of `group` and of all others, but where `context` waits for messages of `group` itself; false
 * where there are none. */
bool lksi_poke(lks_group *group, lksi_context context);
/* The group's own: for who does not wait. */
bool lksi_poke_own(lks_group *group);
/* After all ranks have joined: how many CPUs they share decides whether waiting may spin. */
void lksi_wait_configure(lks_group *group);

/* --- CPUs --- */

/* Those that the ranks of this host may use together. */
int lksi_shared_cpu_count(const lks_group *group);
/* Ranks that need all CPUs begin evenly spread, each on one that is its home (group->home_cpu); where they go from
 * there is the kernel's business. */
void lksi_go_home(lks_group *group);
/* Tells whether the rank that this one waited for was on its CPU: many times in a row, and it goes home. For the thread
 * that calls the group. */
void lksi_leave_crowd(lks_group *group, bool is_crowded);

#endif
