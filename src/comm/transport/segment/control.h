/* The control segment: the memory in which all ranks of a host meet, the same for threads and processes.
 *
 *     lksi_control | seat of rank 0, 1, ... | staging of rank 0, 1, ... | ring of every context and pair
 *
 * No lock is held across ranks. Every counter of a seat is monotonic and has one writer, which has the 128-byte line to
 * itself, but for what it guards (two lines, because the adjacent one is fetched with it; rings: ring.h); what the
 * counter guards is written before it (release) and read after it (acquire). A killed rank leaves only counters that
 * stand still. The segment holds no pointers: every process maps it where it likes.
 */
#ifndef LKSI_CONTROL_H
#define LKSI_CONTROL_H

#include "comm/comm.h"

#include <stdatomic.h>

enum {
    LKSI_LINE_NBYTES = 128,
    LKSI_CHUNK_ALIGNMENT = 64, /* in a ring */
    LKSI_HOST_NBYTES = 64,
    LKSI_LARGE_CHUNK_NBYTES = 128 << 10, /* of a staging area, where a core has a second cache of 2 MiB */
    LKSI_ABORT_TEXT_NBYTES = 640,
    LKSI_CALL_TEXT_NBYTES = 256,
    LKSI_AFFINITY_WORDS = 16 * LKSI_N_CPU_SETS,
    LKSI_N_POSTS = 128,                         /* where ranks share CPUs: so many calls one can do in its turn */
    LKSI_FEW_POSTS = 16,                        /* else: these stay in the first cache. All three are powers of two */
    LKSI_LEAST_POSTS = 4,                       /* in a row of calls in which all wait for all */
    LKSI_ANNEX_NBYTES = 1024,                   /* of a line; up to here a copy costs less than a second meeting */
    LKSI_ANNEX_STRIDE = LKSI_ANNEX_NBYTES + 64, /* odd in cache lines, so that annexes use all sets of a cache */
};

/* Messages of users and those of the collectives never meet. */
typedef enum lksi_context { LKSI_CONTEXT_USER, LKSI_CONTEXT_COLLECTIVE, LKSI_N_CONTEXTS } lksi_context;

typedef struct lksi_counter {
    _Alignas(LKSI_LINE_NBYTES) _Atomic uint64_t value;
} lksi_counter;

/* Where a rank sleeps. `awaited` is the seat it waits for plus 1, LKSI_AWAITS_ANY, or 0 while it is awake; whoever
 * publishes something reads it and makes the system call only where it is meant. */
enum { LKSI_AWAITS_ANY = -1 };
typedef struct lksi_bell {
    _Alignas(LKSI_LINE_NBYTES) _Atomic uint32_t rings; /* the futex */
    _Atomic int32_t awaited;
    _Atomic int32_t cpu; /* on which it last waited for all; only where ranks share CPUs */
} lksi_bell;

/* The call of a rank that did not wait for the others, for the error that names it: it may not come again. Not in the
 * line: nobody else looks at it, so that it costs its owner nothing. */
typedef struct lksi_ahead {
    uint64_t sequence, count;
    int32_t root;
    uint8_t operation, algorithm, type, op; /* the first two by index */
} lksi_ahead;

/* What a rank shows to all in an exchange: one line, of which a small call touches the first half only. `place` says
 * where its buffer lies in symmetric memory, or that it ran ahead: then it has an lksi_ahead of the same index. */
#define LKSI_PLACE_AHEAD UINT64_MAX
typedef struct lksi_post {
    _Atomic uint64_t counter;
    uint64_t fingerprint; /* of all calls up to this one */
    uint64_t place;
    unsigned char payload[LKSI_PAYLOAD_NBYTES];
} lksi_post;
_Static_assert(sizeof(lksi_post) == LKSI_LINE_NBYTES, "a post is a line");

typedef struct lksi_identity {
    int32_t rank; /* in the world */
    int32_t pid;
    char host[LKSI_HOST_NBYTES];
} lksi_identity;

enum { LKSI_ABSENT, LKSI_JOINED, LKSI_LEFT }; /* values of `presence` */

/* Why ranks give up. */
typedef struct lksi_reason {
    int32_t status; /* what the other ranks return */
    int32_t lost;   /* the rank that was lost, as the world counts, plus 1; 0: none, or nobody knows which */
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_reason;

/* What a rank is doing in one context, for lks_group_report: written relaxed, so a reader may see halves of two calls.
 * Names are 16 characters in two words. */
typedef struct lksi_activity {
    _Alignas(LKSI_LINE_NBYTES) _Atomic uint64_t sequence; /* of the call it is in, or was; 0: none yet */
    _Atomic uint64_t name[2];
    _Atomic uint64_t completed; /* sequence of the last call that was completed */
    _Atomic uint64_t completed_name[2];
    _Atomic uint64_t done_nbytes;
    _Atomic int32_t awaited; /* while it sleeps: the rank it waits for plus 1, or LKSI_AWAITS_ANY */
    _Atomic bool is_worker;  /* who sleeps is a worker: the rank's own thread may be anywhere */
} lksi_activity;

/* What one rank writes and all read. */
typedef struct lksi_seat {
    lksi_bell bells[LKSI_N_CONTEXTS]; /* two threads of a rank may sleep at once, one in each context */
    lksi_activity activities[LKSI_N_CONTEXTS];
    _Alignas(LKSI_LINE_NBYTES) lksi_post posts[LKSI_N_POSTS]; /* of the last exchanges: lksi_next_post */
    /* What has no room in the line of the same index, and lives as long. */
    _Alignas(LKSI_LINE_NBYTES) unsigned char annexes[LKSI_N_POSTS][LKSI_ANNEX_STRIDE];
    _Alignas(LKSI_LINE_NBYTES) lksi_ahead aheads[LKSI_N_POSTS];
    lksi_counter meets; /* barriers inside a call */
    lksi_counter presence;
    lksi_counter explained; /* the exchange whose call `call_text` describes, written only after a mismatch */
    char call_text[LKSI_CALL_TEXT_NBYTES];
    lksi_reason farewell; /* why the rank has left, for who waits for it; status LKS_OK: in peace */
    uint64_t affinity[LKSI_AFFINITY_WORDS];
    uint64_t peek_word, peek_address; /* a word of this rank's own memory, and where it lies there */
    atomic_bool could_not_read;       /* another's buffer, in a call that meets after it (shm/peek.c) */
    lksi_identity identity;           /* these two are written by whoever made the segment */
    bool is_pid_common;               /* the identity's pid is the one by which the segment's maker, too, knows it */
} lksi_seat;

/* Why the group is dead. The first rank to find out takes the state from 0 to writing, then to written. */
enum { LKSI_ABORT_NONE, LKSI_ABORT_WRITING, LKSI_ABORT_WRITTEN };
typedef struct lksi_abort {
    _Atomic uint32_t state;
    lksi_reason reason;
} lksi_abort;

typedef struct lksi_control {
    lksi_abort abort;
    uint64_t group_id; /* as whoever made the segment counts */
    uint64_t chunk_nbytes,
        wide_chunk_nbytes; /* what goes through a staging area at once; the latter is what it holds */
    uint64_t ring_nbytes;  /* capacity of a ring; a power of two */
    int32_t n_ranks;
    _Atomic uint32_t n_posts; /* that each rank uses; 0 until the first to sit down has told for all */
    _Alignas(LKSI_LINE_NBYTES) lksi_seat seats[];
} lksi_control;

/* Bytes under way from one rank to another (ring.c). */
typedef struct lksi_ring {
    lksi_counter consumed; /* by the receiver */
    unsigned char data[];
} lksi_ring;

/* Bytes that the control segment of a host with `n_ranks` ranks takes. */
size_t lksi_control_nbytes(int n_ranks);
/* Fills in zeroed memory: sizes, and the identities of all with this process's pid and host; not their ranks. */
void lksi_control_create(lksi_control *control, int n_ranks);
unsigned char *lksi_control_staging(lksi_control *control, int rank, unsigned parity);
lksi_ring *lksi_control_ring(lksi_control *control, lksi_context context, int from, int to);

/* LKS_ERR_MEMORY where a segment of `nbytes` would be more than there is. */
lks_status lksi_memory_check(size_t nbytes);

static inline bool lksi_control_is_aborted(const lksi_control *control) {
    return atomic_load_explicit(&control->abort.state, memory_order_acquire) != LKSI_ABORT_NONE;
}
/* The same for a rank that has read another's buffer, before it believes what it read. An owner that gives up says so
 * first, and may then write there (lksi_may_be_reused): who has read that, sees the word, too. */
static inline bool lksi_control_is_aborted_after_reading(const lksi_control *control) {
    atomic_thread_fence(memory_order_acquire);
    return lksi_control_is_aborted(control);
}
/* An owner that has given up, or left, and said so: its buffers are its user's again. */
static inline void lksi_may_be_reused(void) { atomic_thread_fence(memory_order_release); }
/* Only the first reason is kept: false where there was one before. */
bool lksi_abort_write(lksi_abort *record, const lksi_reason *reason);
/* NULL: there is none, or whoever began to write it died. */
const lksi_reason *lksi_abort_read(const lksi_abort *record);
/* Declares the group dead and wakes everybody. False where it was dead before. */
bool lksi_control_abort_for(lksi_control *control, const lksi_reason *reason);
bool lksi_control_abort(lksi_control *control, lks_status status, const char *format, ...) LKS_PRINTF(3, 4);
/* The same for a rank that is gone, unless it has said goodbye; `how` is appended (": killed", say). */
void lksi_control_lost(lksi_control *control, int seat, const char *how);
/* Whether a rank knows another by the pid of its identity: in another pid namespace that is some other process. */
static inline bool lksi_control_knows_pid(const lksi_control *control, int mine, int other) {
    return control->seats[mine].is_pid_common && control->seats[other].is_pid_common;
}
/* The same where the connection between two of this host's ranks has ended, for whatever reason. */
void lksi_control_disconnected(lksi_control *control, int mine, int other);
/* Sets this thread's error from the abort record, `doing` appended, and returns its status. */
lks_status lksi_control_abort_error(const lksi_control *control, const char *doing);

/* Wakes the rank of `seat` if it sleeps in `context`. */
void lksi_ring_bell(lksi_control *control, lksi_context context, int seat);

/* Rule: whoever publishes stores the counter, then looks at `awaited`; whoever sleeps stores `awaited`, gives stores
 * that are under way the time to arrive, and looks at the counter once more (wait.c): one of the two sees the other. A
 * fence would make that certain, but hold up every publication until its line has come from the other core. `me` and
 * `to` are seats. */
static inline void lksi_publish_counter(_Atomic uint64_t *counter, uint64_t value) {
    atomic_store_explicit(counter, value, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}
static inline bool lksi_is_awaited(lksi_control *control, lksi_context context, int me, int seat) {
    int32_t awaited = atomic_load_explicit(&control->seats[seat].bells[context].awaited, memory_order_relaxed);
    return awaited == me + 1 || awaited == LKSI_AWAITS_ANY;
}
static inline void lksi_publish_to(lksi_control *control, lksi_context context, _Atomic uint64_t *counter,
                                   uint64_t value, int me, int to) {
    lksi_publish_counter(counter, value);
    if (lksi_is_awaited(control, context, me, to)) lksi_ring_bell(control, context, to);
}
/* To all seats, for whoever waits in a collective. */
static inline void lksi_publish(lksi_control *control, _Atomic uint64_t *counter, uint64_t value, int me) {
    lksi_publish_counter(counter, value);
    for (int to = 0; to < control->n_ranks; to++)
        if (to != me && lksi_is_awaited(control, LKSI_CONTEXT_COLLECTIVE, me, to))
            lksi_ring_bell(control, LKSI_CONTEXT_COLLECTIVE, to);
}

#endif
