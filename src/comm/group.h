/* The group: what a rank keeps of it, and who its ranks are. */
#ifndef LKSI_COMM_GROUP_H
#define LKSI_COMM_GROUP_H

#include "base/cache.h"
#include "base/trial.h"
#include "comm/call.h"
#include "comm/transport/transport.h"

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
    bool is_explaining; /* it has found that ranks disagree (exchange.c) */
    bool is_world;      /* made by lks_init, of all ranks of the job */
    unsigned n_forks;   /* of lksi_n_forks, when it was made, or its worker */
    uint64_t id;        /* the same on all ranks, no other group's of the job */
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
/* For one that was refused after it was counted. */
static inline void lksi_uncount_call(lks_group *group) {
    atomic_store_explicit(&group->counters.n_calls, lksi_n_calls(group) - 1, memory_order_relaxed);
}

/* Makes the group out of its rank, size, world (held for it), id, members, timeout and order: seats, transport, and
 * where it spans hosts, streams and the groups of a two-level algorithm (form.c), by a deadline that counts from
 * progress.started_ns, if that is set, and else from now. `connections` as in lksi_tcp_join.
 * All its ranks call it. What is made so far goes with lks_group_destroy. */
lks_status lksi_group_form(lks_group *group, int *connections);
/* A group that has its error text, and room for `size` members. */
lks_status lksi_group_create(lks_group **group, int rank, int size, int64_t timeout_ms, lks_order order);

/* How often this process, and those that it comes from, have been forked. A child holds copies of its parent's groups,
 * but has no part in them: what it said there would be said for its parent, and the threads that it would wait for are
 * its parent's. A group of one rank is as good there as here, unless it has a worker of its parent's. */
extern atomic_uint lksi_n_forks;
static inline bool lksi_is_parents(const lks_group *group) {
    return group->n_forks != atomic_load_explicit(&lksi_n_forks, memory_order_relaxed) &&
           (group->size > 1 || group->worker != NULL);
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
/* The rank that the world counts as `who`; the group's size where there is none. */
int lksi_rank_of_world(const lks_group *group, int who);
/* Who `rank` of `part` is in `group`, which has all its ranks. */
int lksi_rank_in(const lks_group *group, const lks_group *part, int rank);
/* The first rank of a host; the group's size where there is none. */
int lksi_first_rank_of(const lks_group *group, int host);
/* "rank 3 (host a, pid 7)" */
typedef struct lksi_rank_text {
    char text[LKSI_HOST_NBYTES + 48];
} lksi_rank_text;
lksi_rank_text lksi_rank_describe(const lks_group *group, int rank);

/* What the engines of messages and steps hold for the group; ends messages under way with an error. In a call on the
 * messages (lksi_messenger_enter), for a rank that has left. */
void lksi_messages_close(lks_group *group);
void lksi_steps_close(lks_group *group);

#endif
