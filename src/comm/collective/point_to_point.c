/* The public point-to-point functions. They check the arguments, count the call and pass it to the engine in
 * segment/message.c. */
#include "comm/work.h"

/* For a receive, `peer` may be LKS_ANY_SOURCE. */
static lks_status check_message(const lks_group *group, const char *name, const void *data, size_t count, lks_type type,
                                int peer, int tag, bool is_send) {
    size_t each = lksi_type_nbytes(type);
    LKS_TRY(lksi_group_check(group, name));
    if (each == 0) return lksi_error(LKS_ERR_ARGUMENT, "%s: %d is no type", name, (int)type);
    if ((peer < 0 || peer >= group->size) && (is_send || peer != LKS_ANY_SOURCE))
        return lksi_error(LKS_ERR_ARGUMENT, "%s: rank %d is outside 0..%d, the ranks of this group", name, peer,
                          group->size - 1);
    if (tag < 0) return lksi_error(LKS_ERR_ARGUMENT, "%s: tag %d is negative", name, tag);
    if (count > SIZE_MAX / 2 / each)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a count of %zu is more than memory can hold", name, count);
    if (data == NULL && count > 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `data` is NULL with a count of %zu", name, count);
    return LKS_OK;
}

/* Does not set error_text and started_ns. */
static void fill_in(lks_group *group, lksi_transfer *transfer, const char *name, const void *data, size_t count,
                    lks_type type, int peer, int tag) {
    transfer->name = name;
    transfer->sequence = ++group->counters.n_point_to_point;
    transfer->data = (unsigned char *)(uintptr_t)data;
    transfer->nbytes = count * lksi_type_nbytes(type);
    transfer->type = type, transfer->peer = peer, transfer->tag = tag;
}

static bool is_to_self(const lks_group *group, const lksi_transfer *transfer) {
    return transfer->peer == group->rank && !lksi_transfer_is_done(transfer);
}

lks_status lks_send(lks_group *group, const void *data, size_t count, lks_type type, int to, int tag) {
    lksi_transfer send;
    LKS_TRY(check_message(group, "send", data, count, type, to, tag, true));
    lksi_transfer_clear(&send);
    fill_in(group, &send, "send", data, count, type, to, tag);
    if (to != group->rank) return lksi_transfer_perform(group, &send, true);
    LKS_TRY(lksi_transfer_start(group, &send, true));
    return lksi_transfer_let_go(group, &send);
}

lks_status lks_recv(lks_group *group, void *data, size_t count, lks_type type, int from, int tag,
                    lks_received *received) {
    lksi_transfer receive;
    LKS_TRY(check_message(group, "recv", data, count, type, from, tag, false));
    lksi_transfer_clear(&receive);
    fill_in(group, &receive, "recv", data, count, type, from, tag);
    receive.received = received;
    return lksi_transfer_perform(group, &receive, false);
}

lks_status lks_sendrecv(lks_group *group, const void *sent, size_t sent_count, int to, int sent_tag, void *data,
                        size_t count, int from, int tag, lks_type type, lks_received *received) {
    lksi_transfer send, receive;
    LKS_TRY(check_message(group, "sendrecv", sent, sent_count, type, to, sent_tag, true));
    LKS_TRY(check_message(group, "sendrecv", data, count, type, from, tag, false));
    uintptr_t out = (uintptr_t)sent, in = (uintptr_t)data, each = lksi_type_nbytes(type);
    if (sent_count > 0 && count > 0 && out < in + count * each && in < out + sent_count * each)
        return lksi_error(LKS_ERR_ARGUMENT, "sendrecv: `sent` and `data` overlap");
    lksi_transfer_clear(&receive);
    lksi_transfer_clear(&send);
    fill_in(group, &receive, "sendrecv", data, count, type, from, tag);
    receive.received = received;
    fill_in(group, &send, "sendrecv", sent, sent_count, type, to, sent_tag);
    send.sequence = receive.sequence;
    send.is_blocking = receive.is_blocking = true;
    group->counters.n_point_to_point--; /* it counts as one call */
    LKS_TRY(lksi_transfer_start(group, &receive, false));
    LKS_TRY(lksi_transfer_start(group, &send, true));
    if (is_to_self(group, &send)) LKS_TRY(lksi_transfer_let_go(group, &send));
    LKS_TRY(lksi_transfer_wait(group, &receive));
    send.started_ns = group->user_progress.started_ns; /* both share one deadline */
    return lksi_transfer_wait(group, &send);
}

static lks_status start_work(lks_group *group, lks_work *created, lksi_transfer *transfer, bool is_send,
                             lks_work **work) {
    lks_status status = lksi_transfer_start(group, transfer, is_send);
    if (status == LKS_OK)
        *work = created;
    else
        lksi_work_discard(created);
    return status;
}

lks_status lks_isend(lks_group *group, const void *data, size_t count, lks_type type, int to, int tag,
                     lks_work **work) {
    lks_work *created;
    lksi_transfer *send;
    if (work == NULL) return lksi_error(LKS_ERR_ARGUMENT, "isend: `work` is NULL");
    LKS_TRY(check_message(group, "isend", data, count, type, to, tag, true));
    LKS_TRY(lksi_work_of_transfer(group, &created, &send));
    fill_in(group, send, "isend", data, count, type, to, tag);
    return start_work(group, created, send, true, work);
}

lks_status lks_irecv(lks_group *group, void *data, size_t count, lks_type type, int from, int tag,
                     lks_received *received, lks_work **work) {
    lks_work *created;
    lksi_transfer *receive;
    if (work == NULL) return lksi_error(LKS_ERR_ARGUMENT, "irecv: `work` is NULL");
    LKS_TRY(check_message(group, "irecv", data, count, type, from, tag, false));
    LKS_TRY(lksi_work_of_transfer(group, &created, &receive));
    fill_in(group, receive, "irecv", data, count, type, from, tag);
    receive->received = received;
    return start_work(group, created, receive, false, work);
}
