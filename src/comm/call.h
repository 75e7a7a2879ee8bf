/* A call of an operation, and the tables of operations and their algorithms. Every operation runs through lksi_run in
 * dispatch.c. */
#ifndef LKSI_COMM_CALL_H
#define LKSI_COMM_CALL_H

#include "comm/bootstrap/environment.h"
#include "comm/comm.h"
#include "comm/transport/segment/control.h"

static inline int64_t lksi_timeout_cut(int64_t timeout_ms) {
    return timeout_ms < LKSI_MOST_TIMEOUT_MS ? timeout_ms : LKSI_MOST_TIMEOUT_MS;
}

/* Sequence numbers of internal calls. Calls of users count from 1. All calls with one of these numbers have the same
 * fingerprint, so that a notice of an earlier one does not look like another call. */
#define LKSI_TUNE_CALL UINT64_MAX
#define LKSI_SPLIT_CALL (UINT64_MAX - 1)

/* State of the current call for its waits and their error texts. */
typedef struct lksi_progress {
    const char *name;
    uint64_t sequence; /* 0: not a user's call */
    int64_t timeout_ms;
    /* By lksi_running_ns. 0 until the call waits for long, unless it was submitted: most calls never read the clock. */
    int64_t started_ns;
    bool has_tag; /* a message */
    int tag;
    size_t done_nbytes;
    size_t seen_nbytes; /* done_nbytes at the last look */
    int64_t moved_ns;   /* when done_nbytes was last seen to have grown; 0: not yet */
    bool is_stall_reported;
} lksi_progress;

typedef struct lksi_call lksi_call;

/* The cost of an algorithm on the critical path, for select.c: dependent rounds of messages, bytes through the busiest
 * rank, and bytes that this rank reads or writes itself to pack, add and round. */
typedef struct lksi_cost {
    double steps, nbytes, handled_nbytes;
} lksi_cost;

typedef struct lksi_algorithm {
    const char *name;
    lks_status (*run)(lks_group *group, const lksi_call *call);
    lksi_cost (*cost)(int n_ranks, size_t nbytes); /* NULL: never chosen by `auto` */
    /* true: `run` uses memory that all ranks address, and works only for groups on one host. Its first exchange
     * (lksi_post_and_collect, lksi_post_wait_and_collect) compares the fingerprints. For other groups run_remote, which
     * uses lksi_step_*, replaces it. false: `run` uses lksi_step_*, whose messages carry the fingerprint. */
    bool is_segment;
    lks_status (*run_remote)(lks_group *group, const lksi_call *call);
    bool is_two_level; /* uses group->inner and group->outer */
    bool is_native;    /* a collective of MPI, run after the ranks have compared the call */
    int mpi_kind;      /* an lksi_mpi_kind */
    /* Adds floats in another order than the canonical one: `auto` chooses it only if LKS_ORDER_ANY allows that. */
    bool is_order_free;
} lksi_algorithm;

enum { LKSI_MAX_ALGORITHMS = 10, LKSI_MAX_OPERATIONS = 16 };

/* Which ranks pass a buffer. */
typedef enum lksi_holders { LKSI_NOBODY, LKSI_EVERYONE, LKSI_ROOT } lksi_holders;

struct lksi_operation {
    const char *name;
    lksi_holders in, out;
    bool has_count, has_type, has_counts, is_reduction, is_rooted; /* which fields of a call are used */
    bool has_own_counts;                                           /* counts differ by rank; uses out_counts, too */
    bool is_in_blocked, is_out_blocked;                            /* the buffer holds a block per rank */
    lksi_algorithm algorithms[LKSI_MAX_ALGORITHMS];                /* ends with a NULL name */
};

struct lksi_call {
    const lksi_operation *operation;
    const lksi_algorithm *algorithm;
    const void *in;
    void *out;
    size_t count, nbytes;     /* of one block if the operation has blocks; nbytes is the size of `count` elements */
    const size_t *counts;     /* -v forms: an entry per rank, and count and nbytes are the sums; otherwise NULL */
    const size_t *out_counts; /* if `counts` are those of `in` only; otherwise NULL */
    lks_type type;
    lks_operator op;
    int root;
    double scale;
    int64_t timeout_ms;
    uint64_t sequence;
    uint64_t fingerprint;
    const lksi_meaning *meaning; /* explains the fingerprint; NULL: not known */
    int64_t submitted_ns;        /* start of its deadline; 0: the deadline counts from its first long wait */
};

/* Validates the call, chooses the algorithm, numbers the call and runs it, or submits it if options->work is set. An
 * error after the validation kills the group. */
lks_status lksi_run(lks_group *group, lksi_call *call, const lks_collective_options *options);
/* Runs a call that has its algorithm, sequence number and fingerprint, under its deadline. Any thread may call it. */
lks_status lksi_execute(lks_group *group, const lksi_call *call);
/* The group's first error if it is dead. LKS_OK otherwise. */
lks_status lksi_group_refuse_dead(const lks_group *group);
/* Both keep the order of the calls (work.c). submit passes the call to the worker and returns at once. run executes it
 * on this thread, after the calls in progress. */
lks_status lksi_work_submit(lks_group *group, const lksi_call *call, lks_work **work);
lks_status lksi_work_run(lks_group *group, const lksi_call *call);
/* Returns when all ranks have called it. It ends the call before, between hosts. */
lks_status lksi_await_all(lks_group *group, const char *operation);
/* Returns when no collective is in progress on the group's worker. For operations that run on the caller's thread
 * without lksi_run. await_turn fails the group at the deadline of `call`, whose submitted_ns is set. */
lks_status lksi_work_await_turn(lks_group *group, const lksi_call *call);
void lksi_work_drain(lks_group *group);
/* Waits for the calls in progress and ends the worker. To be called before any part of the group is freed. */
void lksi_work_stop(lks_group *group);
/* Whether this thread is a worker. A worker must not touch data that belongs to the thread that calls the group. */
bool lksi_work_is_worker(void);
bool lksi_work_is_patient(void); /* a worker that polls the network for long before it sleeps */
/* Whether this reduction must keep the canonical order of the ranks: another one would give other bits. */
bool lksi_call_has_order(const lks_group *group, const lksi_call *call);
/* Describes a call in a text: "all_reduce(count 5, f32, sum, algorithm direct)". */
void lksi_call_describe(const lksi_call *call, char *text, size_t text_nbytes);
/* Refuses a dead or lent group, and starts a collective call named `name` with the group's timeout. */
lks_status lksi_begin(lks_group *group, const char *name, uint64_t sequence);
/* ceil(log2 n) */
static inline int lksi_log2(int n) {
    int rounds = 0;
    while (1 << rounds < n) rounds++;
    return rounds;
}
/* One step of a fingerprint: fast and well mixed, but not cryptographic. */
static inline uint64_t lksi_mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

#endif
