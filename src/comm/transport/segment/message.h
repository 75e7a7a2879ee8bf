/* Messages of users: what its four files share.
 *
 *     message.c    transfers from their start to their end, and waiting
 *     messenger.c  which thread moves them
 *     match.c      which receive takes which message
 *     frame.c      what goes over the streams
 *
 * All of it belongs to one thread, the group's messenger; nothing here waits but lksi_transfer_wait and
 * lksi_transfer_perform.
 */
#ifndef LKSI_MESSAGE_H
#define LKSI_MESSAGE_H

#include "comm/comm_internal.h"

#include <string.h>

enum {
    LKSI_EAGER_NBYTES = 16 * 1024,     /* up to here data follows its header at once, */
    LKSI_EAGER_PLACED_NBYTES = 2048,   /* or where the receiver can copy it out of symmetric memory */
    LKSI_CREDIT_NBYTES = 1 << 20,      /* of one sender's messages that nobody has received yet */
    LKSI_UNEXPECTED_NBYTES = 64 << 20, /* of all senders' together. Beyond, messages are announced, which takes as
                                        * much as a small one; their senders keep a work of each */
    LKSI_DATA_NBYTES = 1 << 20,        /* of a large message go in one frame; then others have their turn */
    LKSI_FETCH_SIZES = 7,              /* from LKSI_EAGER_NBYTES on, in twos */
};

/* EAGER and ANNOUNCED are messages; FETCHED and PERMITTED answer an announcement, after the second DATA follows; CREDIT
 * only acknowledges. */
typedef enum lksi_frame_kind {
    LKSI_FRAME_EAGER = 1,
    LKSI_FRAME_ANNOUNCED,
    LKSI_FRAME_PERMITTED,
    LKSI_FRAME_DATA,
    LKSI_FRAME_CREDIT,
    LKSI_FRAME_FETCHED,
} lksi_frame_kind;

typedef struct lksi_frame {
    uint64_t nbytes; /* of the message; DATA: of this piece */
    int32_t tag;
    uint32_t acknowledged; /* of the eager messages that came the other way: bytes received since the last frame */
    uint8_t kind, type, is_placed;
    uint8_t is_blocking; /* its sender is in the call until it is done */
    uint8_t zeros[4];
    uint64_t id;      /* the sender's number of an announced message */
    uint64_t address; /* ANNOUNCED: where it lies in the sender's memory; is_placed: its place in symmetric memory */
} lksi_frame;

/* EAGER and CREDIT go without `id` and what follows: up to 32 bytes of data then lie in one line with them. */
enum { LKSI_FRAME_SHORT_NBYTES = offsetof(lksi_frame, id) };
static inline size_t lksi_frame_head_nbytes(uint8_t kind) {
    bool is_short = kind == LKSI_FRAME_EAGER || kind == LKSI_FRAME_CREDIT;
    return is_short ? LKSI_FRAME_SHORT_NBYTES : sizeof(lksi_frame);
}

typedef struct lksi_outgoing lksi_outgoing;
struct lksi_outgoing {
    lksi_outgoing *next;
    lksi_frame head;
    const unsigned char *data;
    size_t nbytes, n_done; /* of header and data */
    lksi_transfer *transfer;
};

typedef enum lksi_transfer_state {
    LKSI_TRANSFER_SENDING,
    LKSI_TRANSFER_POSTED,  /* a receive whose message has not come */
    LKSI_TRANSFER_MATCHED, /* one whose data is coming */
    LKSI_TRANSFER_DONE,
} lksi_transfer_state;

/* One send or receive. It lies with its caller or in its work; linked in while it is not done. */
struct lksi_transfer {
    lksi_transfer *before, *after;
    const char *name;
    uint64_t sequence;
    int64_t started_ns;                /* 0: its deadline counts from its first wait */
    _Atomic lksi_transfer_state state; /* done: after all else, for it is then its waiter's, on whatever thread */
    lks_status status;
    char *error_text; /* room for LKSI_ABORT_TEXT_NBYTES, or NULL */
    int peer, tag;    /* peer of a receive: may be LKS_ANY_SOURCE until it is matched */
    lks_type type;
    unsigned char *data;
    size_t nbytes, n_done; /* a receive's room, until it is matched */
    uint64_t id;
    size_t seen_nbytes; /* these three: of lksi_progress, from one look at it to the next */
    int64_t moved_ns;
    bool is_stall_reported;
    bool is_blocking;   /* its caller is in the call until it is done */
    bool awaits_answer; /* its announcement (of a send) or permission (of a receive) has gone out */
    lks_received *received;
    lksi_call_trial *fetch; /* of a receive that is one of its turns */
    lksi_outgoing out;      /* its frame under way: of a receive, the answer */
};

static inline lksi_transfer_state lksi_transfer_state_of(const lksi_transfer *transfer) {
    return atomic_load_explicit(&transfer->state, memory_order_acquire);
}
static inline bool lksi_transfer_is_done(const lksi_transfer *transfer) {
    return lksi_transfer_state_of(transfer) == LKSI_TRANSFER_DONE;
}
static inline void lksi_transfer_set(lksi_transfer *transfer, lksi_transfer_state state) {
    atomic_store_explicit(&transfer->state, state, memory_order_release);
}

/* All but `out`, which is filled in when there is a frame: to clear that, too, would take as long as all else that a
 * send does. */
static inline void lksi_transfer_clear(lksi_transfer *transfer) { memset(transfer, 0, offsetof(lksi_transfer, out)); }

/* A message that came before its receive. */
typedef struct lksi_arrival lksi_arrival;
struct lksi_arrival {
    lksi_arrival *next;
    int from;
    lksi_frame head;
    unsigned char *data; /* where it is kept; NULL where only its announcement is here */
    bool is_whole;
    lksi_transfer *taker; /* took it before it was whole */
    lksi_transfer *own;   /* a message to oneself: its send, which has the data */
};

/* What goes to and comes from one rank. */
typedef struct lksi_pair {
    lksi_outgoing *queue, **queue_end;
    lksi_outgoing credit;
    bool is_credit_queued;
    bool has_ended;          /* its stream; of importance only to transfers with this rank */
    size_t n_unacknowledged; /* eager bytes of ours */
    size_t n_to_acknowledge;
    lksi_frame head; /* of the frame that is coming in */
    size_t n_head, n_left;
    unsigned char *target;
    lksi_transfer *transfer; /* the receive it belongs to, */
    lksi_arrival *arrival;   /* or the message */
} lksi_pair;

struct lksi_messages {
    lksi_pair *pairs; /* by rank */
    lksi_transfer *first, *last;
    int n_pending;
    lksi_arrival *arrivals, **arrivals_end; /* oldest first */
    size_t n_own_kept_nbytes;
    size_t credit_nbytes;
    uint64_t n_ids, n_moves;
    lksi_interest *interests; /* of the present wait */
    /* Whether to let the sender go ahead (second) is quicker; of ordinary and symmetric memory, by size. */
    lksi_call_trial fetches[2][LKSI_FETCH_SIZES];
};

/* --- message.c --- */

lks_status lksi_messages_open(lks_group *group);
/* Starts a transfer; it may be done at once. On an error, which kills the group, it is not linked in. */
lks_status lksi_transfer_start(lks_group *group, lksi_transfer *transfer, bool is_send);
/* Waits until it is done and returns how it went. */
lks_status lksi_transfer_wait(lks_group *group, lksi_transfer *transfer);
/* Both in one call. */
lks_status lksi_transfer_perform(lks_group *group, lksi_transfer *transfer, bool is_send);
/* Moves it on without waiting; it ends where a wait would end. */
void lksi_transfer_test(lks_group *group, lksi_transfer *transfer);
/* A large message to oneself whose send must return: its data is kept for it. */
lks_status lksi_transfer_let_go(lks_group *group, lksi_transfer *transfer);
/* Moves on what can be without waiting; an error kills the group and ends all transfers. */
void lksi_messages_progress(lks_group *group);
/* The same until nothing moves; false where none is under way. */
bool lksi_messages_move_on(lks_group *group);
void lksi_transfer_finish(lks_group *group, lksi_transfer *transfer);

/* --- messenger.c --- */

/* This thread is in a call on the group's messages, from enter to leave; a second one kills the group. */
void lksi_messenger_enter(lks_group *group, const char *name);
void lksi_messenger_leave(lks_group *group);
/* Outside of one: no other thread's waits touch them from here on. */
void lksi_messenger_take(lks_group *group);

/* --- match.c --- */

/* A receive takes the first message that suits, or stays. */
lks_status lksi_match_receive(lks_group *group, lksi_transfer *transfer);
/* Appends what has come and nobody has asked for: mostly a mistake in a tag. */
void lksi_match_describe_rest(const lks_group *group, char *text, size_t text_nbytes);
/* A message's first frame is here: sets where its data goes. */
lks_status lksi_match_eager(lks_group *group, int from);
lks_status lksi_match_announced(lks_group *group, int from);
lks_status lksi_match_own(lks_group *group, lksi_transfer *transfer);
lks_status lksi_keep_own(lks_group *group, lksi_transfer *transfer);
/* An eager message has come in whole. */
void lksi_match_whole(lks_group *group, lksi_pair *pair);
void lksi_arrivals_free(lksi_messages *messages);

/* --- frame.c --- */

void lksi_frame_queue(lks_group *group, int to, lksi_outgoing *out);
/* Writes and reads what goes without waiting; reads up to the first frame that ends a transfer, or some. */
lks_status lksi_frames_flush(lks_group *group, int to);
lks_status lksi_frames_take(lks_group *group, int from);
/* Eager bytes of `from` were received. */
void lksi_frames_acknowledge(lks_group *group, int from, size_t nbytes);
/* What an eager message counts for: what keeping it takes. */
static inline size_t lksi_eager_cost(size_t nbytes) { return nbytes + sizeof(lksi_arrival); }
/* Takes an announced message, or lets its sender go ahead. */
lks_status lksi_frames_answer(lks_group *group, lksi_transfer *transfer, const lksi_frame *announced);

#endif
