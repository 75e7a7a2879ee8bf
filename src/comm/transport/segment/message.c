/* Point-to-point messages: sends and receives of users, from start to completion.
 *
 *     lks_send  = start + wait          lks_isend  = start in a work          lks_sendrecv = start both + wait for both
 *     lks_recv  = start + wait          lks_irecv  = start in a work
 *
 * No background thread exists. Every call on the group progresses all of its transfers, so a rank that waits for one
 * message still answers for the others. While a thread waits, it also progresses the transfers of its other groups. The
 * first error ends all transfers of the group.
 */
#include "comm/transport/segment/message.h"
#include "base/timeline.h"
#include "comm/transport/segment/stream.h"

enum { MOST_PASSES = 64 }; /* over all pairs, until the next check for an abort or the deadline */

/* --- the group's messages --- */

static void destroy(lksi_messages *messages) {
    lksi_free(messages->pairs);
    lksi_free(messages->interests);
    lksi_free(messages);
}

lks_status lksi_messages_open(lks_group *group) {
    if (group->messages != NULL) return LKS_OK;
    LKS_TRY(lksi_streams_open(group, LKSI_CONTEXT_USER));
    size_t n = (size_t)group->size;
    lksi_messages *opened = lksi_alloc(sizeof *opened);
    if (opened == NULL) return LKS_ERR_MEMORY;
    opened->pairs = lksi_alloc_array(n, sizeof *opened->pairs);
    opened->interests = lksi_alloc_array(2 * n, sizeof *opened->interests);
    if (opened->pairs == NULL || opened->interests == NULL) {
        destroy(opened);
        return LKS_ERR_MEMORY;
    }
    size_t share = LKSI_UNEXPECTED_NBYTES / n;
    opened->credit_nbytes = share < LKSI_CREDIT_NBYTES ? share : LKSI_CREDIT_NBYTES;
    group->messages = opened;
    return LKS_OK;
}

static void link_in(lksi_messages *messages, lksi_transfer *transfer) {
    transfer->before = messages->last;
    transfer->after = NULL;
    *(messages->last != NULL ? &messages->last->after : &messages->first) = transfer;
    messages->last = transfer;
    messages->n_pending++;
}

static void link_out(lksi_messages *messages, lksi_transfer *transfer) {
    *(transfer->before != NULL ? &transfer->before->after : &messages->first) = transfer->after;
    *(transfer->after != NULL ? &transfer->after->before : &messages->last) = transfer->before;
    messages->n_pending--;
}

void lksi_transfer_finish(lks_group *group, lksi_transfer *transfer) {
    link_out(group->messages, transfer);
    if (transfer->fetch != NULL) lksi_call_trial_end(transfer->fetch);
    if (transfer->received != NULL)
        *transfer->received = (lks_received){
            .from = transfer->peer, .tag = transfer->tag, .count = transfer->nbytes / lksi_type_nbytes(transfer->type)};
    lksi_transfer_set(transfer, LKSI_TRANSFER_DONE);
}

/* Ends all transfers. Afterwards nothing may point to a transfer, because its caller is about to return. */
static void end_all(lks_group *group, lks_status status) {
    lksi_messages *messages = group->messages;
    while (messages->first != NULL) {
        lksi_transfer *each = messages->first;
        link_out(messages, each);
        each->status = status;
        if (each->error_text != NULL) snprintf(each->error_text, LKSI_ABORT_TEXT_NBYTES, "%s", lksi_error_text());
        lksi_transfer_set(each, LKSI_TRANSFER_DONE);
    }
    for (int rank = 0; rank < group->size; rank++) {
        lksi_pair *pair = &messages->pairs[rank];
        if (pair->arrival != NULL && pair->arrival->taker != NULL) lksi_free(pair->arrival);
        *pair = (lksi_pair){0};
    }
    lksi_arrivals_free(messages);
}

/* Marks the group dead and ends all transfers. Returns the first error of the group. */
static lks_status fail(lks_group *group, lks_status status) {
    (void)lksi_group_fail(group, status);
    lks_status first = lksi_group_refuse_dead(group);
    if (group->messages != NULL) end_all(group, first == LKS_OK ? status : first);
    return first == LKS_OK ? status : first;
}

void lksi_messages_close(lks_group *group) {
    if (group->messages != NULL) {
        lks_status status = LKS_OK; /* no transfer is pending */
        if (group->messages->first != NULL)
            status = lksi_error(LKS_ERR_STATE, "the group was destroyed before the message had gone through");
        end_all(group, status);
        destroy(group->messages);
        group->messages = NULL;
    }
    lksi_streams_close(group);
}

/* --- progress --- */

static bool is_wanted(const lks_group *group, int rank) {
    const lksi_transfer *each = group->messages->first;
    while (each != NULL && each->peer != rank) each = each->after;
    return each != NULL;
}

/* A rank that has left is an error only if a transfer needs it. */
static lks_status move_one(lks_group *group, int rank) {
    lksi_pair *pair = &group->messages->pairs[rank];
    if (pair->has_ended && !is_wanted(group, rank)) return LKS_OK;
    lks_status status = lksi_frames_take(group, rank);
    pair->has_ended = status == LKS_ERR_PEER;
    if (status == LKS_OK && pair->queue != NULL) status = lksi_frames_flush(group, rank);
    return status == LKS_ERR_PEER && !is_wanted(group, rank) ? LKS_OK : status;
}

static lks_status move_all(lks_group *group) {
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank) LKS_TRY(move_one(group, rank));
    return LKS_OK;
}

void lksi_messages_progress(lks_group *group) {
    lks_status status = lksi_group_refuse_dead(group);
    if (status == LKS_OK) status = move_all(group);
    if (status != LKS_OK) (void)fail(group, status);
}

/* Progresses until nothing moves or `awaited` (NULL: none) is done. One pass takes one message per rank. The number of
 * passes is bounded, because other ranks may send without end. */
static void progress_while_moving(lks_group *group, const lksi_transfer *awaited) {
    for (int i = 0; i < MOST_PASSES; i++) {
        uint64_t n_moves = group->messages->n_moves;
        lksi_messages_progress(group);
        if (group->messages->n_moves == n_moves || (awaited != NULL && lksi_transfer_is_done(awaited))) return;
    }
}

bool lksi_messages_move_on(lks_group *group) {
    if (group->messages == NULL || group->messages->n_pending == 0) return false;
    progress_while_moving(group, NULL);
    return true;
}

/* --- one transfer --- */

/* The place of the transfer's buffer in symmetric memory, if the receiver should copy from there. Otherwise 0. */
static uint64_t place_of(lks_group *group, const lksi_transfer *transfer) {
    bool may_be_copied = transfer->nbytes > LKSI_EAGER_PLACED_NBYTES && group->seat_of[transfer->peer] >= 0;
    return may_be_copied ? lksi_place_of(group, transfer->data, transfer->nbytes) : 0;
}

static lks_status start_send(lks_group *group, lksi_transfer *transfer) {
    lksi_messages *messages = group->messages;
    lksi_transfer_set(transfer, LKSI_TRANSFER_SENDING);
    if (transfer->peer == group->rank) return lksi_match_own(group, transfer);
    lksi_pair *pair = &messages->pairs[transfer->peer];
    size_t cost = lksi_eager_cost(transfer->nbytes);
    uint64_t place = place_of(group, transfer);
    bool is_eager =
        place == 0 && transfer->nbytes <= LKSI_EAGER_NBYTES && pair->n_unacknowledged + cost <= messages->credit_nbytes;
    transfer->out = (lksi_outgoing){.head = {.nbytes = transfer->nbytes,
                                             .tag = transfer->tag,
                                             .type = (uint8_t)transfer->type,
                                             .kind = is_eager ? LKSI_FRAME_EAGER : LKSI_FRAME_ANNOUNCED},
                                    .transfer = transfer};
    if (is_eager) {
        pair->n_unacknowledged += cost;
        if (transfer->nbytes > 0) transfer->out.data = transfer->data;
    } else {
        transfer->id = transfer->out.head.id = ++messages->n_ids;
        transfer->out.head.is_placed = place != 0;
        transfer->out.head.is_blocking = transfer->is_blocking;
        transfer->out.head.address = place != 0 ? place : (uint64_t)(uintptr_t)transfer->data;
    }
    group->counters.n_user_messages++;
    group->counters.n_user_message_nbytes += transfer->nbytes;
    lksi_frame_queue(group, transfer->peer, &transfer->out);
    return lksi_frames_flush(group, transfer->peer);
}

/* Takes a message that has arrived already before it reads the stream, because that message is older. */
static lks_status start_receive(lks_group *group, lksi_transfer *transfer) {
    lksi_transfer_set(transfer, LKSI_TRANSFER_POSTED);
    LKS_TRY(lksi_match_receive(group, transfer));
    if (lksi_transfer_state_of(transfer) != LKSI_TRANSFER_POSTED || transfer->peer < 0 || transfer->peer == group->rank)
        return LKS_OK;
    return move_one(group, transfer->peer);
}

static lks_status begin(lks_group *group, const lksi_transfer *transfer) {
    group->user_progress = (lksi_progress){.name = transfer->name,
                                           .sequence = transfer->sequence,
                                           .started_ns = transfer->started_ns,
                                           .has_tag = true,
                                           .tag = transfer->tag,
                                           .done_nbytes = transfer->n_done,
                                           .seen_nbytes = transfer->seen_nbytes,
                                           .moved_ns = transfer->moved_ns,
                                           .is_stall_reported = transfer->is_stall_reported};
    return lksi_start(group, LKSI_CONTEXT_USER);
}

static lks_status start(lks_group *group, lksi_transfer *transfer, bool is_send) {
    lks_status status = begin(group, transfer);
    if (status == LKS_OK) status = lksi_messages_open(group);
    if (status != LKS_OK) return fail(group, status);
    link_in(group->messages, transfer);
    status = is_send ? start_send(group, transfer) : start_receive(group, transfer);
    if (status != LKS_OK) (void)fail(group, status);
    return transfer->status; /* a transfer that was done before the error keeps its status */
}

lks_status lksi_transfer_start(lks_group *group, lksi_transfer *transfer, bool is_send) {
    lksi_messenger_enter(group, transfer->name);
    lks_status status = start(group, transfer, is_send);
    lksi_messenger_leave(group);
    return status;
}

/* --- waiting --- */

static int list_interests(lks_group *group) {
    lksi_messages *messages = group->messages;
    int n = 0;
    for (int rank = 0; rank < group->size; rank++) {
        if (rank == group->rank || messages->pairs[rank].has_ended) continue;
        messages->interests[n++] = (lksi_interest){rank, false};
        if (messages->pairs[rank].queue != NULL) messages->interests[n++] = (lksi_interest){rank, true};
    }
    return n;
}

/* The rank that the transfer waits for. For any source it is -1, or some rank if all others have left: the wait for
 * that rank then fails. */
static int awaited_rank(const lks_group *group, const lksi_transfer *transfer) {
    if (transfer->peer != LKS_ANY_SOURCE) return transfer->peer;
    for (int rank = 0; rank < group->size; rank++) {
        int seat = group->seat_of[rank];
        if (rank == group->rank || group->messages->pairs[rank].has_ended) continue;
        if (seat < 0 || atomic_load(&group->control->seats[seat].presence.value) != LKSI_LEFT) return -1;
    }
    return group->size > 1 ? (group->rank + 1) % group->size : -1;
}

/* Checks for an abort, a rank that left and the deadline. The progress is kept in the transfer: lks_work_test begins
 * anew each time, and a stall must be reported only once. */
static lks_status look_once(lks_group *group, lksi_transfer *transfer) {
    int awaited = awaited_rank(group, transfer);
    int64_t left_ns;
    lksi_progress *progress = &group->user_progress;
    progress->done_nbytes = transfer->n_done;
    lks_status status = lksi_look(group, LKSI_CONTEXT_USER, &awaited, awaited < 0 ? 0 : 1, &left_ns);
    transfer->seen_nbytes = progress->seen_nbytes, transfer->moved_ns = progress->moved_ns;
    transfer->is_stall_reported = progress->is_stall_reported;
    if (status == LKS_OK) lksi_activity_await(group, LKSI_CONTEXT_USER, LKSI_AWAKE);
    return status;
}

/* A message of a rank to itself matches as soon as both ends have begun. A waiting rank begins nothing, so the wait
 * would never end. */
static lks_status refuse_self(const lks_group *group, const lksi_transfer *transfer) {
    const char *hint = group->size == 1 ? " (the group has no other rank: was the program started by a launcher?)" : "";
    if (transfer->peer != group->rank && group->size > 1) return LKS_OK;
    return lksi_error(LKS_ERR_STATE,
                      "%s, tag %d: rank %d waits for itself: it has not started the matching send or receive%s",
                      transfer->name, transfer->tag, lksi_world_rank(group, group->rank), hint);
}

static lks_status wait_once(lks_group *group, const lksi_transfer *transfer, lksi_pauses *pauses) {
    LKS_TRY(refuse_self(group, transfer));
    int awaited = awaited_rank(group, transfer);
    group->user_progress.done_nbytes = transfer->n_done;
    if (awaited >= 0 && group->messages->pairs[awaited].has_ended)
        LKS_TRY(lksi_frames_take(group, awaited)); /* returns the error with which the stream ended */
    return lksi_streams_wait(group, LKSI_CONTEXT_USER, group->messages->interests, list_interests(group), &awaited,
                             awaited < 0 ? 0 : 1, pauses);
}

/* A wait has ended with an error. Data that arrived before still counts: if it moved anything, the wait continues. A
 * timeout is final, because other ranks may send without end. */
static void end_wait(lks_group *group, const lksi_transfer *transfer, lks_status status) {
    char reason[LKSI_ERROR_TEXT_NBYTES];
    uint64_t n_moves = group->messages->n_moves;
    lksi_error_keep(reason);
    if (group->status == LKS_OK) lksi_messages_progress(group);
    if (lksi_transfer_is_done(transfer)) return;
    if (group->messages->n_moves != n_moves && status != LKS_ERR_TIMEOUT) return;
    lksi_error_restore(reason);
    (void)fail(group, status);
}

/* While data moves the loop does not sleep. It checks for an abort and the deadline only every MOST_PASSES passes,
 * because the check takes longer than a small message. */
static lks_status wait_until_done(lks_group *group, lksi_transfer *transfer) {
    lksi_pauses pauses = {0};
    for (int n_moved = 0; !lksi_transfer_is_done(transfer);) {
        uint64_t n_moves = group->messages->n_moves;
        lks_status status = LKS_OK;
        lksi_messages_progress(group);
        if (lksi_transfer_is_done(transfer)) break;
        if (group->messages->n_moves == n_moves) {
            status = wait_once(group, transfer, &pauses);
        } else {
            pauses = (lksi_pauses){0};
            if (++n_moved % MOST_PASSES == 0) status = look_once(group, transfer);
        }
        if (status != LKS_OK) end_wait(group, transfer, status);
    }
    return transfer->status;
}

static void add_to_timeline(const lksi_transfer *transfer, int64_t began_ns) {
    if (began_ns != 0)
        lksi_timeline_add(began_ns, "communication", transfer->name, "\"bytes\":%zu,\"peer\":%d,\"tag\":%d",
                          transfer->nbytes, transfer->peer, transfer->tag);
}

lks_status lksi_transfer_wait(lks_group *group, lksi_transfer *transfer) {
    if (lksi_transfer_is_done(transfer)) return transfer->status; /* the group may be destroyed already */
    int64_t section_ns = lksi_timeline_begin();
    lksi_messenger_enter(group, transfer->name);
    lks_status status = begin(group, transfer);
    status = status == LKS_OK ? wait_until_done(group, transfer) : fail(group, status);
    lksi_messenger_leave(group);
    add_to_timeline(transfer, section_ns);
    return status;
}

lks_status lksi_transfer_perform(lks_group *group, lksi_transfer *transfer, bool is_send) {
    int64_t section_ns = lksi_timeline_begin();
    transfer->is_blocking = true;
    lksi_messenger_enter(group, transfer->name);
    lks_status status = start(group, transfer, is_send);
    if (status == LKS_OK) status = wait_until_done(group, transfer);
    lksi_messenger_leave(group);
    add_to_timeline(transfer, section_ns);
    return status;
}

static void test(lks_group *group, lksi_transfer *transfer) {
    lks_status status = begin(group, transfer);
    if (status != LKS_OK) {
        (void)fail(group, status);
        return;
    }
    progress_while_moving(group, transfer);
    if (lksi_transfer_is_done(transfer)) return;
    status = look_once(group, transfer);
    if (status != LKS_OK) end_wait(group, transfer, status);
}

void lksi_transfer_test(lks_group *group, lksi_transfer *transfer) {
    if (lksi_transfer_is_done(transfer)) return;
    lksi_messenger_enter(group, transfer->name);
    test(group, transfer);
    if (!lksi_transfer_is_done(transfer)) (void)lksi_poke(group, LKSI_CONTEXT_USER);
    lksi_messenger_leave(group);
}

lks_status lksi_transfer_let_go(lks_group *group, lksi_transfer *transfer) {
    if (lksi_transfer_is_done(transfer)) return LKS_OK;
    lksi_messenger_enter(group, transfer->name);
    lks_status status = lksi_keep_own(group, transfer);
    if (status != LKS_OK) status = fail(group, status);
    lksi_messenger_leave(group);
    return status;
}
