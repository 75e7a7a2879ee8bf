/* What goes over the streams of the user context.
 *
 *     small    sender ── EAGER, data ──────────────────> receiver, or its memory until there is a receive
 *
 *     large, or over 2 KiB of symmetric memory
 *              sender ── ANNOUNCED ────────────────────> receiver            steps: 2
 *                     ·· copied ········ once there is a receive ·······>    bytes: N, into the receive's buffer
 *                     <── FETCHED ──────────────────────
 *              by the receiver itself out of symmetric memory, else by process_vm_readv
 *
 *     between hosts, where the sender's memory cannot be read, and where     steps: 3
 *     that is quicker
 *              sender ── ANNOUNCED ────────────────────> receiver            bytes: N, into the receive's buffer
 *                     <── PERMITTED ── once there is a receive
 *                     ── DATA ── DATA ── ... (1 MiB each) ──>
 *
 * Frames to one rank wait in a queue, each part of the transfer it belongs to, so that nothing is allocated. Large
 * messages take turns by the frame. What of eager messages has been received goes back with whatever frame goes there
 * next, or by itself when it is a quarter of the credit; a sender out of credit announces small messages, too.
 */
#include "comm/copy.h"
#include "comm/transport/segment/message.h"
#include "comm/transport/segment/stream.h"
#include "comm/world.h"

enum { FETCH_PERIOD = 4096 }; /* messages of about a size, from one choice to the next */

/* --- out --- */

void lksi_frame_queue(lks_group *group, int to, lksi_outgoing *out) {
    lksi_pair *pair = &group->messages->pairs[to];
    out->next = NULL;
    out->n_done = 0;
    out->nbytes = lksi_frame_head_nbytes(out->head.kind);
    if (out->data != NULL) out->nbytes += (size_t)out->head.nbytes;
    if (pair->queue == NULL) pair->queue_end = &pair->queue;
    *pair->queue_end = out;
    pair->queue_end = &out->next;
}

static void queue_data(lks_group *group, lksi_transfer *transfer) {
    transfer->out.head = (lksi_frame){.kind = LKSI_FRAME_DATA,
                                      .id = transfer->id,
                                      .nbytes = lksi_least(LKSI_DATA_NBYTES, transfer->nbytes - transfer->n_done)};
    transfer->out.data = transfer->data + transfer->n_done;
    lksi_frame_queue(group, transfer->peer, &transfer->out);
}

/* The frame has gone out whole. */
static void conclude(lks_group *group, lksi_pair *pair, const lksi_outgoing *out) {
    lksi_transfer *transfer = out->transfer;
    switch ((lksi_frame_kind)out->head.kind) {
    case LKSI_FRAME_CREDIT:
        pair->is_credit_queued = false;
        return;
    case LKSI_FRAME_ANNOUNCED:
    case LKSI_FRAME_PERMITTED:
        transfer->awaits_answer = true;
        return;
    case LKSI_FRAME_EAGER:
        transfer->n_done = transfer->nbytes;
        break;
    case LKSI_FRAME_DATA:
        transfer->n_done += (size_t)out->head.nbytes;
        break;
    case LKSI_FRAME_FETCHED: /* its data was there before */
        break;
    }
    if (transfer->n_done == transfer->nbytes)
        lksi_transfer_finish(group, transfer);
    else
        queue_data(group, transfer);
}

static lks_status write_frame(lks_group *group, int to, lksi_outgoing *out) {
    size_t n_head = lksi_frame_head_nbytes(out->head.kind), n;
    struct iovec parts[2] = {{&out->head, n_head}, {(void *)(uintptr_t)out->data, out->nbytes - n_head}};
    int n_parts = lksi_parts_left(parts, out->n_done);
    LKS_TRY(lksi_stream_write(group, LKSI_CONTEXT_USER, to, parts, n_parts, &n));
    out->n_done += n;
    if (n > 0) group->messages->n_moves++;
    return LKS_OK;
}

/* Who has left wants no credit any more, and its messages are still to be received. That it has left we may hear by not
 * reaching it, and from nobody: those who would tell may have left before it. */
static lks_status write_wanted(lks_group *group, int to, lksi_outgoing *out) {
    if (out->head.kind != LKSI_FRAME_CREDIT) return write_frame(group, to, out);
    bool is_told = group->n_seats < group->size && group->remote->has_left != NULL; /* by who is on other hosts */
    bool has_left = is_told && group->remote->has_left(group, to);
    lks_status status = has_left ? LKS_ERR_PEER : write_frame(group, to, out);
    if (status != LKS_ERR_PEER) return status;
    LKS_TRY(lksi_refuse_aborted(group, LKSI_CONTEXT_USER));
    out->n_done = out->nbytes;
    return LKS_OK;
}

lks_status lksi_frames_flush(lks_group *group, int to) {
    lksi_pair *pair = &group->messages->pairs[to];
    while (pair->queue != NULL) {
        lksi_outgoing *out = pair->queue;
        if (out->n_done == 0) {
            out->head.acknowledged += (uint32_t)pair->n_to_acknowledge;
            pair->n_to_acknowledge = 0;
        }
        LKS_TRY(write_wanted(group, to, out));
        if (out->n_done < out->nbytes) return LKS_OK;
        pair->queue = out->next;
        conclude(group, pair, out);
    }
    return LKS_OK;
}

void lksi_frames_acknowledge(lks_group *group, int from, size_t nbytes) {
    lksi_pair *pair = &group->messages->pairs[from];
    pair->n_to_acknowledge += lksi_eager_cost(nbytes);
    if (pair->n_to_acknowledge < group->messages->credit_nbytes / 4 || pair->is_credit_queued) return;
    pair->credit = (lksi_outgoing){.head = {.kind = LKSI_FRAME_CREDIT}};
    pair->is_credit_queued = true;
    lksi_frame_queue(group, from, &pair->credit);
}

/* Out of symmetric memory, which this rank can address itself. */
static bool copy_placed(const lks_group *group, lksi_transfer *transfer, uint64_t place) {
    const unsigned char *from = lksi_place_address(group, place, transfer->peer);
    if (from == NULL) return false;
    for (size_t first = 0; first < transfer->nbytes; first += LKSI_DATA_NBYTES) {
        lksi_bring(transfer->data + first, from + first, lksi_least(LKSI_DATA_NBYTES, transfer->nbytes - first),
                   4 * transfer->nbytes); /* as if another went the other way */
        if (lksi_control_is_aborted_after_reading(group->control)) return false;
    }
    return true;
}

/* Whether this rank can take the data itself. */
static bool can_fetch(const lks_group *group, const lksi_transfer *transfer, const lksi_frame *announced) {
    bool may_read = announced->is_placed || group->may_peek || group->world->threads != NULL;
    return may_read && group->seat_of[transfer->peer] >= 0;
}

/* One copy, where two go through a stream. What the sender has there is the message unless it gave up; then it says so
 * before it does anything else with that memory. */
static bool fetch(const lks_group *group, lksi_transfer *transfer, const lksi_frame *announced) {
    bool is_copied = announced->is_placed
                         ? copy_placed(group, transfer, announced->address)
                         : lksi_try_peek(group, transfer->peer, announced->address, transfer->data, transfer->nbytes);
    atomic_thread_fence(memory_order_acquire); /* as for the abort word: it may have left instead */
    int seat = group->seat_of[transfer->peer];
    return is_copied && atomic_load(&group->control->seats[seat].presence.value) != LKSI_LEFT;
}

/* A buffer that the receiver has read is dear to write for the sender, outside of this call: where its user fills it
 * again for the next message, two copies through a stream take less time than one, and else more (two ranks of Granite
 * Rapids, 64 KiB: 9.5 and 15.5 us; untouched 9.0 and 3.9). So it is tried, where both have nothing else to do until it
 * is done: what streams waits for calls on the group. NULL: it is not. */
static lksi_call_trial *begin_fetch(lks_group *group, const lksi_transfer *transfer, const lksi_frame *announced) {
    size_t size = transfer->nbytes / LKSI_EAGER_NBYTES;
    if (!group->may_spin || !transfer->is_blocking || !announced->is_blocking) return NULL;
    if (size == 0 || size >= (size_t)1 << LKSI_FETCH_SIZES) return NULL;
    lksi_call_trial *trial = &group->messages->fetches[announced->is_placed != 0][lksi_log2((int)size + 1) - 1];
    lksi_call_trial_begin(trial, FETCH_PERIOD);
    return trial;
}

lks_status lksi_frames_answer(lks_group *group, lksi_transfer *transfer, const lksi_frame *announced) {
    bool is_possible = can_fetch(group, transfer, announced);
    if (is_possible) transfer->fetch = begin_fetch(group, transfer, announced);
    bool is_streamed = transfer->fetch != NULL && transfer->fetch->turn.is_second;
    bool is_fetched = is_possible && !is_streamed && fetch(group, transfer, announced);
    transfer->out =
        (lksi_outgoing){.head = {.kind = is_fetched ? LKSI_FRAME_FETCHED : LKSI_FRAME_PERMITTED, .id = transfer->id},
                        .transfer = transfer};
    if (is_fetched) transfer->n_done = transfer->nbytes;
    lksi_frame_queue(group, transfer->peer, &transfer->out);
    return lksi_frames_flush(group, transfer->peer);
}

/* --- in --- */

static lks_status nonsense(const lks_group *group, int from, const lksi_frame *head) {
    return lksi_error(LKS_ERR_FORMAT,
                      "rank %d got a frame that makes no sense from rank %d: kind %d, id %llu, %llu bytes",
                      lksi_world_rank(group, group->rank), lksi_world_rank(group, from), head->kind,
                      (unsigned long long)head->id, (unsigned long long)head->nbytes);
}

static lksi_transfer *find(lks_group *group, lksi_transfer_state state, int peer, uint64_t id) {
    lksi_transfer *each = group->messages->first;
    while (each != NULL && (lksi_transfer_state_of(each) != state || each->peer != peer || each->id != id))
        each = each->after;
    return id == 0 ? NULL : each;
}

/* An answer to what has not gone out yet would end or requeue a transfer whose frame is in the queue. */
static lks_status begin_data(lks_group *group, int from, lksi_pair *pair) {
    lksi_transfer *transfer = find(group, LKSI_TRANSFER_MATCHED, from, pair->head.id);
    if (transfer == NULL || !transfer->awaits_answer || pair->head.nbytes > transfer->nbytes - transfer->n_done)
        return nonsense(group, from, &pair->head);
    pair->transfer = transfer;
    pair->target = transfer->data + transfer->n_done;
    pair->n_left = (size_t)pair->head.nbytes;
    return LKS_OK;
}

static lks_status begin_frame(lks_group *group, int from, lksi_pair *pair) {
    const lksi_frame *head = &pair->head;
    bool is_message = head->kind == LKSI_FRAME_EAGER || head->kind == LKSI_FRAME_ANNOUNCED;
    if (head->acknowledged > pair->n_unacknowledged) return nonsense(group, from, head);
    pair->n_unacknowledged -= head->acknowledged;
    if (is_message && (lksi_type_nbytes((lks_type)head->type) == 0 || head->tag < 0))
        return nonsense(group, from, head);
    if (head->kind == LKSI_FRAME_EAGER && head->nbytes <= LKSI_EAGER_NBYTES) return lksi_match_eager(group, from);
    if (head->kind == LKSI_FRAME_ANNOUNCED && head->id != 0) return lksi_match_announced(group, from);
    if (head->kind == LKSI_FRAME_DATA) return begin_data(group, from, pair);
    if (head->kind == LKSI_FRAME_CREDIT) return LKS_OK;
    lksi_transfer *answered = find(group, LKSI_TRANSFER_SENDING, from, head->id);
    bool is_answer = head->kind == LKSI_FRAME_FETCHED || head->kind == LKSI_FRAME_PERMITTED;
    if (!is_answer || answered == NULL || !answered->awaits_answer) return nonsense(group, from, head);
    answered->awaits_answer = false;
    if (head->kind == LKSI_FRAME_FETCHED) {
        answered->n_done = answered->nbytes;
        lksi_transfer_finish(group, answered);
        return LKS_OK;
    }
    queue_data(group, answered);
    return lksi_frames_flush(group, from);
}

/* Whether a transfer is done with it: fewer are pending than before. */
static bool end_frame(lks_group *group, lksi_pair *pair, int n_pending) {
    lksi_transfer *transfer = pair->transfer;
    if (pair->head.kind == LKSI_FRAME_EAGER)
        lksi_match_whole(group, pair);
    else if (transfer != NULL && transfer->n_done == transfer->nbytes)
        lksi_transfer_finish(group, transfer);
    pair->head = (lksi_frame){0}; /* a short one leaves the rest as it is */
    pair->n_head = 0;
    pair->transfer = NULL, pair->arrival = NULL;
    return group->messages->n_pending < n_pending;
}

/* Its kind, which is in the short part, says how much it is. */
static size_t n_head_left(const lksi_pair *pair) {
    if (pair->n_head < LKSI_FRAME_SHORT_NBYTES) return LKSI_FRAME_SHORT_NBYTES - pair->n_head;
    return lksi_frame_head_nbytes(pair->head.kind) - pair->n_head;
}

static lks_status read_head(lks_group *group, int from, lksi_pair *pair) {
    size_t n, n_left;
    while ((n_left = n_head_left(pair)) > 0) {
        LKS_TRY(lksi_stream_read(group, LKSI_CONTEXT_USER, from, (char *)&pair->head + pair->n_head, n_left, &n));
        if (n == 0) return LKS_OK;
        pair->n_head += n;
        group->messages->n_moves++;
    }
    return begin_frame(group, from, pair);
}

/* Whoever called mostly waits for just the transfer that was done: to look whether there is more after it would fetch
 * one more line from the other core, and would keep messages for which the next call has a place. A sender that never
 * rests is left after a while, so that its reader looks at its deadline. */
lks_status lksi_frames_take(lks_group *group, int from) {
    enum { MOST_FRAMES = 64 };
    lksi_pair *pair = &group->messages->pairs[from];
    int n_pending = group->messages->n_pending;
    for (int i = 0; i < MOST_FRAMES; i++) {
        if (n_head_left(pair) > 0) LKS_TRY(read_head(group, from, pair));
        if (n_head_left(pair) > 0) return LKS_OK;
        while (pair->n_left > 0) {
            size_t n;
            LKS_TRY(lksi_stream_read(group, LKSI_CONTEXT_USER, from, pair->target, pair->n_left, &n));
            if (n == 0) return LKS_OK;
            group->messages->n_moves++;
            pair->target += n, pair->n_left -= n;
            if (pair->transfer != NULL) pair->transfer->n_done += n;
        }
        if (end_frame(group, pair, n_pending)) return LKS_OK;
    }
    return LKS_OK;
}
