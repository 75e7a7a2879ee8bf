/* Point-to-point messages through the rings of the control segment.
 *
 *     sender ── header, data ──> [ ring of the pair: written ....... consumed ] ──> receiver
 *
 * A message that fits into what is free is sent without waiting (eager); a longer one flows through in pieces, the
 * receiver reading while the sender writes. Headers and data are padded to 16 bytes, so that a header never wraps.
 * A receiver that wants another tag than the next message has moves that message to its queue; a queue over its limit
 * is an error, so that a sender nobody listens to cannot fill the memory.
 */
#include "comm/comm_internal.h"
#include "comm/copy.h"

#include <string.h>

enum { HEADER_NBYTES = 16, UNEXPECTED_LIMIT_NBYTES = 64 << 20 };

typedef struct header {
    uint64_t nbytes;
    uint32_t type;
    int32_t tag;
} header;

struct lksi_unexpected {
    lksi_unexpected *next;
    int from;
    header head;
    unsigned char *data;
};

static size_t pad(size_t nbytes) { return (nbytes + HEADER_NBYTES - 1) / HEADER_NBYTES * HEADER_NBYTES; }
static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* --- bytes into and out of a ring, without waiting --- */

static void copy_in(lksi_ring *ring, size_t capacity, uint64_t at, const void *data, size_t nbytes) {
    size_t begin = (size_t)at & (capacity - 1), n_first = least(nbytes, capacity - begin);
    if (nbytes == 0) return;
    lksi_copy(ring->data + begin, data, n_first);
    lksi_copy(ring->data, (const unsigned char *)data + n_first, nbytes - n_first);
}

static void copy_out(const lksi_ring *ring, size_t capacity, uint64_t at, void *data, size_t nbytes) {
    size_t begin = (size_t)at & (capacity - 1), n_first = least(nbytes, capacity - begin);
    if (nbytes == 0) return;
    lksi_copy(data, ring->data + begin, n_first);
    lksi_copy((unsigned char *)data + n_first, ring->data, nbytes - n_first);
}

/* One message on its way through a ring, as its sender or its receiver sees it. */
typedef struct transfer {
    lksi_ring *ring;
    int peer;
    unsigned char *data;
    size_t nbytes, n_done;
    bool has_header;
} transfer;

/* Pieces of a quarter ring: the receiver starts on the first while the sender writes the next. */
static bool push(lks_group *group, transfer *out, const header *head) {
    lksi_control *control = group->control;
    size_t capacity = (size_t)control->ring_nbytes;
    uint64_t written = atomic_load_explicit(&out->ring->written.value, memory_order_relaxed);
    for (;;) {
        uint64_t consumed = atomic_load_explicit(&out->ring->consumed.value, memory_order_acquire);
        size_t n_free = capacity - (size_t)(written - consumed);
        if (n_free < HEADER_NBYTES) return false;
        if (!out->has_header) {
            copy_in(out->ring, capacity, written, head, sizeof *head);
            written += HEADER_NBYTES, n_free -= HEADER_NBYTES;
            out->has_header = true;
        }
        size_t n = least(least(out->nbytes - out->n_done, n_free), capacity / 4);
        copy_in(out->ring, capacity, written, out->data + out->n_done, n);
        written += pad(n), out->n_done += n;
        lksi_publish_to(control, &out->ring->written.value, written, group->rank, out->peer);
        group->progress.done_nbytes = out->n_done;
        if (out->n_done == out->nbytes) return true;
    }
}

/* Pieces but the last are multiples of 16 on both sides, because capacity and positions are: padding is at the end. */
static bool pull(lks_group *group, transfer *in) {
    lksi_control *control = group->control;
    size_t capacity = (size_t)control->ring_nbytes;
    uint64_t consumed = atomic_load_explicit(&in->ring->consumed.value, memory_order_relaxed);
    while (in->n_done < in->nbytes) {
        uint64_t written = atomic_load_explicit(&in->ring->written.value, memory_order_acquire);
        if (written == consumed) return false;
        size_t n = least(least(in->nbytes - in->n_done, (size_t)(written - consumed)), capacity / 4);
        copy_out(in->ring, capacity, consumed, in->data + in->n_done, n);
        consumed += pad(n), in->n_done += n;
        lksi_publish_to(control, &in->ring->consumed.value, consumed, group->rank, in->peer);
        group->progress.done_nbytes = in->n_done;
    }
    return true;
}

static lksi_condition has_more(const transfer *in) {
    uint64_t consumed = atomic_load_explicit(&in->ring->consumed.value, memory_order_relaxed);
    return (lksi_condition){&in->ring->written.value, consumed + 1, in->peer};
}

static lksi_condition has_room(const lks_group *group, const transfer *out) {
    uint64_t written = atomic_load_explicit(&out->ring->written.value, memory_order_relaxed);
    return (lksi_condition){&out->ring->consumed.value, written + HEADER_NBYTES - group->control->ring_nbytes,
                            out->peer};
}

/* --- messages that came before their receive --- */

static lks_status keep(lks_group *group, int from, const header *head, unsigned char **data) {
    size_t held_nbytes = (size_t)head->nbytes;
    lksi_unexpected **end = &group->unexpected;
    for (; *end != NULL; end = &(*end)->next) held_nbytes += (size_t)(*end)->head.nbytes;
    if (held_nbytes > UNEXPECTED_LIMIT_NBYTES)
        return lksi_error(LKS_ERR_MEMORY,
                          "rank %d holds over %d MiB of messages that it has not received, the last from "
                          "rank %d with tag %d",
                          group->rank, UNEXPECTED_LIMIT_NBYTES >> 20, from, head->tag);
    lksi_unexpected *kept = lksi_alloc(sizeof *kept + (size_t)head->nbytes);
    if (kept == NULL) return LKS_ERR_MEMORY;
    *kept = (lksi_unexpected){.from = from, .head = *head, .data = (unsigned char *)(kept + 1)};
    *end = kept;
    *data = kept->data;
    return LKS_OK;
}

static lksi_unexpected **find_kept(lks_group *group, int from, int tag) {
    lksi_unexpected **link = &group->unexpected;
    while (*link != NULL && ((*link)->from != from || (*link)->head.tag != tag)) link = &(*link)->next;
    return link;
}

void lksi_segment_forget_unexpected(lks_group *group) {
    while (group->unexpected != NULL) {
        lksi_unexpected *gone = group->unexpected;
        group->unexpected = gone->next;
        lksi_free(gone);
    }
}

/* --- sending --- */

static header header_of(const lksi_message *message) {
    return (header){.nbytes = message->nbytes, .type = (uint32_t)message->type, .tag = message->tag};
}

static transfer start_send(lks_group *group, const lksi_message *message) {
    group->counters.n_messages++;
    group->counters.n_message_nbytes += message->nbytes;
    return (transfer){.ring = lksi_control_ring(group->control, message->context, group->rank, message->peer),
                      .peer = message->peer,
                      .data = message->data,
                      .nbytes = message->nbytes};
}

/* A message to oneself cannot be read while it is written, so it goes to the queue whole. */
static lks_status send_to_self(lks_group *group, const lksi_message *message) {
    header head = header_of(message);
    unsigned char *data = NULL;
    LKS_TRY(keep(group, group->rank, &head, &data));
    lksi_copy(data, message->data, message->nbytes);
    return LKS_OK;
}

lks_status lksi_segment_send(lks_group *group, const lksi_message *message) {
    transfer out = start_send(group, message);
    header head = header_of(message);
    if (message->peer == group->rank) return send_to_self(group, message);
    while (!push(group, &out, &head)) {
        lksi_condition room = has_room(group, &out);
        LKS_TRY(lksi_wait_any(group, &room, 1));
    }
    return LKS_OK;
}

/* --- receiving --- */

static lks_status check(const lks_group *group, const lksi_message *message, const header *head) {
    bool fits = head->nbytes <= message->nbytes;
    if (head->type == (uint32_t)message->type && fits) return LKS_OK;
    size_t each = lks_type_nbytes((lks_type)head->type);
    return lksi_error(LKS_ERR_MISMATCH, "rank %d sent %zu %s with tag %d, rank %d receives up to %zu %s", message->peer,
                      each == 0 ? 0 : (size_t)head->nbytes / each, lks_type_name((lks_type)head->type), head->tag,
                      group->rank, message->nbytes / lks_type_nbytes(message->type), lks_type_name(message->type));
}

static lks_status take_kept(lks_group *group, lksi_message *message, lksi_unexpected **link) {
    lksi_unexpected *kept = *link;
    LKS_TRY(check(group, message, &kept->head));
    message->nbytes = (size_t)kept->head.nbytes;
    lksi_copy(message->data, kept->data, message->nbytes);
    *link = kept->next;
    lksi_free(kept);
    return LKS_OK;
}

/* Where a receive stands: `in` is the message now in the ring, ours or one that goes to the queue. */
typedef struct reception {
    lksi_message *message;
    transfer in;
    bool is_ours;
} reception;

/* Reads the header of the next message if it is there, and decides where its data goes. */
static lks_status read_header(lks_group *group, reception *r) {
    header head;
    lksi_condition more = has_more(&r->in);
    if (atomic_load_explicit(more.counter, memory_order_acquire) < more.target) return LKS_OK;
    uint64_t consumed = more.target - 1;
    copy_out(r->in.ring, (size_t)group->control->ring_nbytes, consumed, &head, sizeof head);
    r->is_ours = head.tag == r->message->tag;
    if (r->is_ours) {
        LKS_TRY(check(group, r->message, &head));
        r->message->nbytes = (size_t)head.nbytes;
        r->in.data = r->message->data;
    } else {
        LKS_TRY(keep(group, r->in.peer, &head, &r->in.data));
    }
    r->in.nbytes = (size_t)head.nbytes, r->in.n_done = 0, r->in.has_header = true;
    lksi_publish_to(group->control, &r->in.ring->consumed.value, consumed + HEADER_NBYTES, group->rank, r->in.peer);
    return LKS_OK;
}

/* As far as it goes without waiting. */
static lks_status advance(lks_group *group, reception *r, bool *is_done) {
    *is_done = false;
    for (;;) {
        if (!r->in.has_header) LKS_TRY(read_header(group, r));
        if (!r->in.has_header || !pull(group, &r->in)) return LKS_OK;
        r->in.has_header = false;
        *is_done = r->is_ours;
        if (*is_done) return LKS_OK;
    }
}

static reception start_receive(lks_group *group, lksi_message *message) {
    lksi_ring *ring = lksi_control_ring(group->control, message->context, message->peer, group->rank);
    return (reception){.message = message, .in = {.ring = ring, .peer = message->peer}};
}

lks_status lksi_segment_receive(lks_group *group, lksi_message *message) {
    if (message->context == LKSI_CONTEXT_USER) {
        lksi_unexpected **kept = find_kept(group, message->peer, message->tag);
        if (*kept != NULL) return take_kept(group, message, kept);
    }
    reception r = start_receive(group, message);
    for (bool is_done;;) {
        LKS_TRY(advance(group, &r, &is_done));
        if (is_done) return LKS_OK;
        lksi_condition more = has_more(&r.in);
        LKS_TRY(lksi_wait_any(group, &more, 1));
    }
}

lks_status lksi_segment_send_receive(lks_group *group, const lksi_message *sent, lksi_message *received) {
    transfer out = start_send(group, sent);
    reception r = start_receive(group, received);
    header head = header_of(sent);
    bool is_sent = false, is_received = false;
    for (;;) {
        if (!is_sent) is_sent = push(group, &out, &head);
        if (!is_received) LKS_TRY(advance(group, &r, &is_received));
        if (is_sent && is_received) return LKS_OK;
        lksi_condition conditions[2];
        int n = 0;
        if (!is_sent) conditions[n++] = has_room(group, &out);
        if (!is_received) conditions[n++] = has_more(&r.in);
        LKS_TRY(lksi_wait_any(group, conditions, n));
    }
}

/* --- steps of collectives --- */

static lksi_message step(const lksi_call *call, int peer, const void *data, size_t nbytes) {
    return (lksi_message){.context = LKSI_CONTEXT_COLLECTIVE,
                          .peer = peer,
                          .tag = (int)(call->sequence & INT32_MAX),
                          .type = LKS_U8,
                          .data = (void *)(uintptr_t)data,
                          .nbytes = nbytes};
}

lks_status lksi_step_send(lks_group *group, const lksi_call *call, int to, const void *data, size_t nbytes) {
    lksi_message message = step(call, to, data, nbytes);
    return lksi_segment_send(group, &message);
}

lks_status lksi_step_receive(lks_group *group, const lksi_call *call, int from, void *data, size_t nbytes) {
    lksi_message message = step(call, from, data, nbytes);
    return lksi_segment_receive(group, &message);
}

lks_status lksi_step_exchange(lks_group *group, const lksi_call *call, int to, const void *sent, size_t n_sent_nbytes,
                              int from, void *received, size_t n_received_nbytes) {
    lksi_message out = step(call, to, sent, n_sent_nbytes), in = step(call, from, received, n_received_nbytes);
    return lksi_segment_send_receive(group, &out, &in);
}
