/* How a rank waits for another: spin, yield, sleep.
 *
 * Spinning is the fastest way if every rank has a CPU of its own. It is the slowest if the awaited rank needs this CPU.
 * So ranks spin only while there are no more ranks (on a worker: ranks and workers) than CPUs, and at first for at most
 * 200 us. That is slightly longer than a sleep mostly costs on virtual CPUs (45 to 70 us for the rank that wakes, 80 to
 * 135 us until the sleeper runs).
 *
 * Ranks that stop spinning too early put each other to sleep, by turns, in every call. So a rank that was woken soon
 * after it went to sleep spins twice as long the next time, up to 2 ms.
 *
 * A patient worker that has a CPU to itself polls the network for longer, for about the time of a bucket on a slow
 * network. An idle CPU would answer late each time, and nothing else needs the CPU.
 *
 * If other programs compete for the CPUs, ranks neither spin nor yield for long but sleep (lksi_yield, and
 * has_cpu_to_itself for workers): the kernel gives a CPU to a woken thread sooner than to one that yielded.
 *
 * Sleeps are cut into slices. So a wake-up that was lost with a killed rank costs a slice, not the whole timeout.
 */
#define _GNU_SOURCE /* sched_getcpu, syscall, RUSAGE_THREAD */
#include "base/cache.h"
#include "comm/comm_internal.h"
#include "comm/transport/segment/message.h"
#include "comm/transport/segment/step.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 200 * 1000,
    MOST_SPIN_NS = 2000 * 1000,
    YIELD_AFTER_NS = 5 * 1000,
    SPINS_PER_LOOK = 32,      /* per check of the clock and the abort word: about a microsecond */
    PATIENT_NS = 5000 * 1000, /* where lksi_work_is_patient() */
    N_YIELDS = 32,
    SLICE_NS = 50 * 1000 * 1000,
};
static const int64_t stall_report_ns = INT64_C(10) * 1000 * 1000 * 1000;

/* --- waiting --- */

static inline bool holds(const lksi_await *await) {
    for (int i = 0; i < await->n_conditions; i++)
        if (atomic_load(await->conditions[i].counter) >= await->conditions[i].target) return true;
    return false;
}

static bool may_spin(const lks_group *group, lksi_context context) {
    return context == LKSI_CONTEXT_COLLECTIVE && lksi_work_is_worker() ? group->may_worker_spin : group->may_spin;
}

static bool spin(lks_group *group, const lksi_await *await, int64_t limit_ns) {
    int64_t start_ns = 0;
    bool has_yielded = false;
    for (int i = 1;; i++) {
        lksi_relax();
        if (holds(await)) return true;
        if (i % SPINS_PER_LOOK != 0) continue;
        int64_t now_ns = lksi_now_ns();
        if (start_ns == 0) start_ns = now_ns;
        if (now_ns - start_ns > limit_ns || lksi_control_is_aborted(group->control)) return false;
        if (now_ns - start_ns <= YIELD_AFTER_NS) continue;
        /* The kernel may have placed the awaited rank on this CPU although there are enough CPUs. It runs as soon as
         * this thread yields. */
        if (!lksi_yield()) return false;
        if (!has_yielded && await->context == LKSI_CONTEXT_COLLECTIVE && !lksi_work_is_worker())
            lksi_leave_crowd(group, holds(await));
        has_yielded = true;
    }
}

/* A worker does not yield: it would wait for the whole time slice of the computing thread, some milliseconds. If it
 * sleeps and is woken, it gets the CPU at once. */
static bool may_yield(lksi_context context) { return context != LKSI_CONTEXT_COLLECTIVE || !lksi_work_is_worker(); }

static bool yield(const lksi_await *await) {
    for (int i = 0; i < N_YIELDS && lksi_yield(); i++)
        if (holds(await)) return true;
    return false;
}

/* Whether the kernel has given this thread's CPU to another since the last call. A gap without this is one in which the
 * host of a virtual machine took the CPU: to sleep would make it longer. */
static bool was_preempted(void) {
    static _Thread_local long n_before;
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0) return false;
    bool is_more = usage.ru_nivcsw > n_before;
    n_before = usage.ru_nivcsw;
    return is_more;
}

/* A worker that polls does not yield. If much time lies between two looks, other programs may need the CPU. */
static bool has_cpu_to_itself(lksi_pauses *pauses, int64_t now_ns) {
    enum { TAKEN_NS = 1000 * 1000, LATELY_NS = 100 * 1000 * 1000 };
    static _Thread_local int64_t taken_ns = -LATELY_NS, crowded_until_ns;
    if (pauses->looked_ns != 0 && now_ns - pauses->looked_ns >= TAKEN_NS && was_preempted()) {
        if (now_ns - taken_ns < LATELY_NS) crowded_until_ns = now_ns + LATELY_NS; /* once alone may be chance */
        taken_ns = now_ns;
    }
    bool is_alone = now_ns >= crowded_until_ns;
    pauses->looked_ns = is_alone ? now_ns : 0; /* it sleeps now, which is no sign of other programs */
    return is_alone;
}

bool lksi_pause(const lks_group *group, lksi_context context, lksi_pauses *pauses) {
    if (!may_spin(group, context)) {
        return may_yield(context) && pauses->n++ < N_YIELDS && lksi_yield();
    }
    int64_t now_ns = lksi_now_ns();
    if (pauses->since_ns == 0) pauses->since_ns = now_ns;
    int64_t spun_ns = now_ns - pauses->since_ns;
    if (spun_ns > (lksi_work_is_patient() ? PATIENT_NS : group->spin_ns[context])) return false;
    if (!may_yield(context) && !has_cpu_to_itself(pauses, now_ns)) return false;
    if (spun_ns > YIELD_AFTER_NS && may_yield(context)) return lksi_yield();
    lksi_relax();
    return true;
}

/* Waits for stores in flight. A publisher may have stored its counter and then read `awaited` before this thread set
 * it; the store may not be visible here yet. It arrives within a fraction of a microsecond, later behind other stores.
 * A needless sleep takes 50 us. The limit is by the clock, because lksi_relax takes from one nanosecond (ARM) to fifty.
 */
static bool has_arrived(const lksi_await *await) {
    enum { LOOKS_AT_ONCE = 64, ARRIVAL_NS = 3000 };
    int64_t until_ns = lksi_now_ns() + ARRIVAL_NS;
    do {
        for (int i = 0; i < LOOKS_AT_ONCE; i++) {
            if (holds(await)) return true;
            lksi_relax();
        }
    } while (lksi_now_ns() < until_ns);
    return holds(await);
}

static void sleep_until_rung(lks_group *group, const lksi_await *await, int64_t limit_ns) {
    lksi_bell *bell = &group->own_seat->bells[await->context];
    uint32_t rings = atomic_load(&bell->rings);
    atomic_store(&bell->awaited,
                 await->n_conditions == 1 ? group->seat_of[await->conditions[0].rank] + 1 : LKSI_AWAITS_ANY);
    if (!has_arrived(await) && !lksi_control_is_aborted(group->control)) {
        struct timespec slice = {.tv_nsec = (long)(limit_ns < SLICE_NS ? limit_ns : SLICE_NS)};
        syscall(SYS_futex, &bell->rings, FUTEX_WAIT, rings, &slice, NULL, 0);
    }
    atomic_store(&bell->awaited, 0);
}

/* A wait in a part of a group (group->parent) belongs to a call on the whole group. Texts show that call. */
static const lks_group *whole_of(const lks_group *group) { return group->parent != NULL ? group->parent : group; }

void lksi_progress_describe(const lks_group *group, lksi_context context, char *text, size_t text_nbytes) {
    const lks_group *whole = whole_of(group);
    const lksi_progress *progress = context == LKSI_CONTEXT_COLLECTIVE ? &whole->progress : &whole->user_progress;
    snprintf(text, text_nbytes, "%s,", progress->name);
    if (progress->has_tag) lksi_append(text, text_nbytes, " tag %d,", progress->tag);
    if (progress->sequence > 0) lksi_append(text, text_nbytes, " call %llu,", (unsigned long long)progress->sequence);
    lksi_append(text, text_nbytes, " %zu bytes done", progress->done_nbytes);
    if (progress->has_tag) lksi_match_describe_rest(group, text, text_nbytes);
}

void lksi_describe_awaited(const lks_group *group, bool asks, const int *ranks, int n_ranks, char *text,
                           size_t text_nbytes) {
    char why[256];
    const lks_group *whole = whole_of(group);
    text[0] = '\0';
    if (n_ranks == 0) lksi_append(text, text_nbytes, "any rank");
    for (int i = 0; i < n_ranks; i++)
        if (i == 0 || ranks[i] != ranks[0])
            lksi_append(text, text_nbytes, "%s%s", i > 0 ? " or " : "", lksi_rank_describe(group, ranks[i]).text);
    int awaited = n_ranks > 0 ? lksi_rank_in(whole, group, ranks[0]) : -1;
    int rank = lksi_blame(whole, asks, awaited, why, sizeof why);
    if (rank != awaited)
        lksi_append(text, text_nbytes, "%s%s", n_ranks > 0 ? ", which waits for " : ", of which ",
                    lksi_rank_describe(whole, rank).text);
    if (why[0] != '\0') lksi_append(text, text_nbytes, "%s %s", n_ranks > 0 ? ", which" : "", why);
}

/* The time since data last moved. A long operation waits repeatedly, so only the time without progress counts as a
 * stall. */
static int64_t find_still_ns(lksi_progress *progress, int64_t now_ns) {
    if (progress->done_nbytes != progress->seen_nbytes) {
        progress->seen_nbytes = progress->done_nbytes;
        progress->moved_ns = now_ns;
    }
    return now_ns - (progress->moved_ns > progress->started_ns ? progress->moved_ns : progress->started_ns);
}

static void report_stall(lks_group *group, lksi_context context, const int *ranks, int n_ranks, int64_t waited_ns) {
    char doing[160], awaited[512];
    lksi_progress_describe(group, context, doing, sizeof doing);
    lksi_describe_awaited(group, false, ranks, n_ranks, awaited, sizeof awaited);
    lksi_log(LKS_LOG_WARNING, "rank %d has waited %lld s for %s; %s", lksi_world_rank(group, group->rank),
             (long long)(waited_ns / 1000000000), awaited, doing);
}

/* Waiting for a rank that left without an error is a bug of the program. A rank that gave up has left the error that
 * all ranks return. */
lks_status lksi_refuse_left(const lks_group *group, lksi_context context, int rank, const lksi_reason *farewell) {
    char doing[160];
    lksi_progress_describe(group, context, doing, sizeof doing);
    if (farewell->status != LKS_OK) return lksi_error((lks_status)farewell->status, "%s; %s", farewell->text, doing);
    return lksi_error(LKS_ERR_PEER, "%s has left the group and is waited for; %s", lksi_rank_describe(group, rank).text,
                      doing);
}

/* A rank that left will not come any more. It may have left because the group has died since the last check, so the
 * abort word is read again. Ranks of other hosts have no seat: their end is detected by the stream. */
static lks_status check_presence(const lks_group *group, lksi_context context, const int *ranks, int n_ranks) {
    for (int i = 0; i < n_ranks; i++) {
        int seat = group->seat_of[ranks[i]];
        if (seat < 0 || atomic_load(&group->control->seats[seat].presence.value) != LKSI_LEFT) continue;
        LKS_TRY(lksi_refuse_aborted(group, context));
        return lksi_refuse_left(group, context, ranks[i], &group->control->seats[seat].farewell);
    }
    return LKS_OK;
}

static lks_status timed_out(lks_group *group, lksi_context context, const int *ranks, int n_ranks) {
    char doing[160], awaited[512];
    lksi_describe_awaited(group, true, ranks, n_ranks, awaited, sizeof awaited);
    lksi_progress_describe(group, context, doing, sizeof doing);
    LKS_TRY(lksi_refuse_aborted(group, context));
    return lksi_error(LKS_ERR_TIMEOUT, "rank %d waited %lld ms for %s; %s", lksi_world_rank(group, group->rank),
                      (long long)lksi_progress_in(group, context)->timeout_ms, awaited, doing);
}

/* Another thread executes the call in progress, so group->progress is not read. That thread wakes periodically to look
 * around, so it is looked at several times. */
lks_status lksi_refuse_late(const lks_group *group, const char *waiting, int64_t waited_ms, const char *ahead) {
    char awaited[512] = "";
    const lksi_activity *activity = &group->own_seat->activities[LKSI_CONTEXT_COLLECTIVE];
    enum { MOST_LOOKS = 20, BETWEEN_LOOKS_NS = 1000 * 1000 };
    int32_t word = 0;
    for (int i = 0; i < MOST_LOOKS && word == 0; i++) {
        if (i > 0) lksi_sleep_ns(BETWEEN_LOOKS_NS);
        word = atomic_load_explicit(&activity->awaited, memory_order_relaxed);
    }
    const int ranks[] = {word - 1};
    if (ranks[0] >= 0) lksi_describe_awaited(group, true, ranks, 1, awaited, sizeof awaited);
    return lksi_error(LKS_ERR_TIMEOUT, "rank %d waited %lld ms for its %s%s%s; %s, 0 bytes done",
                      lksi_world_rank(group, group->rank), (long long)waited_ms, ahead,
                      awaited[0] != '\0' ? ", which waits for " : "", awaited, waiting);
}

int64_t lksi_deadline_ns(lks_group *group, lksi_context context) {
    const lksi_progress *progress = lksi_progress_in(group, context);
    int64_t timeout_ms = progress->timeout_ms > 0 ? progress->timeout_ms : group->timeout_ms;
    int64_t started_ns = progress->started_ns > 0 ? progress->started_ns : lksi_running_ns();
    return started_ns + timeout_ms * 1000000;
}

/* If the process was stopped and continues, this thread may read the clock before another thread has detected the stop
 * and subtracted it. So a missed deadline is checked a second time after LKSI_SECOND_LOOK_NS. */
static lks_status check_deadline(lks_group *group, lksi_context context, const int *ranks, int n_ranks,
                                 int64_t *left_ns) {
    lksi_progress *progress = lksi_progress_in(group, context);
    int64_t now_ns = lksi_running_ns();
    if (progress->started_ns == 0) progress->started_ns = now_ns;
    int64_t still_ns = find_still_ns(progress, now_ns);
    if (still_ns > stall_report_ns && !progress->is_stall_reported) {
        report_stall(group, context, ranks, n_ranks, still_ns);
        progress->is_stall_reported = true;
    }
    *left_ns = lksi_deadline_ns(group, context) - lksi_running_ns();
    if (*left_ns > 0) return LKS_OK;
    lksi_sleep_ns(LKSI_SECOND_LOOK_NS);
    *left_ns = lksi_deadline_ns(group, context) - lksi_running_ns();
    return *left_ns > 0 ? LKS_OK : timed_out(group, context, ranks, n_ranks);
}

/* The error with which a thread of this rank fails the group. The thread may not have written it completely yet. */
static lks_status refuse_failing(const lks_group *group) {
    while (atomic_load(&group->is_failing) && group->status == LKS_OK) lksi_sleep_ns(10000);
    return lksi_group_refuse_dead(group);
}

/* Another thread of this rank may have failed the group, or a group that fails with it. The other ranks' answers can
 * arrive here before that thread is done. They are about this rank, so its own error comes first. */
static lks_status refuse_own(const lks_group *group) {
    while (group->parent != NULL || group->bound_to != NULL)
        group = group->parent != NULL ? group->parent : group->bound_to;
    LKS_TRY(refuse_failing(group));
    for (const lks_group *each = group->bound; each != NULL; each = each->next_bound) LKS_TRY(refuse_failing(each));
    return LKS_OK;
}

/* A group that is a part of another, or is being made out of it, dies with that group. */
lks_status lksi_refuse_aborted(const lks_group *group, lksi_context context) {
    const lks_group *over = group;
    while (over != NULL && !lksi_control_is_aborted(over->control)) over = over->parent;
    if (over == NULL) return LKS_OK;
    LKS_TRY(refuse_own(group));
    char doing[160];
    lksi_progress_describe(group, context, doing, sizeof doing);
    return lksi_control_abort_error(over->control, doing);
}

/* Attends to the awaited ranks, or to all ranks if any may be awaited. */
static lks_status attend(lks_group *group, lksi_context context, const int *ranks, int n_ranks) {
    if (group->remote == NULL || group->remote->attend == NULL) return LKS_OK;
    for (int i = 0; i < (n_ranks > 0 ? n_ranks : group->size); i++) {
        int rank = n_ranks > 0 ? ranks[i] : i;
        if (rank != group->rank && group->seat_of[rank] < 0) LKS_TRY(group->remote->attend(group, context, rank));
    }
    return LKS_OK;
}

lks_status lksi_look(lks_group *group, lksi_context context, const int *ranks, int n_ranks, int64_t *left_ns) {
    lksi_activity_await(group, context, n_ranks > 0 ? ranks[0] : -1);
    LKS_TRY(lksi_refuse_aborted(group, context));
    LKS_TRY(check_presence(group, context, ranks, n_ranks));
    if (group->parent != NULL && context == LKSI_CONTEXT_COLLECTIVE) LKS_TRY(lksi_step_overhear(group->parent));
    if (context == LKSI_CONTEXT_COLLECTIVE) LKS_TRY(lksi_posts_compare(group));
    LKS_TRY(check_deadline(group, context, ranks, n_ranks, left_ns));
    return attend(group, context, ranks, n_ranks);
}

static lks_status wait_asleep(lks_group *group, const lksi_await *await) {
    do {
        int64_t left_ns = 0;
        lks_status status = lksi_look(group, await->context, await->ranks, await->n_ranks, &left_ns);
        if (status != LKS_OK) return holds(await) ? LKS_OK : status;
        bool is_poking = lksi_poke(group, await->context);
        int64_t since_ns = lksi_now_ns();
        sleep_until_rung(group, await, is_poking && left_ns > LKSI_POKE_NS ? LKSI_POKE_NS : left_ns);
        lksi_forgive_stop(since_ns, lksi_now_ns());
    } while (!holds(await) && !await->is_sliced);
    return LKS_OK;
}

void lksi_was_woken(lks_group *group, lksi_context context, int64_t slept_ns) {
    int64_t *limit_ns = &group->spin_ns[context];
    if (slept_ns >= MOST_SPIN_NS)
        *limit_ns = SPIN_NS;
    else
        *limit_ns = *limit_ns < MOST_SPIN_NS / 2 ? 2 * *limit_ns : MOST_SPIN_NS;
}

/* The wait of a rank that has spun or yielded in vain. */
static lks_status wait_longer(lks_group *group, const lksi_await *await, bool has_spun) {
    int64_t since_ns = lksi_now_ns();
    lks_status status = wait_asleep(group, await);
    if (status == LKS_OK) lksi_activity_await(group, await->context, LKSI_AWAKE);
    if (has_spun && holds(await)) lksi_was_woken(group, await->context, lksi_now_ns() - since_ns);
    return status;
}

lks_status lksi_wait_for(lks_group *group, const lksi_await *await) {
    bool is_spinning = may_spin(group, await->context);
    if (is_spinning ? spin(group, await, group->spin_ns[await->context]) : may_yield(await->context) && yield(await))
        return LKS_OK;
    return wait_longer(group, await, is_spinning);
}

lks_status lksi_wait_one(lks_group *group, const _Atomic uint64_t *counter, uint64_t target, int rank) {
    const lksi_condition condition = {counter, target, rank};
    return lksi_wait_for(group, &(lksi_await){.context = LKSI_CONTEXT_COLLECTIVE,
                                              .conditions = &condition,
                                              .n_conditions = 1,
                                              .ranks = &rank,
                                              .n_ranks = 1});
}

/* The CPU on which a rank waited last. */
static _Atomic int32_t *cpu_of(const lks_group *group, int rank) {
    return &group->control->seats[rank].bells[LKSI_CONTEXT_COLLECTIVE].cpu;
}
static int look_up_cpu(const lks_group *group, int rank) {
    return atomic_load_explicit(cpu_of(group, rank), memory_order_relaxed);
}

/* Other ranks read it in every call. It is written only if it changed, so that they need not fetch the line again. */
static int show_cpu(const lks_group *group) {
    int cpu = sched_getcpu();
    if (look_up_cpu(group, group->rank) != cpu)
        atomic_store_explicit(cpu_of(group, group->rank), cpu, memory_order_relaxed);
    return cpu;
}

static int count_on(const lks_group *group, int cpu) {
    int n = 0;
    for (int rank = 0; rank < group->size; rank++) n += look_up_cpu(group, rank) == cpu;
    return n;
}

/* A rank of this CPU needs it, so this rank yields. A rank that is elsewhere is running, so this rank spins. */
static lks_status wait_in_turn(lks_group *group, const _Atomic uint64_t *counter, uint64_t target, int rank,
                               bool is_elsewhere) {
    const lksi_condition condition = {counter, target, rank};
    const lksi_await await = {LKSI_CONTEXT_COLLECTIVE, &condition, 1, &rank, 1, false};
    bool has_come = is_elsewhere ? spin(group, &await, SPIN_NS) : yield(&await);
    return has_come ? LKS_OK : wait_longer(group, &await, false);
}

/* Waits for the ranks of `cpu`, or for those of all other CPUs (is_elsewhere). `counters`: in the seat of rank 0. */
static lks_status wait_for_side(lks_group *group, const char *counters, uint64_t target, int cpu, bool is_elsewhere) {
    for (int rank = 0; rank < group->size; rank++, counters += sizeof(lksi_seat)) {
        if ((look_up_cpu(group, rank) != cpu) != is_elsewhere) continue;
        const _Atomic uint64_t *counter = (const void *)counters;
        if (atomic_load_explicit(counter, memory_order_acquire) < target)
            LKS_TRY(wait_in_turn(group, counter, target, rank, is_elsewhere));
    }
    return LKS_OK;
}

/* A switch from one rank to another costs about 2 us. Once the ranks of this CPU have come, yielding would run no rank
 * that is still needed. The others run on other CPUs already, so spinning pays. */
lks_status lksi_wait_by_turns(lks_group *group, size_t offset, uint64_t target) {
    if (lksi_work_is_worker()) return LKS_OK; /* a worker does not yield its CPU */
    lksi_ask_to_write(lksi_post_next(group)); /* the line arrives while other ranks have the CPU */
    const char *counters = (const char *)group->control->seats + offset;
    int cpu = show_cpu(group), home = group->home_cpu;
    LKS_TRY(wait_for_side(group, counters, target, cpu, false));
    for (int rank = 0; rank < group->size; rank++)
        if (look_up_cpu(group, rank) != cpu) __builtin_prefetch(counters + (size_t)rank * sizeof(lksi_seat));
    LKS_TRY(wait_for_side(group, counters, target, cpu, true));
    lksi_leave_crowd(group, cpu != home && count_on(group, cpu) > count_on(group, home) + 1);
    return LKS_OK;
}

bool lksi_group_worker_may_spin(const lks_group *group) { return group->may_worker_spin; }

void lksi_wait_configure(lks_group *group) {
    int n_cpus = lksi_shared_cpu_count(group);
    group->may_spin = group->n_local <= n_cpus;
    group->may_worker_spin = 2 * group->n_local <= n_cpus;
    uint32_t nobody_yet = 0;
    atomic_compare_exchange_strong(&group->control->n_posts, &nobody_yet,
                                   group->may_spin ? LKSI_FEW_POSTS : LKSI_N_POSTS);
    group->n_posts = atomic_load(&group->control->n_posts);
    group->is_pair = group->size == 2 && group->n_seats == 2 && group->n_posts != LKSI_N_POSTS;
    group->last_crossed = UINT64_MAX;
    for (int context = 0; context < LKSI_N_CONTEXTS; context++) group->spin_ns[context] = SPIN_NS;
    group->home_cpu = -1;
    if (group->n_local > 1 && group->n_local >= n_cpus) lksi_go_home(group);
}
