/* Matches messages with receives: per source and tag, the oldest receive takes the oldest message.
 *
 *     a message arrives    it goes to the first receive posted for its source (or any) and tag, otherwise it is kept
 *     a receive is posted  it takes the first message of its source (or any) and tag, otherwise it stays posted
 *
 * A message is matched when its first frame arrives. So messages match in the order of the sends, whatever their size.
 */
#include "comm/copy.h"
#include "comm/transport/segment/message.h"

static lks_status check(const lks_group *group, const lksi_transfer *receive, int from, const lksi_frame *head) {
    if (head->type == (uint8_t)receive->type && head->nbytes <= receive->nbytes) return LKS_OK;
    size_t each = lksi_type_nbytes((lks_type)head->type);
    return lksi_error(LKS_ERR_MISMATCH, "rank %d sent %zu %s with tag %d, rank %d receives up to %zu %s",
                      lksi_world_rank(group, from), (size_t)head->nbytes / each, lks_type_name((lks_type)head->type),
                      head->tag, lksi_world_rank(group, group->rank), receive->nbytes / lksi_type_nbytes(receive->type),
                      lks_type_name(receive->type));
}

/* Assigns the message to the receive. */
static lks_status bind(const lks_group *group, lksi_transfer *receive, int from, const lksi_frame *head) {
    LKS_TRY(check(group, receive, from, head));
    lksi_transfer_set(receive, LKSI_TRANSFER_MATCHED);
    receive->peer = from;
    receive->nbytes = (size_t)head->nbytes;
    receive->id = head->id;
    return LKS_OK;
}

/* --- a message arrives --- */

static lksi_transfer *find_posted(const lks_group *group, int from, int tag) {
    lksi_transfer *each = group->messages->first;
    for (; each != NULL; each = each->after)
        if (lksi_transfer_state_of(each) == LKSI_TRANSFER_POSTED && each->tag == tag &&
            (each->peer == from || each->peer == LKS_ANY_SOURCE))
            return each;
    return NULL;
}

/* Appends an arrival with `nbytes` of room behind it. */
static lks_status add_arrival(lks_group *group, int from, const lksi_frame *head, size_t nbytes,
                              lksi_arrival **arrival) {
    lksi_messages *messages = group->messages;
    lksi_arrival *added = lksi_alloc(sizeof *added + nbytes);
    if (added == NULL) return LKS_ERR_MEMORY;
    *added = (lksi_arrival){.from = from, .head = *head};
    if (messages->arrivals == NULL) messages->arrivals_end = &messages->arrivals;
    *messages->arrivals_end = added;
    messages->arrivals_end = &added->next;
    *arrival = added;
    return LKS_OK;
}

void lksi_match_describe_rest(const lks_group *group, char *text, size_t text_nbytes) {
    const lksi_arrival *each = group->messages != NULL ? group->messages->arrivals : NULL;
    if (each != NULL)
        lksi_append(text, text_nbytes, "; a message from rank %d with tag %d has arrived without a matching receive",
                    lksi_world_rank(group, each->from), each->head.tag);
}

lks_status lksi_match_eager(lks_group *group, int from) {
    lksi_pair *pair = &group->messages->pairs[from];
    lksi_transfer *receive = find_posted(group, from, pair->head.tag);
    if (receive != NULL) {
        LKS_TRY(bind(group, receive, from, &pair->head));
        pair->transfer = receive;
        pair->target = receive->data;
    } else {
        LKS_TRY(add_arrival(group, from, &pair->head, (size_t)pair->head.nbytes, &pair->arrival));
        pair->target = pair->arrival->data = (unsigned char *)(pair->arrival + 1);
    }
    pair->n_left = (size_t)pair->head.nbytes;
    return LKS_OK;
}

lks_status lksi_match_announced(lks_group *group, int from) {
    const lksi_frame *head = &group->messages->pairs[from].head;
    lksi_transfer *receive = find_posted(group, from, head->tag);
    lksi_arrival *announced;
    if (receive == NULL) return add_arrival(group, from, head, 0, &announced);
    LKS_TRY(bind(group, receive, from, head));
    return lksi_frames_answer(group, receive, head);
}

static void deliver(lks_group *group, lksi_transfer *receive, const unsigned char *data) {
    lksi_copy(receive->data, data, receive->nbytes);
    receive->n_done = receive->nbytes;
    lksi_transfer_finish(group, receive);
}

void lksi_match_whole(lks_group *group, lksi_pair *pair) {
    lksi_arrival *arrival = pair->arrival;
    int from = (int)(pair - group->messages->pairs);
    if (arrival == NULL) {
        lksi_transfer_finish(group, pair->transfer);
        lksi_frames_acknowledge(group, from, (size_t)pair->head.nbytes);
        return;
    }
    arrival->is_whole = true;
    if (arrival->taker == NULL) return;
    deliver(group, arrival->taker, arrival->data);
    lksi_frames_acknowledge(group, from, (size_t)pair->head.nbytes);
    lksi_free(arrival);
}

/* --- a receive is posted --- */

/* The link to the first message that matches, or to the end of the list. */
static lksi_arrival **find_arrival(lksi_messages *messages, const lksi_transfer *receive) {
    lksi_arrival **link = &messages->arrivals;
    while (*link != NULL &&
           ((*link)->head.tag != receive->tag || ((*link)->from != receive->peer && receive->peer != LKS_ANY_SOURCE)))
        link = &(*link)->next;
    return link;
}

static void unlink_arrival(lksi_messages *messages, lksi_arrival **link) {
    lksi_arrival *next = (*link)->next;
    if (next == NULL) messages->arrivals_end = link;
    *link = next;
}

/* Receives a message of this rank to itself. Its data was copied, or is still in the buffer of its send. */
static void take_own(lks_group *group, lksi_transfer *receive, const lksi_arrival *arrival) {
    lksi_transfer *send = arrival->own;
    if (send == NULL) {
        group->messages->n_own_kept_nbytes -= (size_t)arrival->head.nbytes;
        deliver(group, receive, arrival->data);
        return;
    }
    deliver(group, receive, send->data);
    send->n_done = send->nbytes;
    lksi_transfer_finish(group, send);
}

/* A message that does not fit stays in the list, because its data may still be arriving. It is freed when the error has
 * ended all transfers. */
lks_status lksi_match_receive(lks_group *group, lksi_transfer *receive) {
    lksi_arrival **link = find_arrival(group->messages, receive), *arrival = *link;
    if (arrival == NULL) return LKS_OK;
    LKS_TRY(bind(group, receive, arrival->from, &arrival->head));
    unlink_arrival(group->messages, link);
    lks_status status = LKS_OK;
    if (arrival->from == group->rank) {
        take_own(group, receive, arrival);
    } else if (arrival->data == NULL) {
        status = lksi_frames_answer(group, receive, &arrival->head);
    } else if (!arrival->is_whole) {
        arrival->taker = receive;
        return LKS_OK;
    } else {
        deliver(group, receive, arrival->data);
        lksi_frames_acknowledge(group, arrival->from, (size_t)arrival->head.nbytes);
        status = lksi_frames_flush(group, arrival->from);
    }
    lksi_free(arrival);
    return status;
}

/* --- messages of this rank to itself --- */

/* A small message is copied if there is room, which completes its send. */
lks_status lksi_match_own(lks_group *group, lksi_transfer *send) {
    lksi_frame head = {.nbytes = send->nbytes, .tag = send->tag, .type = (uint8_t)send->type};
    lksi_transfer *receive = find_posted(group, group->rank, send->tag);
    if (receive != NULL) {
        LKS_TRY(bind(group, receive, group->rank, &head));
        deliver(group, receive, send->data);
        send->n_done = send->nbytes;
        lksi_transfer_finish(group, send);
        return LKS_OK;
    }
    lksi_arrival *arrival;
    LKS_TRY(add_arrival(group, group->rank, &head, 0, &arrival));
    arrival->own = send;
    bool has_room = group->messages->n_own_kept_nbytes + send->nbytes <= LKSI_UNEXPECTED_NBYTES;
    return send->nbytes <= LKSI_EAGER_NBYTES && has_room ? lksi_keep_own(group, send) : LKS_OK;
}

lks_status lksi_keep_own(lks_group *group, lksi_transfer *send) {
    lksi_messages *messages = group->messages;
    lksi_arrival **link = &messages->arrivals, *kept;
    while ((*link)->own != send) link = &(*link)->next;
    if (messages->n_own_kept_nbytes + send->nbytes > LKSI_UNEXPECTED_NBYTES)
        return lksi_error(LKS_ERR_MEMORY,
                          "rank %d holds over %d MiB of messages that it has not received, the last from "
                          "rank %d with tag %d",
                          lksi_world_rank(group, group->rank), LKSI_UNEXPECTED_NBYTES >> 20,
                          lksi_world_rank(group, group->rank), send->tag);
    kept = lksi_alloc(sizeof *kept + send->nbytes);
    if (kept == NULL) return LKS_ERR_MEMORY;
    *kept = **link;
    kept->own = NULL;
    kept->data = (unsigned char *)(kept + 1);
    lksi_copy(kept->data, send->data, send->nbytes);
    messages->n_own_kept_nbytes += send->nbytes;
    if (messages->arrivals_end == &(*link)->next) messages->arrivals_end = &kept->next;
    lksi_free(*link);
    *link = kept;
    send->n_done = send->nbytes;
    lksi_transfer_finish(group, send);
    return LKS_OK;
}

void lksi_arrivals_free(lksi_messages *messages) {
    while (messages->arrivals != NULL) {
        lksi_arrival *gone = messages->arrivals;
        messages->arrivals = gone->next;
        lksi_free(gone);
    }
}
