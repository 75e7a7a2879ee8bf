/* What the files of comm/ share: the group, one call of an operation, and how ranks wait for each other. */
#ifndef LKSI_COMM_INTERNAL_H
#define LKSI_COMM_INTERNAL_H

#include "base/cache.h"
#include "base/trial.h"
#include "comm/bootstrap/environment.h"
#include "comm/comm.h"
#include "comm/transport/segment/control.h"
#include "comm/transport/transport.h"

#include <string.h>

static inline int64_t lksi_timeout_cut(int64_t timeout_ms) {
    return timeout_ms < LKSI_MOST_TIMEOUT_MS ? timeout_ms : LKSI_MOST_TIMEOUT_MS;
}

/* The sequence numbers of calls that no user makes: theirs count from 1. Each is of one fingerprint, so that a notice
 * of an earlier one is none of another call. */
#define LKSI_TUNE_CALL UINT64_MAX
#define LKSI_SPLIT_CALL (UINT64_MAX - 1)

/* What the waits of the present call need to know, and say when they give up. */
typedef struct lksi_progress {
    const char *name;
    uint64_t sequence; /* 0: no user's call */
    int64_t timeout_ms;
    int64_t started_ns; /* 0 until the call has to wait for long, unless it was submitted: most never read the clock */
    bool has_tag;       /* a message */
    int tag;
    size_t done_nbytes;
    size_t seen_nbytes; /* of these, at the last look, and when they were last seen to have moved; 0: not yet */
    int64_t moved_ns;
    bool is_stall_reported;
} lksi_progress;

/* --- calls: every operation goes one way, lksi_run in dispatch.c --- */

typedef struct lksi_call lksi_call;

/* What an algorithm costs on the critical path, for choosing one (select.c): rounds of messages that wait for each
 * other, bytes that pass through the busiest rank, and bytes that it reads or writes itself to pack, add and round. */
typedef struct lksi_cost {
    double steps, nbytes, handled_nbytes;
} lksi_cost;

typedef struct lksi_algorithm {
    const char *name;
    lks_status (*run)(lks_group *group, const lksi_call *call);
    lksi_cost (*cost)(int n_ranks, size_t nbytes); /* NULL: never chosen by `auto` */
    /* `run` goes through memory that all ranks address; its own first exchange (lksi_post_and_collect,
     * lksi_post_wait_and_collect) compares the fingerprints. Only for groups on one host; run_remote, by lksi_step_*,
     * stands in for it elsewhere. Otherwise `run` is by lksi_step_*, whose messages carry the fingerprint. */
    bool is_segment;
    lks_status (*run_remote)(lks_group *group, const lksi_call *call);
    bool is_two_level;  /* over group->inner and group->outer */
    bool is_native;     /* a collective of MPI; once the ranks have compared the call */
    int mpi_kind;       /* which, an lksi_mpi_kind */
    bool is_order_free; /* floats: another order than the canonical one, so chosen by `auto` only where that is allowed
                         */
} lksi_algorithm;

enum { LKSI_MAX_ALGORITHMS = 10, LKSI_MAX_OPERATIONS = 16 };

/* Which ranks bring a buffer. */
typedef enum lksi_holders { LKSI_NOBODY, LKSI_EVERYONE, LKSI_ROOT } lksi_holders;

struct lksi_operation {
    const char *name;
    lksi_holders in, out;
    bool has_count, has_type, has_counts, is_reduction, is_rooted; /* which fields of a call mean something */
    bool has_own_counts;                                           /* each rank has its own, and out_counts */
    bool is_in_blocked, is_out_blocked;                            /* the buffer holds a block per rank */
    lksi_algorithm algorithms[LKSI_MAX_ALGORITHMS];                /* ends with a NULL name */
};

struct lksi_call {
    const lksi_operation *operation;
    const lksi_algorithm *algorithm;
    const void *in;
    void *out;
    size_t count, nbytes;     /* of one block where the operation has blocks; nbytes = count elements */
    const size_t *counts;     /* of the -v forms: an entry per rank, and count and nbytes are of all; else NULL */
    const size_t *out_counts; /* where `counts` are those of `in` alone; else NULL */
    lks_type type;
    lks_operator op;
    int root;
    double scale;
    int64_t timeout_ms;
    uint64_t sequence;
    uint64_t fingerprint;
    const lksi_meaning *meaning; /* of the fingerprint; NULL: none is known */
    int64_t submitted_ns;        /* its deadline counts from then; 0: from when it first has to wait */
};

/* Validates, chooses the algorithm, numbers the call and runs it, or submits it where options->work is set; an error
 * after the validation kills the group. */
lks_status lksi_run(lks_group *group, lksi_call *call, const lks_collective_options *options);
/* Runs a call that has its algorithm, sequence number and fingerprint, under its deadline. On whichever thread. */
lks_status lksi_execute(lks_group *group, const lksi_call *call);
/* The group's first error where it is dead. */
lks_status lksi_group_refuse_dead(const lks_group *group);
/* In the order of the calls (work.c): hands the call over and returns at once; or runs it here, after those under way.
 */
lks_status lksi_work_submit(lks_group *group, const lksi_call *call, lks_work **work);
lks_status lksi_work_run(lks_group *group, const lksi_call *call);
/* Returns when all ranks have called it, as the end of the call before. Between hosts. */
lks_status lksi_await_all(lks_group *group, const char *operation);
/* Returns when no collective is under way on the group's worker. For what runs on the caller's thread without going
 * through lksi_run. */
void lksi_work_drain(lks_group *group);
/* Ends the worker, after what is under way; before anything of the group is taken down. */
void lksi_work_stop(lks_group *group);
/* Whether this thread is some group's worker: it must not touch what belongs to the thread that calls the group. */
bool lksi_work_is_worker(void);
bool lksi_work_is_patient(void); /* one that looks at the network for long before it sleeps */
/* What a call is, for people: "all_reduce(count 5, f32, sum, algorithm direct)". */
void lksi_call_describe(const lksi_call *call, char *text, size_t text_nbytes);
/* Refuses a dead group, and starts the clock of a collective call named `name`, with the group's timeout. */
lks_status lksi_begin(lks_group *group, const char *name, uint64_t sequence);
/* ceil(log2 n) */
static inline int lksi_log2(int n) {
    int rounds = 0;
    while (1 << rounds < n) rounds++;
    return rounds;
}
/* One step of a fingerprint: quick, well mixed, not secret. */
static inline uint64_t lksi_mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

/* --- the group --- */

/* A symmetric or shared buffer as this rank sees it. Copies lie `stride` apart, in rank order; shared: stride 0. */
typedef struct lksi_allocation {
    uint64_t id; /* counts the allocations of the group: the same on all ranks */
    unsigned char *base;
    unsigned char *mine;
    size_t mapped_nbytes, stride, nbytes;
    bool is_shared;
} lksi_allocation;

/* One thread writes each; the worker the messages of algorithms, so those are read across threads. */
typedef struct lksi_counters {
    _Atomic uint64_t n_calls; /* collective ones; their sequence number */
    uint64_t n_point_to_point;
    _Atomic uint64_t n_messages, n_message_nbytes; /* of the algorithms */
    uint64_t n_user_messages, n_user_message_nbytes;
} lksi_counters;

typedef struct lksi_streams lksi_streams;
typedef struct lksi_step_state lksi_step_state;
typedef struct lksi_messages lksi_messages;
typedef struct lksi_transfer lksi_transfer;
typedef struct lksi_worker lksi_worker;
typedef struct lksi_mpi_streams lksi_mpi_streams;
typedef struct lksi_mpi_communicator lksi_mpi_communicator;

typedef struct lksi_world lksi_world;
typedef struct lksi_member lksi_member;

/* What `auto` knows (select.c). */
typedef struct lksi_selection {
    bool is_read, is_any_forced, is_always_direct;
    bool has_warned;                                   /* that what LOCKSTEP_ALGORITHM names cannot serve */
    const lksi_algorithm *forced[LKSI_MAX_OPERATIONS]; /* by LOCKSTEP_ALGORITHM, by index of the operation */
    double latency_ns, ns_per_byte;                    /* of a message between hosts */
    const char *last;                                  /* algorithm of the last call */
} lksi_selection;

/* The last call in which this rank did not have to wait for all others (exchange.c). */
typedef struct lksi_row {
    const lksi_operation *operation;
    int root;
    uint64_t exchange;
} lksi_row;

enum { LKSI_TURN_SIZES = 4 }; /* up to 8 KiB, 32 KiB and a chunk, and a wide chunk */

/* A trial of ways that all ranks take alike. Rank 0 finds out, and its word counts from the call after that in which
 * all have heard it (direct.c). */
typedef struct lksi_agreement {
    lksi_call_trial trial;
    bool is_second_known; /* rank 0's word */
    bool is_second;       /* this time */
    bool is_begun;
} lksi_agreement;

enum { LKSI_PLACE_SIZES = 15 };
/* Whether an operation's data is read where it lies (second), or staged: by its size, in twos from 512 bytes on. */
typedef struct lksi_places {
    lksi_agreement by_size[LKSI_PLACE_SIZES];
} lksi_places;

/* Of blocks that go one way. */
typedef struct lksi_move_trials {
    lksi_trial past_caches[2]; /* staged chunks, up to 32 KiB and above */
    lksi_places places;
} lksi_move_trials;

/* How wide the chunks of an operation's large reductions are (direct.c). */
typedef struct lksi_rounds {
    lksi_agreement wide; /* a wide chunk instead of several */
    size_t left;         /* of this round, bytes */
} lksi_rounds;

struct lks_group {
    /* A line goes to the core that reads it: what this rank needs of its own again it keeps here. First, so that each
     * begins with a line of the cache. */
    lksi_post own_post;                         /* place and payload of the last one */
    unsigned char own_shown[LKSI_ANNEX_NBYTES]; /* what a small reduction showed */
    uint64_t own_fingerprints[LKSI_N_POSTS];    /* what its lines have shown, by exchange */
    int rank, size;
    lksi_world *world;
    bool is_world;    /* made by lks_init, of all ranks of the job */
    unsigned n_forks; /* of lksi_n_forks, when it was made */
    uint64_t id;      /* the same on all ranks, no other group's of the job */
    uint64_t n_splits;
    lksi_member *members;     /* of all ranks: who they are */
    lks_group *next_in_world; /* guarded by the world */
    /* The ranks of this host have seats in the control segment, in rank order. Where all have, n_seats is size and a
     * rank's seat is its number. */
    lksi_control *control;
    lksi_seat *own_seat;
    int seat, n_seats;
    int local_rank,
        n_local;  /* among the ranks of this host, whether or not they share memory (LOCKSTEP_TRANSPORT=tcp) */
    int *seat_of; /* by rank; -1: on another host */
    int *rank_of; /* by seat */
    const lksi_transport *transport;
    void *backing;             /* the transport's */
    const lksi_remote *remote; /* how ranks of other hosts are reached; NULL where there are none */
    void *remote_state;
    lksi_mpi_streams *mpi_streams;           /* where the remote is mpi's */
    lksi_mpi_communicator *mpi_communicator; /* of the algorithms called native; made when first needed */
    /* Where the group spans hosts: the ranks of this host as a group, and the first rank of each host as a group (NULL
     * on the others). NULL otherwise. Both are used by two-level algorithms only. */
    lks_group *inner, *outer;
    lks_group *parent; /* of an inner or outer group: whoever waits in this one moves on the messages of that one */
    const lksi_call *divided; /* a call of this group that its parts are doing (two_level.c); NULL: none */
    int *host_of;             /* by rank: which host, counted by first rank */
    int n_hosts;
    bool may_spin, may_worker_spin;
    bool is_place_tried;              /* in the present call (direct.c) */
    int64_t spin_ns[LKSI_N_CONTEXTS]; /* for how long (wait.c) */
    int home_cpu, n_crowded;          /* cpus.c */
    atomic_bool may_peek;             /* this rank can read the ordinary memory of all others (shm/peek.c) */
    uint64_t peek_word;               /* what they try it on */
    int64_t timeout_ms;
    lks_order order;
    _Atomic(const void *) borrower;           /* whose threads it is lent to; NULL: nobody's */
    atomic_bool is_at_work;                   /* a thread is in a collective; a second one is mostly found out by it */
    lks_group *bound, *next_bound, *bound_to; /* those that fail with this one, the first; and the other way round */

    /* The first error. Both threads of a group may find one: the first to set is_failing writes the text, then status.
     * The text has room for LKSI_ABORT_TEXT_NBYTES and is made with the group: a failing group allocates nothing. */
    atomic_bool is_failing;
    _Atomic lks_status status;
    char *error_text;

    uint64_t n_exchanges, n_meets, n_stagings;
    uint32_t n_posts;        /* of a rank's lines and annexes that are used: as in `control` */
    uint32_t last_post;      /* the index of the last exchange's */
    uint32_t n_waited;       /* exchanges up to the last in a row in which all waited for all */
    int n_turns_before_look; /* in lksi_post_wait_and_collect */
    /* Whether staged chunks go past the caches, by size: all_reduce's, reduce's, reduce_scatter's. */
    lksi_trial turns[LKSI_TURN_SIZES], reduce_turns[2], scatter_turns[2];
    /* Blocks for all, for each: those that the root gives, that it takes, and that all give to all. */
    lksi_move_trials of_root[2], to_root[2], of_all[2];
    lksi_places all_reduce_places, reduce_places, scatter_places;
    lksi_rounds all_reduce_rounds, reduce_rounds;
    uint64_t n_checked; /* exchanges in which all are known to agree: fewer where this rank has run ahead */
    lksi_row row;
    lksi_progress progress;      /* of the collective context */
    lksi_progress user_progress; /* of the other */
    const char
        *published_names[LKSI_N_CONTEXTS]; /* what the seat's activity shows; by pointer, it saves a copy a call */
    const char *hashed_name;               /* the last operation's, and its hash */
    uint64_t name_hash;
    lksi_counters counters;
    lksi_selection selection;

    lksi_allocation *allocations;
    size_t n_allocations, allocations_capacity;
    uint64_t n_allocated;

    lksi_streams *streams[LKSI_N_CONTEXTS]; /* these four are made when first used */
    lksi_step_state *steps;
    lksi_messages *messages;
    _Atomic(const void *) messenger; /* the thread that used them last */
    atomic_bool is_in_message;       /* it is in a call on them */
    bool is_moved;                   /* it moves them on from a call on another group; guarded by the world */
    lksi_worker *worker;
    const void **inputs; /* scratch of the algorithms: an entry per rank */
    void **outputs;
    double *scales;
    unsigned char *scratch;
    size_t scratch_nbytes;
};

/* How many collective calls there have been; any thread may ask. */
static inline uint64_t lksi_n_calls(const lks_group *group) {
    return atomic_load_explicit(&group->counters.n_calls, memory_order_relaxed);
}
/* One of the group's counters, which one thread at a time writes, and others may read meanwhile. */
static inline void lksi_counter_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Counts one more, whose sequence number that is. */
static inline uint64_t lksi_count_call(lks_group *group) {
    uint64_t sequence = lksi_n_calls(group) + 1;
    atomic_store_explicit(&group->counters.n_calls, sequence, memory_order_relaxed);
    return sequence;
}

/* Makes the group out of its rank, size, world (held for it), id, members, timeout and order: seats, transport, and
 * where it spans hosts, streams and the groups of a two-level algorithm (form.c). `connections` as in lksi_tcp_join.
 * All its ranks call it. What is made so far goes with lks_group_destroy. */
lks_status lksi_group_form(lks_group *group, int *connections);
/* A group that has its error text, and room for `size` members. */
lks_status lksi_group_create(lks_group **group, int rank, int size, int64_t timeout_ms, lks_order order);

/* How often this process, and those that it comes from, have been forked. A child holds copies of its parent's groups,
 * but has no part in them: what it said there would be said for its parent, and the threads that it would wait for are
 * its parent's. A group of one rank is as good there as here. */
extern atomic_uint lksi_n_forks;
static inline bool lksi_is_parents(const lks_group *group) {
    return group->n_forks != atomic_load_explicit(&lksi_n_forks, memory_order_relaxed) && group->size > 1;
}

/* Refuses NULL, which is what lks_group_split gives to a rank that joins no group, and a forked child. */
static inline lks_status lksi_group_check(const lks_group *group, const char *name) {
    if (group == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s: `group` is NULL", name);
    if (!lksi_is_parents(group)) return LKS_OK;
    return lksi_error(LKS_ERR_STATE, "%s: a forked child has no part in its parent's groups", name);
}

/* Who a rank of the group is. Texts name ranks as the world counts them, whatever group they are about: */
const lksi_identity *lksi_identity_of(const lks_group *group, int rank);
static inline int lksi_world_rank(const lks_group *group, int rank) { return lksi_identity_of(group, rank)->rank; }
/* Who `rank` of `part` is in `group`, which has all its ranks. */
int lksi_rank_in(const lks_group *group, const lks_group *part, int rank);
/* The first rank of a host; the group's size where there is none. */
int lksi_first_rank_of(const lks_group *group, int host);
/* "rank 3 (host a, pid 7)" */
typedef struct lksi_rank_text {
    char text[LKSI_HOST_NBYTES + 48];
} lksi_rank_text;
lksi_rank_text lksi_rank_describe(const lks_group *group, int rank);

/* What the engines of messages and steps hold for the group; ends messages under way with an error. */
void lksi_messages_close(lks_group *group);
void lksi_steps_close(lks_group *group);

/* --- waiting (transport/segment/wait.c) --- */

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
/* After each slice of a sleep, of which lksi_look has been asked before. One that took very long is one in which this
 * process was stopped, as all of a suspended job are: it has not waited meanwhile. */
void lksi_forgive_stop(lks_group *group, lksi_context context, int64_t slept_ns);
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

/* --- CPUs (transport/segment/cpus.c) --- */

/* Those that the ranks of this host may use together. */
int lksi_shared_cpu_count(const lks_group *group);
/* Ranks that need all CPUs begin evenly spread, each on one that is its home (group->home_cpu); where they go from
 * there is the kernel's business. */
void lksi_go_home(lks_group *group);
/* Tells whether the rank that this one waited for was on its CPU: many times in a row, and it goes home. For the thread
 * that calls the group. */
void lksi_leave_crowd(lks_group *group, bool is_crowded);

static inline lksi_progress *lksi_progress_in(lks_group *group, lksi_context context) {
    return context == LKSI_CONTEXT_COLLECTIVE ? &group->progress : &group->user_progress;
}
/* "all_reduce, call 17, 4096 bytes done" */
void lksi_progress_describe(const lks_group *group, lksi_context context, char *text, size_t text_nbytes);

/* --- what lks_group_report shows (report.c) --- */

void lksi_activity_publish_name(lks_group *group, lksi_context context);
static inline void lksi_activity_begin(lks_group *group, lksi_context context) {
    const lksi_progress *progress = lksi_progress_in(group, context);
    atomic_store_explicit(&group->own_seat->activities[context].sequence, progress->sequence, memory_order_relaxed);
    if (group->published_names[context] != progress->name) lksi_activity_publish_name(group, context);
}
void lksi_activity_end(lks_group *group, lksi_context context);
/* This rank sleeps, waiting for `rank`, or for anybody (-1); LKSI_AWAKE: not any more. Who has waited in vain stays
 * asleep: its group is dead, and others may still ask what it waited for. A part of a group tells the whole one, too.
 */
enum { LKSI_AWAKE = -2 };
void lksi_activity_await(lks_group *group, lksi_context context, int rank);

/* The beginning of lksi_begin in either context, for a call that has filled in lksi_progress_in: its clock may have
 * started before (0: it starts with its first wait). Filled in there and not copied: a copy by vectors waits for the
 * stores that it reads. */
static inline lks_status lksi_start(lks_group *group, lksi_context context) {
    lksi_progress *current = lksi_progress_in(group, context);
    if (current->timeout_ms <= 0) current->timeout_ms = group->timeout_ms;
    if (group->status != LKS_OK) return lksi_group_refuse_dead(group);
    if (context == LKSI_CONTEXT_COLLECTIVE) lksi_activity_begin(group, context);
    if (!lksi_control_is_aborted(group->control)) return LKS_OK;
    return lksi_group_fail(group, lksi_refuse_aborted(group, context));
}

/* --- who is waited for (blame.c) --- */

/* How long ranks of other hosts have to answer. */
enum { LKSI_ROLL_CALL_MS = 400 };
/* What the rank in a seat is doing. */
lksi_doing lksi_doing_of_seat(const lks_group *group, int seat);
/* The call in which the rank is in another group that this rank knows of, as lksi_doing has it (report.c). */
void lksi_elsewhere_describe(const lks_group *group, int rank, char *text, size_t text_nbytes);
/* Whether a rank has left in peace: it owes nobody an answer. */
bool lksi_has_left(const lks_group *group, int rank);
/* Whether the ranks of other hosts can be asked what they are doing: the first rank passes questions on. */
bool lksi_can_ask(const lks_group *group);
/* The rank that a wait for `awaited` is to be charged to; `why` ("is stopped") may become empty. `asks`: ranks of other
 * hosts are asked, which is for the end of a wait: there may be hundreds, and all of them ask. */
int lksi_blame(lks_group *group, bool asks, int awaited, char *why, size_t why_nbytes);

/* --- meeting (transport/segment/exchange.c) --- */

/* The index of all ranks' lines of the coming exchange: the next of n_posts, or of LKSI_LEAST_POSTS in a row of calls
 * in which all wait for all (exchange.c). */
static inline uint32_t lksi_next_post(const lks_group *group) {
    uint32_t next = group->last_post + 1;
    if (group->n_waited >= LKSI_LEAST_POSTS)
        next = (group->last_post & ~(LKSI_LEAST_POSTS - 1U)) | (next & (LKSI_LEAST_POSTS - 1U));
    return next & (group->n_posts - 1);
}
/* The line that this rank shows in the coming exchange: lksi_post_put, then lksi_post_and_collect. */
static inline lksi_post *lksi_post_next(lks_group *group) { return &group->own_seat->posts[lksi_next_post(group)]; }
/* Bytes [offset, offset + nbytes) of its payload. */
static inline void lksi_post_put(lks_group *group, size_t offset, const void *data, size_t nbytes) {
    memcpy(lksi_post_next(group)->payload + offset, data, nbytes);
    memcpy(group->own_post.payload + offset, data, nbytes);
}
/* The place and the payload that `rank` showed in the last exchange; valid until this rank's next exchange. */
static inline const lksi_post *lksi_post_of(const lks_group *group, int rank) {
    if (rank == group->rank) return &group->own_post;
    return &group->control->seats[group->seat_of[rank]].posts[group->last_post];
}
/* Room for the at most LKSI_ANNEX_NBYTES bytes that this rank shows in the coming exchange, in its line or beside it;
 * and what another rank showed in the last one, equally long. */
static inline unsigned char *lksi_shown_next(lks_group *group, size_t nbytes) {
    lksi_seat *seat = group->own_seat;
    uint32_t next = lksi_next_post(group);
    return nbytes <= LKSI_PAYLOAD_NBYTES ? seat->posts[next].payload : seat->annexes[next];
}
static inline const unsigned char *lksi_shown_by(const lks_group *group, int rank, size_t nbytes) {
    const lksi_seat *seat = &group->control->seats[group->seat_of[rank]];
    return nbytes <= LKSI_PAYLOAD_NBYTES ? seat->posts[group->last_post].payload : seat->annexes[group->last_post];
}
/* What every rank shows in a call's exchange, in its line or beside it: maybe nothing; and what of it is read here. */
typedef struct lksi_shown {
    size_t nbytes, begin, end;
} lksi_shown;
/* Asks for what `rank` shows behind or beside the first half of the line of that index, before this rank waits for
 * it: mostly it is there by then, and comes at the same time (all_reduce of 256 B on two ranks: 109 to 98 ns). */
static inline void lksi_shown_ask(const lks_group *group, int rank, uint32_t index, lksi_shown shown) {
    const lksi_seat *seat = &group->control->seats[group->seat_of[rank]];
    const lksi_post *post = &seat->posts[index];
    const unsigned char *in_line = post->payload, *beside = seat->annexes[index];
    const unsigned char *base = shown.nbytes <= LKSI_PAYLOAD_NBYTES ? in_line : beside, *end = base + shown.end;
    const unsigned char *at = base + shown.begin / LKSI_CACHE_LINE_NBYTES * LKSI_CACHE_LINE_NBYTES;
    if (base == in_line) at = (const unsigned char *)post + LKSI_CACHE_LINE_NBYTES;
    for (; at < end; at += LKSI_CACHE_LINE_NBYTES) __builtin_prefetch(at);
}
/* Shows the line, waits for everyone's, compares fingerprints. `call` explains a mismatch. */
lks_status lksi_post_and_collect(lks_group *group, const lksi_call *call, uint64_t place);
/* The same for small calls, which ranks make in a row: with no place, and asking for what is `shown`. */
lks_status lksi_post_wait_and_collect(lks_group *group, const lksi_call *call, lksi_shown shown);
/* The same for a rank that shows `nbytes` and needs nothing of the others: from the second call of a row on (one
 * operation, one root) it does not wait for them, and compares later. For operations of the table that have a root: in
 * all others all wait. */
lks_status lksi_post_and_run_ahead(lks_group *group, const lksi_call *call, size_t nbytes);
/* The same for one that needs what is `shown` by `rank` alone. */
lks_status lksi_post_and_hear(lks_group *group, const lksi_call *call, int rank, lksi_shown shown);
/* Returns when all ranks have called it; everything written before is then visible to all. */
lks_status lksi_meet(lks_group *group);
/* The same for a rank that has read others' buffers. They stay as they are until it meets their owners, or one gives
 * up: then it is that error here, and not LKS_OK with what the owner put there afterwards. */
lks_status lksi_meet_having_read(lks_group *group);

/* --- ordinary memory of other processes of the host (transport/shm/peek.c) --- */

/* Shows a word of this rank's memory, before it takes its seat; and after all have taken theirs, tries to read those of
 * all: sets group->may_peek. */
void lksi_peek_show(lks_group *group);
void lksi_peek_probe(lks_group *group);
/* Reads what `rank` has at `address` of its own memory and keeps there until it hears that it was read. In a collective
 * call, of which lksi_have_peeked says, when all have met, whether everybody could read everything; if not, nobody
 * peeks any more. */
lks_status lksi_peek(lks_group *group, int rank, uint64_t address, void *to, size_t nbytes);
bool lksi_have_peeked(lks_group *group);
/* The same in any call; false where it cannot be read, or the group came to its end meanwhile. */
bool lksi_try_peek(const lks_group *group, int rank, uint64_t address, void *to, size_t nbytes);

/* --- symmetric memory (symmetric.c) --- */

/* Where `data` lies for the other ranks: allocation and offset in one word; 0 where it is ordinary memory. */
uint64_t lksi_place_of(const lks_group *group, const void *data, size_t nbytes);
/* Where the copy of `rank` lies for this rank; NULL where this rank does not hold the allocation. */
unsigned char *lksi_place_address(const lks_group *group, uint64_t place, int rank);
void lksi_symmetric_free_all(lks_group *group);

/* --- scratch memory that the group keeps --- */
lks_status lksi_group_scratch(lks_group *group, size_t nbytes, unsigned char **scratch);

/* --- steps of the algorithms that send messages (transport/segment/step.c) ---
 * Messages of one pair arrive in order; both sides know the length. A message of another call is LKS_ERR_MISMATCH. */
lks_status lksi_step_send(lks_group *group, const lksi_call *call, int to, const void *data, size_t nbytes);
lks_status lksi_step_receive(lks_group *group, const lksi_call *call, int from, void *data, size_t nbytes);
/* Both at once, each going on as far as it can while the other waits. `to` and `from` may be the same or not. */
lks_status lksi_step_exchange(lks_group *group, const lksi_call *call, int to, const void *sent, size_t n_sent_nbytes,
                              int from, void *received, size_t n_received_nbytes);

/* --- choosing an algorithm (select.c) --- */

lks_status lksi_select_named(lks_group *group, lksi_call *call, const char *name);
/* Sets call->algorithm: the one called `name`, or what `auto` (or NULL) means for this call; the same on all ranks. */
static inline lks_status lksi_select(lks_group *group, lksi_call *call, const char *name) {
    if (name != NULL || !group->selection.is_always_direct) return lksi_select_named(group, call, name);
    call->algorithm = call->operation->algorithms;
    return LKS_OK;
}
/* Why the two-level algorithms cannot serve this call; NULL where they can. */
const char *lksi_two_level_obstacle(const lks_group *group, const lksi_call *call);
/* The same of MPI's own collectives. */
const char *lksi_native_obstacle(const lks_group *group, const lksi_call *call);
static inline bool lksi_is_on_one_host(const lks_group *group) { return group->n_seats == group->size; }

#endif
