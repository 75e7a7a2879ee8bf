/* send and recv as users call them: refuse what is wrong, then hand over to the transport. */
#include "comm/comm_internal.h"

static lks_status message_of(const lks_group *group, const char *name, void *data, size_t count, lks_type type,
                             int peer, int tag, lksi_message *message) {
    size_t each = lks_type_nbytes(type);
    if (each == 0) return lksi_error(LKS_ERR_ARGUMENT, "%s: %d is no type", name, (int)type);
    if (peer < 0 || peer >= group->size)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: rank %d is outside 0..%d", name, peer, group->size - 1);
    if (tag < 0) return lksi_error(LKS_ERR_ARGUMENT, "%s: tag %d is negative", name, tag);
    if (count > SIZE_MAX / 2 / each)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: a count of %zu is more than memory can hold", name, count);
    if (data == NULL && count > 0)
        return lksi_error(LKS_ERR_ARGUMENT, "%s: `data` is NULL with a count of %zu", name, count);
    *message = (lksi_message){
        .context = LKSI_CONTEXT_USER, .peer = peer, .tag = tag, .type = type, .data = data, .nbytes = count * each};
    return LKS_OK;
}

lks_status lks_send(lks_group *group, const void *data, size_t count, lks_type type, int to, int tag) {
    lksi_message message;
    LKS_TRY(message_of(group, "send", (void *)(uintptr_t)data, count, type, to, tag, &message));
    LKS_TRY(lksi_begin(group, "send", ++group->counters.n_point_to_point, 0));
    lks_status status = group->transport->send(group, &message);
    return status == LKS_OK ? LKS_OK : lksi_group_fail(group, status);
}

lks_status lks_recv(lks_group *group, void *data, size_t count, lks_type type, int from, int tag,
                    lks_received *received) {
    lksi_message message;
    LKS_TRY(message_of(group, "recv", data, count, type, from, tag, &message));
    LKS_TRY(lksi_begin(group, "recv", ++group->counters.n_point_to_point, 0));
    lks_status status = group->transport->receive(group, &message);
    if (status != LKS_OK) return lksi_group_fail(group, status);
    if (received != NULL)
        *received = (lks_received){.from = from, .tag = tag, .count = message.nbytes / lks_type_nbytes(type)};
    return LKS_OK;
}
