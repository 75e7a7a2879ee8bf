/* The group: its state on one rank, and the identities of its ranks. */
#ifndef LKSI_COMM_GROUP_H
#define LKSI_COMM_GROUP_H

#include "base/cache.h"
#include "base/trial.h"
#include "comm/call.h"
#include "comm/transport/transport.h"

/* A symmetric or shared buffer in this rank's mapping. Copies lie `stride` apart, in rank order. Shared: stride 0. */
typedef struct lksi_allocation {
    uint64_t id; /* number of the allocation in the group: the same on all ranks */
    unsigned char *base;
    unsigned char *mine;
    size_t mapped_nbytes, stride, nbytes;
    bool is_shared;
} lksi_allocation;

/* One thread writes each counter. The worker may write those of collectives, so these are atomic. */
typedef struct lksi_counters {
    _Atomic uint64_t n_calls; /* collective calls; also their sequence number */
    uint64_t n_point_to_point;
    _Atomic uint64_t n_messages, n_message_nbytes; /* of algorithms */
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

/* The inputs of `auto` (select.c). */
typedef struct lksi_selection {
    bool is_any_forced, is_always_direct;
    const lksi_algorithm *forced[LKSI_MAX_OPERATIONS]; /* from LOCKSTEP_ALGORITHM, by index of the operation */
    double latency_ns, ns_per_byte;                    /* of a message between hosts */
    const char *last;                                  /* algorithm of the last call */
} lksi_selection;

/* The last call of the current row of calls in which this rank may run ahead (exchange.c). */
typedef struct lksi_row {
    const lksi_operation *operation;
    int root;
    uint64_t exchange;
} lksi_row;

enum { LKSI_TURN_SIZES = 4 }; /* size classes: up to 8 KiB, 32 KiB, a chunk, a wide chunk */

/* A trial of two ways that all ranks must take alike. Rank 0 decides. Its decision takes effect in the call after the
 * one in which all ranks have received it (direct.c). */
typedef struct lksi_agreement {
    lksi_call_trial trial;
    bool is_second_known; /* rank 0's last decision */
    bool is_second;       /* in this call */
    bool is_begun;
} lksi_agreement;

enum { LKSI_PLACE_SIZES = 15 };
/* Whether an operation's data is staged (first) or read in place (second): by size class, powers of two from 512 bytes
 * on. */
typedef struct lksi_places {
    lksi_agreement by_size[LKSI_PLACE_SIZES];
} lksi_places;

/* The trials for operations that move blocks in one direction. */
typedef struct lksi_move_trials {
    lksi_trial past_caches[2]; /* of staged chunks: up to 32 KiB, and above */
    lksi_places places;
} lksi_move_trials;

/* The chunk width of an operation's large reductions (direct.c). */
typedef struct lksi_rounds {
    lksi_agreement wide; /* second: one wide chunk instead of several chunks */
    size_t left;         /* bytes left of this round */
} lksi_rounds;

struct lks_group {
    /* Copies of what this rank has shown. The lines themselves move to the cores that read them. These fields come
     * first, so that each begins at a cache line. */
    lksi_post own_post;                         /* place and payload of the last exchange */
    unsigned char own_shown[LKSI_ANNEX_NBYTES]; /* what a small reduction showed */
    uint64_t own_fingerprints[LKSI_N_POSTS];    /* the fingerprints of its lines, by exchange */
    int rank, size;
    lksi_world *world;
    bool is_explaining; /* this rank has detected that ranks disagree (exchange.c) */
    bool is_world;      /* made by lks_init, with all ranks of the job */
    unsigned n_forks;   /* lksi_n_forks when the group or its worker was made */
    uint64_t id;        /* the same on all ranks, unique in the job */
    uint64_t origin;    /* id of the group that it was split from; 0: none */
    const char *owner;  /* the part of the library that has split it for itself ("optimizer"); NULL: none */
    uint64_t n_splits;
    lksi_member *members;     /* of all ranks, by rank */
    lks_group *next_in_world; /* guarded by the world */
    /* The ranks of this host have seats in the control segment, in rank order. If all ranks have seats, n_seats equals
     * size and a rank's seat is its rank. */
    lksi_control *control;
    lksi_seat *own_seat;
    int seat, n_seats;
    int local_rank,
        n_local;  /* among the ranks of this host, whether or not they share memory (LOCKSTEP_TRANSPORT=tcp) */
    int *seat_of; /* by rank; -1: on another host */
    int *rank_of; /* by seat */
    const lksi_transport *transport;
    void *backing;             /* state of the transport */
    const lksi_remote *remote; /* how ranks of other hosts are reached; NULL if there are none */
    void *remote_state;
    lksi_mpi_streams *mpi_streams;           /* if the remote is mpi's */
    lksi_mpi_communicator *mpi_communicator; /* for the native algorithms; made when first needed */
    /* If the group spans hosts: the ranks of this host as a group, and the first rank of each host as a group (NULL on
     * the other ranks). NULL otherwise. Only two-level algorithms use them. */
    lks_group *inner, *outer;
    lks_group *parent;        /* of an inner or outer group: a wait in this group progresses the parent's messages */
    const lksi_call *divided; /* the call of this group that its parts are executing (two_level.c); NULL: none */
    int *host_of;             /* by rank: number of its host; hosts are numbered by their first ranks */
    int n_hosts;
    bool may_spin, may_worker_spin;
    bool is_place_tried;              /* in the current call (direct.c) */
    int64_t spin_ns[LKSI_N_CONTEXTS]; /* how long a wait spins (wait.c) */
    int home_cpu, n_crowded;          /* cpus.c */
    atomic_bool may_peek;             /* this rank can read the ordinary memory of all others (shm/peek.c) */
    bool is_pair;                     /* two ranks, with a CPU each: lines change hands (exchange.c) */
    bool is_handed_over; /* in the next exchange each rank of a pair writes the line that it read in the last one */
    uint64_t peek_word;  /* the word that the others try to read */
    int64_t timeout_ms;
    lks_order order;
    _Atomic(const void *) borrower;           /* the group is lent to its threads; NULL: not lent */
    atomic_bool is_at_work;                   /* a thread is in a collective; usually detects a second thread */
    lks_group *bound, *next_bound, *bound_to; /* list of groups that fail with this one; the group this is bound to */

    /* The first error. Both threads of a group may detect one. The first to set is_failing writes the text, tells
     * the other ranks, and then sets status. The text has room for LKSI_ABORT_TEXT_NBYTES and is allocated with the
     * group: a failing group allocates nothing. */
    atomic_bool is_failing;
    _Atomic lks_status status;
    char *error_text;
    uint64_t n_reads_before; /* lksi_error_n_reads when the caller got the group; UINT64_MAX: never */

    uint64_t n_exchanges, n_meets, n_stagings;
    uint32_t n_posts;        /* number of lines and annexes per rank that are used: as in `control` */
    uint32_t last_post;      /* line index of the last exchange */
    uint64_t last_crossed;   /* the last exchange in which each rank of a pair wrote a line of the other's seat */
    uint32_t n_waited;       /* consecutive exchanges up to the last one in which all ranks waited for all */
    int n_turns_before_look; /* in lksi_post_wait_and_collect */
    /* Whether the stores of staged chunks bypass the caches, by size: for all_reduce, reduce and reduce_scatter. */
    lksi_trial turns[LKSI_TURN_SIZES], reduce_turns[2], scatter_turns[2];
    /* [0]: blocks for all, [1]: a block for each. From the root, to the root, and from all to all. */
    lksi_move_trials of_root[2], to_root[2], of_all[2];
    lksi_places all_reduce_places, reduce_places, scatter_places;
    lksi_rounds all_reduce_rounds, reduce_rounds;
    uint64_t n_checked; /* exchanges in which all ranks are known to agree; below n_exchanges if this rank ran ahead */
    lksi_row row;
    lksi_progress progress;      /* of the collective context */
    lksi_progress user_progress; /* of the user context */
    const char
        *published_names[LKSI_N_CONTEXTS]; /* the names in the seat's activities; saves copying an unchanged name */
    const char *hashed_name;               /* name of the last operation; name_hash is its hash */
    uint64_t name_hash;
    uint64_t history; /* fingerprint of the last call: it covers all calls before */
    lksi_counters counters;
    lksi_selection selection;

    lksi_allocation *allocations;
    size_t n_allocations, allocations_capacity;
    uint64_t n_allocated;

    lksi_streams *streams[LKSI_N_CONTEXTS]; /* streams, steps, messages and worker are made when first used */
    lksi_step_state *steps;
    lksi_messages *messages;
    _Atomic(const void *) messenger; /* the thread that used `messages` last (messenger.c) */
    atomic_bool is_in_message;       /* the messenger is in a call on them */
    bool is_moved;                   /* it progresses them from a call on another group; guarded by the world's mutex */
    lksi_worker *worker;
    const void **inputs; /* scratch of the algorithms: an entry per rank */
    void **outputs;
    double *scales;
    unsigned char *scratch;
    size_t scratch_nbytes;
};

/* The number of collective calls so far. Any thread may call it. */
static inline uint64_t lksi_n_calls(const lks_group *group) {
    return atomic_load_explicit(&group->counters.n_calls, memory_order_relaxed);
}
/* The user's call that `call` belongs to. It is on the whole group if `group` is a part. Ranks compare it, and texts
 * show it. */
static inline const lksi_call *lksi_users_call(const lks_group *group, const lksi_call *call) {
    return group->parent != NULL && group->parent->divided != NULL ? group->parent->divided : call;
}

/* Adds to a counter that one thread at a time writes, while others may read it. */
static inline void lksi_counter_add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Counts a collective call and returns its sequence number. */
static inline uint64_t lksi_count_call(lks_group *group) {
    uint64_t sequence = lksi_n_calls(group) + 1;
    atomic_store_explicit(&group->counters.n_calls, sequence, memory_order_relaxed);
    return sequence;
}
/* The number of a call in texts. Internal calls have that of the user's call that they belong to. */
static inline uint64_t lksi_call_number(const lks_group *group, const lksi_call *call) {
    return call->sequence < LKSI_SPLIT_CALL ? call->sequence : lksi_n_calls(group);
}
/* For a call that was refused after it was counted. */
static inline void lksi_uncount_call(lks_group *group) {
    atomic_store_explicit(&group->counters.n_calls, lksi_n_calls(group) - 1, memory_order_relaxed);
}

/* Forms the group (form.c). The caller has set rank, size, world (held for the group), id, members, timeout and order.
 * This makes seats and transport, and if the group spans hosts, streams and the groups of two-level algorithms. The
 * deadline counts from progress.started_ns if that is set, otherwise from now. `connections` is as for lksi_tcp_join.
 * Collective over the group. After an error lks_group_destroy frees what was made. */
lks_status lksi_group_form(lks_group *group, int *connections);
/* Sets the order of additions of the group and its parts. */
void lksi_group_set_order(lks_group *group, lks_order order);
/* Creates a group with room for its error text and `size` members, and reads LOCKSTEP_ALGORITHM. So a rank whose
 * variable is invalid does not join the others, who would only learn in a later call that it was lost. */
lks_status lksi_group_create(lks_group **group, int rank, int size, int64_t timeout_ms, lks_order order);

/* A forked child holds copies of its parent's groups but is not a member: it would act in its parent's name, and wait
 * for threads of its parent. A group of one rank remains usable in the child, unless it has a worker, which is a thread
 * of the parent. */
static inline bool lksi_is_parents(const lks_group *group) {
    return group->n_forks != lksi_n_forks && (group->size > 1 || group->worker != NULL);
}

/* Refuses a forked child, and NULL, which lks_group_split gives to a rank that joins no group. */
static inline lks_status lksi_group_check(const lks_group *group, const char *name) {
    if (group == NULL) return lksi_error(LKS_ERR_ARGUMENT, "%s: `group` is NULL", name);
    if (!lksi_is_parents(group)) return LKS_OK;
    return lksi_error(LKS_ERR_STATE, "%s: a forked child is not a member of its parent's groups", name);
}

/* The identity of a rank of the group. Texts name ranks by their world rank, whatever group they are about. */
const lksi_identity *lksi_identity_of(const lks_group *group, int rank);
static inline int lksi_world_rank(const lks_group *group, int rank) { return lksi_identity_of(group, rank)->rank; }
/* The rank in `group` of world rank `who`. The group's size if there is none. */
int lksi_rank_of_world(const lks_group *group, int who);
/* The rank in `group` of rank `rank` of `part`. `group` contains all ranks of `part`. */
int lksi_rank_in(const lks_group *group, const lks_group *part, int rank);
/* The first rank of a host. The group's size if there is none. */
int lksi_first_rank_of(const lks_group *group, int host);
/* "rank 3 (host a, pid 7)" */
typedef struct lksi_rank_text {
    char text[LKSI_HOST_NBYTES + 48];
} lksi_rank_text;
lksi_rank_text lksi_rank_describe(const lks_group *group, int rank);

/* Free the state of messages and steps. Messages in progress end with an error. The caller has entered the messages
 * (lksi_messenger_enter), and the rank has left. */
void lksi_messages_close(lks_group *group);
void lksi_steps_close(lks_group *group);

#endif
