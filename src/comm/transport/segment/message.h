/* Point-to-point messages: what their four files share.
 *
 *     message.c    transfers from start to completion, and waiting
 *     messenger.c  which thread progresses them
 *     match.c      which receive takes which message
 *     frame.c      what goes over the streams
 *
 * All of it belongs to one thread, the messenger of the group. Only lksi_transfer_wait and lksi_transfer_perform wait.
 */
#ifndef LKSI_MESSAGE_H
#define LKSI_MESSAGE_H

#include "comm/comm_internal.h"

#include <string.h>

enum {
    LKSI_EAGER_NBYTES = 16 * 1024,   /* up to this size the data follows its header at once */
    LKSI_EAGER_PLACED_NBYTES = 2048, /* the same, if the receiver can copy the data out of symmetric memory */
    LKSI_CREDIT_NBYTES = 1 << 20,    /* eager bytes of one sender that were not received yet */
    /* The same for all senders together. Beyond it messages are announced. An announcement takes as much memory as a
     * small message, but its sender keeps a work for each. */
    LKSI_UNEXPECTED_NBYTES = 64 << 20,
    LKSI_DATA_NBYTES = 1 << 20, /* of a large message in one frame; then other messages have their turn */
    LKSI_FETCH_SIZES = 7,       /* size classes from LKSI_EAGER_NBYTES on, in powers of two */
};

/* EAGER and ANNOUNCED begin a message. FETCHED and PERMITTED answer an announcement. DATA follows PERMITTED. CREDIT
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
    uint32_t acknowledged; /* eager bytes of the other direction that were received since the last frame */
    uint8_t kind, type, is_placed;
    uint8_t is_blocking; /* the sender stays in the call until the message is done */
    uint8_t zeros[4];
    uint64_t id;      /* of an announced message, by the count of its sender */
    uint64_t address; /* ANNOUNCED: address in the sender's memory; is_placed: its place in symmetric memory */
} lksi_frame;

/* EAGER and CREDIT omit `id` and what follows. So up to 32 bytes of data share one cache line with the head. */
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
    LKSI_TRANSFER_POSTED,  /* a receive without a message yet */
    LKSI_TRANSFER_MATCHED, /* a receive whose data is arriving */
    LKSI_TRANSFER_DONE,
} lksi_transfer_state;

/* One send or receive. It lies on its caller's stack or in its work, and is linked into the group until it is done. */
struct lksi_transfer {
    lksi_transfer *before, *after;
    const char *name;
    uint64_t sequence;
    int64_t started_ns;                /* 0: its deadline counts from its first wait */
    _Atomic lksi_transfer_state state; /* DONE is stored last (release): the waiter, on any thread, then owns it */
    lks_status status;
    char *error_text; /* room for LKSI_ABORT_TEXT_NBYTES, or NULL */
    int peer, tag;    /* peer of a receive may be LKS_ANY_SOURCE until it is matched */
    lks_type type;
    unsigned char *data;
    size_t nbytes, n_done; /* nbytes of a receive is its capacity until it is matched */
    uint64_t id;
    size_t seen_nbytes; /* this and the next two: lksi_progress, saved from one look to the next */
    int64_t moved_ns;
    bool is_stall_reported;
    bool is_blocking;   /* its caller stays in the call until it is done */
    bool awaits_answer; /* its ANNOUNCED (send) or PERMITTED (receive) frame has been written */
    lks_received *received;
    lksi_call_trial *fetch; /* the trial of which this receive is a turn; NULL: none */
    lksi_outgoing out;      /* its frame in progress; of a receive: the answer */
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

/* Clears all but `out`, which is filled in when there is a frame. Clearing it, too, would take as long as the rest of a
 * send. */
static inline void lksi_transfer_clear(lksi_transfer *transfer) { memset(transfer, 0, offsetof(lksi_transfer, out)); }

/* A message that arrived before its receive. */
typedef struct lksi_arrival lksi_arrival;
struct lksi_arrival {
    lksi_arrival *next;
    int from;
    lksi_frame head;
    unsigned char *data; /* where it is kept; NULL: only its announcement has arrived */
    bool is_whole;
    lksi_transfer *taker; /* the receive that took it before it was whole */
    lksi_transfer *own;   /* a message of this rank to itself: its send, which has the data */
};

/* State of the messages to and from one rank. */
typedef struct lksi_pair {
    lksi_outgoing *queue, **queue_end;
    lksi_outgoing credit;
    bool is_credit_queued;
    bool has_ended;          /* the stream; matters only to transfers with this rank */
    size_t n_unacknowledged; /* eager bytes that this rank sent */
    size_t n_to_acknowledge;
    lksi_frame head; /* of the incoming frame */
    size_t n_head, n_left;
    unsigned char *target;
    lksi_transfer *transfer; /* the receive that the frame belongs to, */
    lksi_arrival *arrival;   /* or the message without a receive */
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
    /* Trials whether streaming (the second way) is faster than fetching: [is_placed][size class]. */
    lksi_call_trial fetches[2][LKSI_FETCH_SIZES];
};

/* --- message.c --- */

lks_status lksi_messages_open(lks_group *group);
/* Starts a transfer. It may be done at once. An error kills the group, and the transfer is then not linked in. */
lks_status lksi_transfer_start(lks_group *group, lksi_transfer *transfer, bool is_send);
/* Waits until the transfer is done and returns its status. */
lks_status lksi_transfer_wait(lks_group *group, lksi_transfer *transfer);
/* Starts a transfer and waits for it. */
lks_status lksi_transfer_perform(lks_group *group, lksi_transfer *transfer, bool is_send);
/* Makes progress without waiting. The transfer fails where a wait would fail. */
void lksi_transfer_test(lks_group *group, lksi_transfer *transfer);
/* Copies the data of a large message of this rank to itself, so that its blocking send can return. */
lks_status lksi_transfer_let_go(lks_group *group, lksi_transfer *transfer);
/* Makes progress on all transfers without waiting. An error kills the group and ends all transfers. */
void lksi_messages_progress(lks_group *group);
/* The same until nothing moves. False if no transfer is pending. */
bool lksi_messages_move_on(lks_group *group);
void lksi_transfer_finish(lks_group *group, lksi_transfer *transfer);

/* --- messenger.c --- */

/* From enter to leave this thread is in a call on the group's messages. A second thread that enters kills the group. */
void lksi_messenger_enter(lks_group *group, const char *name);
void lksi_messenger_leave(lks_group *group);
/* Makes this thread the messenger outside of such a call. From here on, waits of other threads do not progress the
 * group's messages. */
void lksi_messenger_take(lks_group *group);

/* --- match.c --- */

/* The receive takes the first message that matches, or stays posted. */
lks_status lksi_match_receive(lks_group *group, lksi_transfer *transfer);
/* Appends to `text` the oldest message without a receive. The usual cause is a wrong tag. */
void lksi_match_describe_rest(const lks_group *group, char *text, size_t text_nbytes);
/* The first frame of a message has arrived. These decide where its data goes. */
lks_status lksi_match_eager(lks_group *group, int from);
lks_status lksi_match_announced(lks_group *group, int from);
lks_status lksi_match_own(lks_group *group, lksi_transfer *transfer);
lks_status lksi_keep_own(lks_group *group, lksi_transfer *transfer);
/* An eager message has arrived completely. */
void lksi_match_whole(lks_group *group, lksi_pair *pair);
void lksi_arrivals_free(lksi_messages *messages);

/* --- frame.c --- */

void lksi_frame_queue(lks_group *group, int to, lksi_outgoing *out);
/* These write and read what is possible without waiting. lksi_frames_take stops after the first frame that completes a
 * transfer, or after a bounded number of frames. */
lks_status lksi_frames_flush(lks_group *group, int to);
lks_status lksi_frames_take(lks_group *group, int from);
/* An eager message of `nbytes` from `from` was received. Acknowledges it now or later. */
void lksi_frames_acknowledge(lks_group *group, int from, size_t nbytes);
/* What an eager message counts for: the memory that keeping it takes. */
static inline size_t lksi_eager_cost(size_t nbytes) { return nbytes + sizeof(lksi_arrival); }
/* Fetches an announced message, or permits its sender to stream it. */
lks_status lksi_frames_answer(lks_group *group, lksi_transfer *transfer, const lksi_frame *announced);

#endif
