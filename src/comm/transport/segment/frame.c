/* The frames of point-to-point messages: what goes over the streams of the user context.
 *
 *     small    sender ── EAGER, data ──────────────────> receiver, which keeps it until a receive matches
 *
 *     large, or over 2 KiB of symmetric memory
 *              sender ── ANNOUNCED ────────────────────> receiver            steps: 2
 *                     ·· copied ········ once there is a receive ·······>    bytes: N, into the receive's buffer
 *                     <── FETCHED ──────────────────────
 *              The receiver copies, out of symmetric memory or by process_vm_readv.
 *
 *     large, between hosts, or if the sender's memory cannot be read,        steps: 3
 *     or if this is faster
 *              sender ── ANNOUNCED ────────────────────> receiver            bytes: N, into the receive's buffer
 *                     <── PERMITTED ── once there is a receive
 *                     ── DATA ── DATA ── ... (1 MiB each) ──>
 *
 * Frames to one rank wait in a queue. A frame is a part of its transfer, so nothing is allocated. Large messages
 * alternate frame by frame. Every frame acknowledges the eager bytes that were received in the other direction. A
 * CREDIT frame does so alone when a quarter of the credit is unacknowledged. A sender without credit also announces
 * small messages.
 */
#include "comm/copy.h"
#include "comm/transport/segment/message.h"
#include "comm/transport/segment/stream.h"
#include "comm/world.h"

enum { FETCH_PERIOD = 4096 }; /* messages of one size class until the trial is repeated */

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

/* The frame has been written completely. */
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
    case LKSI_FRAME_FETCHED: /* the data was copied before */
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

/* A rank that has left needs no credit, but its messages must still be received. So a CREDIT frame to it is dropped. A
 * failed write may be the only sign that it has left, because the ranks that would report it may have left before. */
static lks_status write_wanted(lks_group *group, int to, lksi_outgoing *out) {
    if (out->head.kind != LKSI_FRAME_CREDIT) return write_frame(group, to, out);
    bool is_told = group->n_seats < group->size && group->remote->has_left != NULL; /* ranks of other hosts report it */
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

/* Copies out of symmetric memory, which this rank can address itself. */
static bool copy_placed(const lks_group *group, lksi_transfer *transfer, uint64_t place) {
    const unsigned char *from = lksi_place_address(group, place, transfer->peer);
    if (from == NULL) return false;
    for (size_t first = 0; first < transfer->nbytes; first += LKSI_DATA_NBYTES) {
        lksi_bring(transfer->data + first, from + first, lksi_least(LKSI_DATA_NBYTES, transfer->nbytes - first),
                   4 * transfer->nbytes); /* assumes a message of the same size in the other direction */
        if (lksi_control_is_aborted_after_reading(group->control)) return false;
    }
    return true;
}

/* Whether this rank can read the sender's buffer itself. */
static bool can_fetch(const lks_group *group, const lksi_transfer *transfer, const lksi_frame *announced) {
    bool may_read = announced->is_placed || group->may_peek || group->world->threads != NULL;
    return may_read && group->seat_of[transfer->peer] >= 0;
}

/* One copy, where a stream needs two. The sender's buffer holds the message unless the sender gave up or left. Then it
 * says so before it reuses the buffer, so this checks after the copy. */
static bool fetch(const lks_group *group, lksi_transfer *transfer, const lksi_frame *announced) {
    bool is_copied = announced->is_placed
                         ? copy_placed(group, transfer, announced->address)
                         : lksi_try_peek(group, transfer->peer, announced->address, transfer->data, transfer->nbytes);
    atomic_thread_fence(memory_order_acquire); /* as in lksi_control_is_aborted_after_reading, for `presence` */
    int seat = group->seat_of[transfer->peer];
    return is_copied && atomic_load(&group->control->seats[seat].presence.value) != LKSI_LEFT;
}

/* Begins a turn of the trial that decides between fetching and streaming. After the receiver has read the sender's
 * buffer, the sender's next writes to it are slow. If its user refills the buffer for the next message, two copies
 * through a stream take less time than one fetch. Otherwise they take more. So both ways are tried, but only if both
 * ranks are in blocking calls: streaming needs calls on the group to progress. NULL: no trial, fetch. */
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
    return lksi_error(LKS_ERR_FORMAT, "rank %d got an invalid frame from rank %d: kind %d, id %llu, %llu bytes",
                      lksi_world_rank(group, group->rank), lksi_world_rank(group, from), head->kind,
                      (unsigned long long)head->id, (unsigned long long)head->nbytes);
}

static lksi_transfer *find(lks_group *group, lksi_transfer_state state, int peer, uint64_t id) {
    lksi_transfer *each = group->messages->first;
    while (each != NULL && (lksi_transfer_state_of(each) != state || each->peer != peer || each->id != id))
        each = each->after;
    return id == 0 ? NULL : each;
}

/* awaits_answer is checked because an answer to a frame that has not been written yet would finish or requeue a
 * transfer whose frame is still in the queue. */
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

/* Whether the frame completed a transfer: fewer are pending than before. */
static bool end_frame(lks_group *group, lksi_pair *pair, int n_pending) {
    lksi_transfer *transfer = pair->transfer;
    if (pair->head.kind == LKSI_FRAME_EAGER)
        lksi_match_whole(group, pair);
    else if (transfer != NULL && transfer->n_done == transfer->nbytes)
        lksi_transfer_finish(group, transfer);
    pair->head = (lksi_frame){0}; /* a short head does not overwrite the rest */
    pair->n_head = 0;
    pair->transfer = NULL, pair->arrival = NULL;
    return group->messages->n_pending < n_pending;
}

/* The length of the head depends on its kind, which is in the short part. */
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

/* Stops after the first frame that completes a transfer. The caller mostly waits for exactly that transfer. Looking
 * further would fetch one more line from the other core, and would store messages for which the next call has a buffer.
 * MOST_FRAMES bounds the loop, so that a sender that never pauses does not keep the reader from its deadline. */
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
