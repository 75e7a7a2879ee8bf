/* What the files of comm/ share: the group, one call of an operation, and how ranks wait for each other. */
#ifndef LKSI_COMM_INTERNAL_H
#define LKSI_COMM_INTERNAL_H

#include "comm/comm.h"
#include "comm/transport/segment/control.h"
#include "comm/transport/transport.h"

/* --- calls: every operation goes one way, lksi_run in dispatch.c --- */

typedef struct lksi_call lksi_call;
typedef struct lksi_operation lksi_operation;

/* What an algorithm costs on the critical path, for choosing one (select.c): rounds of messages that wait for each
 * other, and bytes that pass through the busiest rank. */
typedef struct lksi_cost {
    double steps, nbytes;
} lksi_cost;

typedef struct lksi_algorithm {
    const char *name;
    lks_status (*run)(lks_group *group, const lksi_call *call);
    lksi_cost (*cost)(int n_ranks, size_t nbytes); /* NULL: never chosen by `auto` */
    /* Through memory that all ranks address; its own first exchange (lksi_open, lksi_post_and_collect) compares the
     * fingerprints. Only for groups on one host. Otherwise by lksi_step_*, whose messages carry the fingerprint. */
    bool is_segment;
    bool is_order_free; /* floats: another order than the canonical one, so chosen by `auto` only where that is allowed
                         */
} lksi_algorithm;

enum { LKSI_MAX_ALGORITHMS = 10 };

struct lksi_operation {
    const char *name;
    bool has_count, has_type, is_reduction, is_rooted; /* which fields of a call mean something */
    lksi_algorithm algorithms[LKSI_MAX_ALGORITHMS];    /* ends with a NULL name */
};

struct lksi_call {
    const lksi_operation *operation;
    const lksi_algorithm *algorithm;
    const void *in;
    void *out;
    size_t count, nbytes; /* of one block where the operation has blocks; nbytes = count elements */
    const size_t *counts; /* of the -v forms: an entry per rank; else NULL */
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

typedef struct lksi_unexpected lksi_unexpected;

typedef struct lksi_world lksi_world;
typedef struct lksi_member lksi_member;

struct lks_group {
    int rank, size;
    lksi_world *world;
    bool is_world; /* made by lks_init, of all ranks of the job */
    uint64_t id;   /* the same on all ranks, no other group's of the job */
    uint64_t n_splits;
    lksi_member *members;      /* of all ranks: who they are in the job */
    lksi_identity *identities; /* of all ranks: who they are in the group */
    lks_group *next_in_world;
    /* The ranks of this host have seats in the control segment, in rank order. Where all have, n_seats is size and a
     * rank's seat is its number. */
    lksi_control *control;
    int seat, n_seats;
    int *seat_of; /* by rank; -1: on another host */
    int *rank_of; /* by seat */
    const lksi_transport *transport;
    void *backing;             /* the transport's */
    const lksi_remote *remote; /* how ranks of other hosts are reached; NULL where there are none */
    void *remote_state;
    /* Where the group spans hosts: the ranks of this host as a group, and the first rank of each host as a group (NULL
     * on the others). NULL otherwise. Both are used by two-level algorithms only. */
    lks_group *inner, *outer;
    int *host_of; /* by rank: which host, counted by first rank */
    int n_hosts;
    bool may_spin;
    int64_t timeout_ms;
    lks_order order;

    lks_status status; /* the first error */
    char *error_text;  /* room for LKSI_ABORT_TEXT_NBYTES, made with the group: a failing group allocates nothing */

    uint64_t n_exchanges, n_meets, n_stagings;
    lksi_progress progress;
    lksi_counters counters;

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

/* Makes the group out of its rank, size, world (held for it), id, members, timeout and order: seats, transport, and
 * where it spans hosts, streams and the groups of a two-level algorithm (form.c). `connections` as in lksi_tcp_join.
 * All its ranks call it. What is made so far goes with lks_group_destroy. */
lks_status lksi_group_form(lks_group *group, int *connections);
/* A group that has its error text, and room for `size` members. */
lks_status lksi_group_create(lks_group **group, int rank, int size, int64_t timeout_ms, lks_order order);

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

/* --- who is waited for (blame.c) --- */

/* What a rank is doing in its collectives, as it says itself. */
typedef struct lksi_doing {
    bool is_known; /* false: it is stopped, or does not answer */
    uint64_t sequence;
    int awaited; /* the rank it waits for; -1: it does not wait */
} lksi_doing;
lksi_doing lksi_doing_of_seat(const lks_group *group, int seat);
/* The rank that a wait for `awaited`, past its deadline, is to be charged to; *why ("is stopped") may become NULL. */
int lksi_blame(lks_group *group, int awaited, const char **why);

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

/* The exchange of lksi_exchange, over messages. */
lks_status lksi_exchange_messages(lks_group *group, const lksi_call *call, const void *mine, size_t nbytes, void *all);

/* --- operations, each in its file of collective/ --- */
lks_status lksi_barrier_direct(lks_group *group, const lksi_call *call);
lks_status lksi_barrier_dissemination(lks_group *group, const lksi_call *call);
lks_status lksi_broadcast_direct(lks_group *group, const lksi_call *call);
lks_status lksi_broadcast_naive(lks_group *group, const lksi_call *call);
lks_status lksi_all_reduce_direct(lks_group *group, const lksi_call *call);
lks_status lksi_all_reduce_naive(lks_group *group, const lksi_call *call);
lks_status lksi_reduce_naive(lks_group *group, const lksi_call *call);
/* What naive algorithms are made of: contributions of all ranks to `root`, combined there; root's data to all. */
lks_status lksi_collect_and_reduce(lks_group *group, const lksi_call *call, int root);
lks_status lksi_send_to_all(lks_group *group, const lksi_call *call, int root);
#endif
