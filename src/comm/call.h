/* One call of an operation, and the tables of operations and their algorithms. Every operation goes one way, lksi_run
 * in dispatch.c. */
#ifndef LKSI_COMM_CALL_H
#define LKSI_COMM_CALL_H

#include "comm/bootstrap/environment.h"
#include "comm/comm.h"
#include "comm/transport/segment/control.h"

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
    /* By lksi_running_ns; 0 until the call has to wait for long, unless it was submitted: most never read the clock. */
    int64_t started_ns;
    bool has_tag; /* a message */
    int tag;
    size_t done_nbytes;
    size_t seen_nbytes; /* of these, at the last look, and when they were last seen to have moved; 0: not yet */
    int64_t moved_ns;
    bool is_stall_reported;
} lksi_progress;

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

#endif
