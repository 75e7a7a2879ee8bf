/* How ranks that run different calls find out, where no exchange compared them before.
 *
 *     rank 0: gather to 0      waits for rank 1 ── notice: "I am in gather" ──> rank 1
 *     rank 1: broadcast from 0 waits for rank 0 ── notice: "I am in broadcast" ──> rank 0
 *
 * Mostly the first message shows the disagreement, because it carries its call. Where both wait for each other none is
 * sent; so a step that has waited long tells whom it waits for, and listens to all. A notice of an earlier call is
 * stale and one of a later call is kept: who hears it may get there yet.
 */
#include "comm/transport/segment/step.h"
#include "comm/transport/segment/stream.h"

#include <string.h>

enum { HAS_COUNT = 1, HAS_TYPE = 2, IS_REDUCTION = 4, IS_ROOTED = 8, HAS_COUNTS = 16 };

const lksi_step_header *lksi_step_own(lks_group *group, const lksi_call *call) {
    const lksi_operation *operation = call->operation;
    lksi_step_header *header = &group->steps->own;
    if (header->fingerprint == call->fingerprint && header->sequence == call->sequence) return header;
    *header = (lksi_step_header){.fingerprint = call->fingerprint,
                                 .sequence = call->sequence,
                                 .count = call->count,
                                 .root = call->root,
                                 .type = (uint8_t)call->type,
                                 .op = (uint8_t)call->op};
    header->flags = (uint8_t)((operation->has_count ? HAS_COUNT : 0) | (operation->has_type ? HAS_TYPE : 0) |
                              (operation->is_reduction ? IS_REDUCTION : 0) | (operation->is_rooted ? IS_ROOTED : 0) |
                              (operation->has_counts ? HAS_COUNTS : 0));
    snprintf(header->operation, sizeof header->operation, "%s", operation->name);
    if (call->algorithm != NULL && call->algorithm->name != NULL) /* an exchange's one algorithm has no name */
        snprintf(header->algorithm, sizeof header->algorithm, "%s", call->algorithm->name);
    return header;
}

static void describe_header(const lksi_step_header *header, char *text, size_t text_nbytes) {
    char operation_name[sizeof header->operation + 1] = "", algorithm_name[sizeof header->algorithm + 1] = "";
    memcpy(operation_name, header->operation, sizeof header->operation);
    memcpy(algorithm_name, header->algorithm, sizeof header->algorithm);
    lksi_operation operation = {.name = operation_name,
                                .has_count = (header->flags & HAS_COUNT) != 0,
                                .has_type = (header->flags & HAS_TYPE) != 0,
                                .has_counts = (header->flags & HAS_COUNTS) != 0,
                                .is_reduction = (header->flags & IS_REDUCTION) != 0,
                                .is_rooted = (header->flags & IS_ROOTED) != 0};
    lksi_algorithm algorithm = {.name = algorithm_name};
    lksi_call call = {.operation = &operation,
                      .algorithm = algorithm_name[0] != '\0' ? &algorithm : NULL,
                      .count = (size_t)header->count,
                      .type = (lks_type)header->type,
                      .op = (lks_operator)header->op,
                      .root = header->root,
                      .fingerprint = header->fingerprint};
    lksi_call_describe(&call, text, text_nbytes);
}

/* Both ranks name the lower one first, so that both say the same. */
lks_status lksi_step_mismatch(const lks_group *group, const lksi_call *call, int other, const lksi_step_header *head) {
    char mine[LKSI_CALL_TEXT_NBYTES], theirs[LKSI_CALL_TEXT_NBYTES], when[48] = "";
    lksi_call_describe(call, mine, sizeof mine);
    describe_header(head, theirs, sizeof theirs);
    if (head->sequence != call->sequence)
        snprintf(when, sizeof when, ", rank %d's call %llu", lksi_world_rank(group, other),
                 (unsigned long long)head->sequence);
    bool is_first = group->rank < other;
    int first = lksi_world_rank(group, is_first ? group->rank : other);
    int second = lksi_world_rank(group, is_first ? other : group->rank);
    return lksi_error(LKS_ERR_MISMATCH, "ranks disagree at call %llu%s: rank %d called %s, rank %d called %s",
                      (unsigned long long)call->sequence, when, first, is_first ? mine : theirs, second,
                      is_first ? theirs : mine);
}

static lks_status judge(const lks_group *group, const lksi_call *call, int other, const lksi_step_header *head) {
    bool is_other = head->sequence == call->sequence && head->fingerprint != call->fingerprint;
    return is_other ? lksi_step_mismatch(group, call, other, head) : LKS_OK;
}

lks_status lksi_step_listen(lks_group *group, const lksi_call *call, int from) {
    lksi_step_pair *pair = &group->steps->pairs[from];
    while (pair->n_head < sizeof pair->head) {
        size_t n;
        LKS_TRY(lksi_stream_read(group, LKSI_CONTEXT_COLLECTIVE, from, (char *)&pair->head + pair->n_head,
                                 sizeof pair->head - pair->n_head, &n));
        if (n == 0) break;
        pair->n_head += n;
        if (pair->n_head < sizeof pair->head || !pair->head.is_notice) continue;
        pair->heard = pair->head;
        pair->n_head = 0;
    }
    LKS_TRY(judge(group, call, from, &pair->heard));
    return pair->n_head == sizeof pair->head ? judge(group, call, from, &pair->head) : LKS_OK;
}

lks_status lksi_step_finish_notice(lks_group *group, int to, bool *is_through) {
    lksi_step_pair *pair = &group->steps->pairs[to];
    if (pair->n_untold > 0) {
        size_t n, n_told = sizeof pair->told - pair->n_untold;
        struct iovec rest = {(char *)&pair->told + n_told, pair->n_untold};
        LKS_TRY(lksi_stream_write(group, LKSI_CONTEXT_COLLECTIVE, to, &rest, 1, &n));
        pair->n_untold -= n;
    }
    *is_through = pair->n_untold == 0;
    return LKS_OK;
}

/* A rank that has done its part of the call, and left, is no error to those who do not wait for it. */
static lks_status listen_aside(lks_group *group, const lksi_call *call, int from, bool is_awaited) {
    lksi_step_pair *pair = &group->steps->pairs[from];
    if (pair->has_ended && !is_awaited) return LKS_OK;
    lks_status status = lksi_step_listen(group, call, from);
    pair->has_ended = status == LKS_ERR_PEER;
    return pair->has_ended && !is_awaited ? LKS_OK : status;
}

lks_status lksi_step_compare_notes(lks_group *group, const lksi_call *call, int awaited, bool may_write) {
    lksi_step_pair *pair = &group->steps->pairs[awaited];
    bool is_through;
    if (may_write && pair->n_untold == 0 && pair->told.sequence != call->sequence) {
        pair->told = *lksi_step_own(group, call);
        pair->told.nbytes = 0, pair->told.is_notice = 1;
        pair->n_untold = sizeof pair->told;
    }
    if (may_write) LKS_TRY(lksi_step_finish_notice(group, awaited, &is_through));
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank) LKS_TRY(listen_aside(group, call, rank, rank == awaited));
    return LKS_OK;
}
