/* The control segment: the memory that all ranks of a host share. Threads and processes use the same layout.
 *
 *     lksi_control | seat of rank 0, 1, ... | staging of rank 0, 1, ... | ring of every context and pair
 *
 * No lock is held across ranks. Every counter of a seat is monotonic and has one writer; two ranks may write each
 * other's posts by turns (exchange.c). A counter shares its 128-byte line only with the data that it guards. (128
 * bytes, because the CPU also fetches the adjacent line. Rings: ring.h.) Data that a counter guards is written before
 * the counter (release) and read after it (acquire). A killed rank leaves nothing but counters that no longer advance.
 * The segment holds no pointers, because processes map it at different addresses.
 */
#ifndef LKSI_CONTROL_H
#define LKSI_CONTROL_H

#include "comm/comm.h"

#include <stdatomic.h>

enum {
    LKSI_LINE_NBYTES = 128,
    LKSI_CHUNK_ALIGNMENT = 64, /* in a ring */
    LKSI_HOST_NBYTES = 64,
    LKSI_LARGE_CHUNK_NBYTES = 128 << 10, /* chunk of a staging area if the second-level cache has 2 MiB or more */
    LKSI_ABORT_TEXT_NBYTES = 640,
    LKSI_CALL_TEXT_NBYTES = 256,
    LKSI_AFFINITY_WORDS = 16 * LKSI_N_CPU_SETS,
    /* Lines per rank. All three are powers of two. */
    LKSI_N_POSTS = 128,       /* if ranks share CPUs: bounds the calls that a rank can do in its turn */
    LKSI_FEW_POSTS = 16,      /* otherwise: they stay in the first-level cache */
    LKSI_LEAST_POSTS = 4,     /* in a row of calls in which all ranks wait for all */
    LKSI_ANNEX_NBYTES = 1024, /* of a line; up to this size a copy costs less than a second meeting */
    LKSI_ANNEX_STRIDE = LKSI_ANNEX_NBYTES + 64, /* an odd number of cache lines: annexes use all sets of a cache */
};

/* Messages of users and messages of collectives use separate streams. */
typedef enum lksi_context { LKSI_CONTEXT_USER, LKSI_CONTEXT_COLLECTIVE, LKSI_N_CONTEXTS } lksi_context;

typedef struct lksi_counter {
    _Alignas(LKSI_LINE_NBYTES) _Atomic uint64_t value;
} lksi_counter;

/* Where a rank sleeps. `awaited` is the seat it waits for plus 1, LKSI_AWAITS_ANY, or 0 while the rank is awake. A rank
 * that publishes something reads `awaited` and makes the system call only if the sleeper waits for it. */
enum { LKSI_AWAITS_ANY = -1 };
typedef struct lksi_bell {
    _Alignas(LKSI_LINE_NBYTES) _Atomic uint32_t rings; /* the futex */
    _Atomic int32_t awaited;
    _Atomic int32_t cpu; /* on which the rank last waited for all; set only if ranks share CPUs */
} lksi_bell;

/* The call of a rank that did not wait for the others. It is for the error that names the call, because the rank may
 * never call again. It lies outside the line: no other rank reads it in the normal case, so it costs its owner nothing.
 */
typedef struct lksi_ahead {
    uint64_t sequence, count;
    int32_t root;
    uint8_t operation, algorithm, type, op; /* the first two by index */
} lksi_ahead;

/* What a rank shows to all in an exchange: one line. A small call touches only its first half. `place` says where the
 * rank's buffer lies in symmetric memory. LKSI_PLACE_AHEAD: the rank ran ahead and has written the lksi_ahead of the
 * same index. */
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

/* Why a group is dead, or why a rank has left. */
typedef struct lksi_reason {
    int32_t status; /* what the other ranks return */
    int32_t lost;   /* the lost rank, by its rank in the world, plus 1; 0: none, or not known which */
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_reason;

/* What a rank is doing in one context, for lks_group_report. It is written relaxed, so a reader may see parts of two
 * different calls. Names are 16 characters in two words. */
typedef struct lksi_activity {
    _Alignas(LKSI_LINE_NBYTES) _Atomic uint64_t sequence; /* of the call it is in, or was; 0: none yet */
    _Atomic uint64_t name[2];
    _Atomic uint64_t completed; /* sequence of the last completed call */
    _Atomic uint64_t completed_name[2];
    _Atomic uint64_t done_nbytes;
    _Atomic int32_t awaited; /* while it sleeps: the rank it waits for plus 1, or LKSI_AWAITS_ANY */
    _Atomic bool is_worker;  /* the sleeping thread is a worker: the state of the rank's own thread is not known */
} lksi_activity;

/* What one rank writes and all ranks read, but for posts and annexes that change hands (exchange.c). */
typedef struct lksi_seat {
    lksi_bell bells[LKSI_N_CONTEXTS]; /* two threads of a rank may sleep at once, one in each context */
    lksi_activity activities[LKSI_N_CONTEXTS];
    _Alignas(LKSI_LINE_NBYTES) lksi_post posts[LKSI_N_POSTS]; /* of the last exchanges: lksi_post_next */
    /* Data that does not fit into the line of the same index. It has the same lifetime. */
    _Alignas(LKSI_LINE_NBYTES) unsigned char annexes[LKSI_N_POSTS][LKSI_ANNEX_STRIDE];
    _Alignas(LKSI_LINE_NBYTES) lksi_ahead aheads[LKSI_N_POSTS];
    lksi_counter meets; /* barriers inside a call */
    lksi_counter presence;
    lksi_counter explained; /* the exchange whose call the next two describe, written only after a mismatch */
    uint64_t call_number;   /* of the user's call */
    char call_text[LKSI_CALL_TEXT_NBYTES];
    lksi_reason farewell; /* why the rank has left, for ranks that wait for it; status LKS_OK: without an error */
    uint64_t affinity[LKSI_AFFINITY_WORDS];
    uint64_t peek_word, peek_address; /* a word of this rank's own memory, and its address in this rank's process */
    atomic_bool could_not_read;       /* the buffer of another rank, in a call that ends with a meeting (shm/peek.c) */
    lksi_identity identity;           /* the maker of the segment writes this field and the next */
    bool is_pid_common;               /* the maker of the segment knows the process by the same pid */
} lksi_seat;

/* Why the group is dead. The first rank that detects it sets the state from NONE to WRITING, and then to WRITTEN. */
enum { LKSI_ABORT_NONE, LKSI_ABORT_WRITING, LKSI_ABORT_WRITTEN };
typedef struct lksi_abort {
    _Atomic uint32_t state;
    lksi_reason reason;
} lksi_abort;

typedef struct lksi_control {
    lksi_abort abort;
    uint64_t group_id; /* by the count of the rank that made the segment */
    uint64_t chunk_nbytes,
        wide_chunk_nbytes; /* bytes that go through a staging area at once; wide_chunk_nbytes is its capacity */
    uint64_t ring_nbytes;  /* capacity of a ring; a power of two */
    int32_t n_ranks;
    _Atomic uint32_t n_posts; /* lines that each rank uses; 0 until the first rank has decided for all */
    _Alignas(LKSI_LINE_NBYTES) lksi_seat seats[];
} lksi_control;

/* Bytes in transit from one rank to another (ring.c). */
typedef struct lksi_ring {
    lksi_counter consumed; /* by the receiver */
    unsigned char data[];
} lksi_ring;

/* Size of the control segment of a host with `n_ranks` ranks. */
size_t lksi_control_nbytes(int n_ranks);
/* Initialises a control segment in zeroed memory: the sizes, and all identities with this process's pid and host. The
 * caller sets the ranks of the identities. */
void lksi_control_create(lksi_control *control, int n_ranks);
unsigned char *lksi_control_staging(lksi_control *control, int rank, unsigned parity);
lksi_ring *lksi_control_ring(lksi_control *control, lksi_context context, int from, int to);

/* LKS_ERR_MEMORY if less than `nbytes` of memory are available. */
lks_status lksi_memory_check(size_t nbytes);

static inline bool lksi_control_is_aborted(const lksi_control *control) {
    return atomic_load_explicit(&control->abort.state, memory_order_acquire) != LKSI_ABORT_NONE;
}
/* The same for a rank that has read the buffer of another rank, before it uses what it read. An owner that gives up
 * sets the abort word first and may then write to its buffer (lksi_may_be_reused). The acquire fence here pairs with
 * the release fence there: a reader that saw the new data also sees the abort word. */
static inline bool lksi_control_is_aborted_after_reading(const lksi_control *control) {
    atomic_thread_fence(memory_order_acquire);
    return lksi_control_is_aborted(control);
}
/* Called by an owner that has published that it gave up or left. From here on its user may reuse the buffers. */
static inline void lksi_may_be_reused(void) { atomic_thread_fence(memory_order_release); }
/* Keeps the first reason only. False if there was one already. */
bool lksi_abort_write(lksi_abort *record, const lksi_reason *reason);
/* NULL: there is no reason, or its writer died while it wrote it. */
const lksi_reason *lksi_abort_read(const lksi_abort *record);
/* Declares the group dead and wakes all ranks of the host. False if the group was dead already. */
bool lksi_control_abort_for(lksi_control *control, const lksi_reason *reason);
bool lksi_control_abort(lksi_control *control, lks_status status, const char *format, ...) LKS_PRINTF(3, 4);
/* The same for a lost rank. Does nothing if the rank has left properly. `how` is appended to the text, for example
 * ": killed". */
void lksi_control_lost(lksi_control *control, int seat, const char *how);
/* Whether rank `mine` can identify `other` by the pid of its identity. In another pid namespace that number is some
 * other process. */
static inline bool lksi_control_knows_pid(const lksi_control *control, int mine, int other) {
    return control->seats[mine].is_pid_common && control->seats[other].is_pid_common;
}
/* As lksi_control_lost, if the connection between two ranks of this host has ended for whatever reason. */
void lksi_control_disconnected(lksi_control *control, int mine, int other);
/* Sets this thread's error from the abort record with `doing` appended, and returns its status. */
lks_status lksi_control_abort_error(const lksi_control *control, const char *doing);
lks_status lksi_reason_error(const lksi_reason *reason, const char *doing); /* the same for one that is given */

/* Wakes the rank of `seat` if it sleeps in `context`. */
void lksi_ring_bell(lksi_control *control, lksi_context context, int seat);

/* Rule: a publisher stores the counter, then reads `awaited`. A sleeper stores `awaited`, waits long enough for stores
 * in flight to arrive, and reads the counter once more (wait.c). So at least one of the two sees the other. A full
 * fence would guarantee that, but it would delay every publication until its line has come from the other core. A
 * wake-up that is lost nevertheless costs one slice of the sleep. `me` and `to` are seats. */
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
/* The same to all seats, in the collective context. */
static inline void lksi_publish(lksi_control *control, _Atomic uint64_t *counter, uint64_t value, int me) {
    lksi_publish_counter(counter, value);
    for (int to = 0; to < control->n_ranks; to++)
        if (to != me && lksi_is_awaited(control, LKSI_CONTEXT_COLLECTIVE, me, to))
            lksi_ring_bell(control, LKSI_CONTEXT_COLLECTIVE, to);
}

#endif
