/* What the files of comm/ share: the group, one call of an operation, and how ranks wait for each other. */
#ifndef LKSI_COMM_INTERNAL_H
#define LKSI_COMM_INTERNAL_H

#include "comm/comm.h"
#include "comm/transport/segment/control.h"
#include "comm/transport/transport.h"

/* --- calls: every operation goes one way, lksi_run in dispatch.c --- */

typedef struct lksi_call lksi_call;

/* What an algorithm costs on the critical path, for choosing one (select.c): rounds of messages that wait for each
 * other, and bytes that pass through the busiest rank. */
typedef struct lksi_cost {
    double steps, nbytes;
} lksi_cost;

typedef struct lksi_algorithm {
    const char *name;
    lks_status (*run)(lks_group *group, const lksi_call *call);
    lksi_cost (*cost)(int n_ranks, size_t nbytes); /* NULL: never chosen by `auto` */
    /* `run` goes through memory that all ranks address; its own first exchange (lksi_open, lksi_post_and_collect)
     * compares the fingerprints. Only for groups on one host; run_remote, by lksi_step_*, stands in for it elsewhere.
     * Otherwise `run` is by lksi_step_*, whose messages carry the fingerprint. */
    bool is_segment;
    lks_status (*run_remote)(lks_group *group, const lksi_call *call);
    bool is_two_level;  /* over group->inner and group->outer */
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
    bool is_in_blocked, is_out_blocked;                            /* the buffer holds a block per rank */
    lksi_algorithm algorithms[LKSI_MAX_ALGORITHMS];                /* ends with a NULL name */
};

struct lksi_call {
    const lksi_operation *operation;
    const lksi_algorithm *algorithm;
    const void *in;
    void *out;
    size_t count, nbytes; /* of one block where the operation has blocks; nbytes = count elements */
    const size_t *counts; /* of the -v forms: an entry per rank, and count and nbytes are of all; else NULL */
    lks_type type;
    lks_operator op;
    int root;
    double scale;
    int64_t timeout_ms;
    uint64_t sequence;
    uint64_t fingerprint;
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
/* The exchange of a call that hands nothing over. */
lks_status lksi_open(lks_group *group, const lksi_call *call);
/* What a call is, for people: "all_reduce(count 5, f32, sum, algorithm direct)". */
void lksi_call_describe(const lksi_call *call, char *text, size_t text_nbytes);
/* Refuses a dead group, and starts the clock of a call named `name`; timeout_ms 0: the group's. */
lks_status lksi_begin(lks_group *group, const char *name, uint64_t sequence, int64_t timeout_ms);
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

/* What the waits of the present call need to know, and say when they give up. */
typedef struct lksi_progress {
    const char *name;
    uint64_t sequence;
    int64_t timeout_ms;
    int64_t started_ns; /* 0 until the call has to wait for long: most never read the clock */
    size_t done_nbytes;
    bool is_stall_reported;
} lksi_progress;

typedef struct lksi_counters {
    uint64_t n_calls; /* collective ones; their sequence number */
    uint64_t n_point_to_point;
    uint64_t n_messages, n_message_nbytes; /* sent point to point, by users and by algorithms */
} lksi_counters;

/* What `auto` knows (select.c). */
typedef struct lksi_selection {
    bool is_read, is_measured;
    const lksi_algorithm *forced[LKSI_MAX_OPERATIONS]; /* by LOCKSTEP_ALGORITHM, by index of the operation */
    double latency_ns, ns_per_byte;                    /* of a message between hosts */
    const char *last;                                  /* algorithm of the last call */
} lksi_selection;

typedef struct lksi_unexpected lksi_unexpected;

struct lks_group {
    int rank, size;
    const lksi_identity *identities; /* of all ranks */
    /* The ranks of this host have seats in the control segment, in rank order. Where all have, n_seats is size and a
     * rank's seat is its number. */
    lksi_control *control;
    int seat, n_seats;
    const int *seat_of; /* by rank; -1: on another host */
    const int *rank_of; /* by seat */
    const lksi_transport *transport;
    void *backing;             /* the transport's */
    const lksi_remote *remote; /* how ranks of other hosts are reached; NULL where there are none */
    void *remote_state;
    /* Where the group spans hosts: the ranks of this host as a group, and the first rank of each host as a group (NULL
     * on the others). NULL otherwise. Both are used by two-level algorithms only. */
    lks_group *inner, *outer;
    const int *host_of; /* by rank: which host, counted by first rank */
    int n_hosts;
    bool may_spin;
    int64_t timeout_ms;
    lks_order order;

    lks_status status; /* the first error */
    char *error_text;  /* room for LKSI_ABORT_TEXT_NBYTES, made with the group: a failing group allocates nothing */

    uint64_t n_exchanges, n_meets, n_stagings;
    lksi_progress progress;
    lksi_counters counters;
    lksi_selection selection;

    lksi_allocation *allocations;
    size_t n_allocations, allocations_capacity;
    uint64_t n_allocated;

    lksi_unexpected *unexpected; /* messages that came before their receive, oldest first */
    const void **inputs;         /* scratch of the algorithms: an entry per rank */
    void **outputs;
    double *scales;
    unsigned char *scratch;
    size_t scratch_nbytes;
};

/* --- waiting (transport/segment/wait.c) --- */

typedef struct lksi_condition {
    const _Atomic uint64_t *counter;
    uint64_t target;
    int rank; /* whose counter it is */
} lksi_condition;

/* Waits until one of the conditions holds: spins, yields, sleeps; looks at the abort word and the deadline. */
lks_status lksi_wait_any(lks_group *group, const lksi_condition *conditions, int n_conditions);

static inline lks_status lksi_wait(lks_group *group, const _Atomic uint64_t *counter, uint64_t target, int rank) {
    if (atomic_load_explicit(counter, memory_order_acquire) >= target) return LKS_OK;
    return lksi_wait_any(group, &(lksi_condition){counter, target, rank}, 1);
}
/* After all ranks have joined: how many CPUs they share decides whether waiting may spin. */
void lksi_wait_configure(lks_group *group);
/* "all_reduce, call 17, 4096 bytes done" */
void lksi_progress_describe(const lks_group *group, char *text, size_t text_nbytes);

/* --- meeting (transport/segment/exchange.c) --- */

/* The line that this rank shows in the coming exchange: fill payload, then lksi_post_and_collect. */
static inline lksi_post *lksi_post_next(lks_group *group) {
    return &group->control->seats[group->rank].posts[(group->n_exchanges + 1) & 1];
}
/* The line that `rank` showed in the last exchange; valid until this rank's next exchange. */
static inline const lksi_post *lksi_post_of(const lks_group *group, int rank) {
    return &group->control->seats[rank].posts[group->n_exchanges & 1];
}
/* Shows the line, waits for everyone's, compares fingerprints. `call` explains a mismatch. */
lks_status lksi_post_and_collect(lks_group *group, const lksi_call *call, uint64_t place);
/* Returns when all ranks have called it; everything written before is then visible to all. */
lks_status lksi_meet(lks_group *group);

/* --- symmetric memory (symmetric.c) --- */

/* Where `data` lies for the other ranks: allocation and offset in one word; 0 where it is ordinary memory. */
uint64_t lksi_place_of(const lks_group *group, const void *data, size_t nbytes);
/* The allocation of a place that this rank itself holds. */
const lksi_allocation *lksi_place_allocation(const lks_group *group, uint64_t place);
static inline uint64_t lksi_place_id(uint64_t place) { return place >> 40; }
static inline size_t lksi_place_offset(uint64_t place) { return (size_t)(place & ((UINT64_C(1) << 40) - 1)); }
void lksi_symmetric_free_all(lks_group *group);

/* --- scratch memory that the group keeps --- */
lks_status lksi_group_scratch(lks_group *group, size_t nbytes, unsigned char **scratch);

/* --- steps of the algorithms that send messages (message.c) ---
 * Messages of one pair arrive in order; both sides know the length. A message of another call is LKS_ERR_MISMATCH. */
lks_status lksi_step_send(lks_group *group, const lksi_call *call, int to, const void *data, size_t nbytes);
lks_status lksi_step_receive(lks_group *group, const lksi_call *call, int from, void *data, size_t nbytes);
/* Both at once, each going on as far as it can while the other waits. `to` and `from` may be the same or not. */
lks_status lksi_step_exchange(lks_group *group, const lksi_call *call, int to, const void *sent, size_t n_sent_nbytes,
                              int from, void *received, size_t n_received_nbytes);

/* --- choosing an algorithm (select.c) --- */

/* Sets call->algorithm: the one called `name`, or what `auto` (or NULL) means for this call; the same on all ranks. */
lks_status lksi_select(lks_group *group, lksi_call *call, const char *name);
/* Why the two-level algorithms cannot serve this call; NULL where they can. */
const char *lksi_two_level_obstacle(const lks_group *group, const lksi_call *call);
static inline bool lksi_is_on_one_host(const lks_group *group) { return group->n_seats == group->size; }

#endif
