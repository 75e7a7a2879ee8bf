/* Notices: how ranks detect that they run different calls if no exchange has compared the calls before.
 *
 *     rank 0: gather to 0      waits for rank 1 ── notice: "I am in gather" ──> rank 1
 *     rank 1: broadcast from 0 waits for rank 0 ── notice: "I am in broadcast" ──> rank 0
 *
 * Mostly the first message shows the disagreement, because its header carries the call. If both ranks wait for each
 * other, no message is sent. So a step that has waited long sends a notice to the rank it waits for, and reads from all
 * ranks. A notice of the call before is compared with that call. An older one is stale. A notice of a later call is
 * kept, because its reader may still get there. Ranks that only send to each other read nothing either, so a step that
 * has waited long to send also reads the headers that have come from all ranks.
 *
 * The message of an earlier call is never stale: a rank receives all messages of a call before the next one. So the
 * ranks disagreed in that call.
 *
 * A rank that only sends does not wait for the others. In a group that spans hosts it may reach its next call, and meet
 * ranks of the call before in a part of the group. Its message lies unread in the streams of the whole group, which are
 * searched then (lksi_step_disagree):
 *
 *     rank 1: gather to 0 ── message: "I am in gather" ──> rank 0, in barrier     whole group
 *     rank 1: barrier     <──────── not the same call ───> rank 0, in barrier     their host
 *
 * Only notices carry the words that explain a fingerprint. So a rank that detects another call by the header of a
 * message sends its own words to all ranks, and waits for the notice of the other rank. That notice comes at once, or
 * when the other rank has waited long:
 *
 *     rank 1: step 4, lr 0.1   ── message: fingerprint ─────> rank 2: step 4, lr 0.5
 *                              <── notice: "lr 0.5" ──
 *                              ── notice: "lr 0.1" ──>
 */
#include "comm/transport/segment/step.h"
#include "comm/transport/segment/stream.h"

#include <string.h>

enum {
    HAS_COUNT = 1,
    HAS_TYPE = 2,
    IS_REDUCTION = 4,
    IS_ROOTED = 8,
    HAS_COUNTS = 16,
    HAS_WORDS = 32,
    HAS_OWN_COUNTS = 64
};

const lksi_step_header *lksi_step_own(lks_group *group, const lksi_call *call) {
    const lksi_call *users = lksi_users_call(group, call);
    const lksi_operation *operation = users->operation;
    lksi_step_header *header = &group->steps->own;
    if (header->fingerprint == call->fingerprint && header->sequence == call->sequence) return header;
    group->steps->before = *header;
    *header = (lksi_step_header){.fingerprint = call->fingerprint,
                                 .sequence = call->sequence,
                                 .number = lksi_call_number(group, users),
                                 .count = users->count,
                                 .root = users->root,
                                 .type = (uint8_t)users->type,
                                 .op = (uint8_t)users->op};
    header->flags =
        (uint8_t)((operation->has_count ? HAS_COUNT : 0) | (operation->has_type ? HAS_TYPE : 0) |
                  (operation->is_reduction ? IS_REDUCTION : 0) | (operation->is_rooted ? IS_ROOTED : 0) |
                  (operation->has_counts ? HAS_COUNTS : 0) | (operation->has_own_counts ? HAS_OWN_COUNTS : 0) |
                  (users->meaning != NULL ? HAS_WORDS : 0));
    snprintf(header->operation, sizeof header->operation, "%s", operation->name);
    if (users->algorithm != NULL && users->algorithm->name != NULL) /* an exchange's one algorithm has no name */
        snprintf(header->algorithm, sizeof header->algorithm, "%s", users->algorithm->name);
    return header;
}

static bool has_heard_words(const lksi_step_pair *pair, const lksi_step_header *head) {
    const lksi_step_header *heard = &pair->heard.head;
    return (heard->flags & HAS_WORDS) != 0 && heard->sequence == head->sequence &&
           heard->fingerprint == head->fingerprint;
}

static void write_words(const void *context, char *text, size_t text_nbytes) {
    const char *words = context;
    snprintf(text, text_nbytes, "%.*s", (int)strnlen(words, LKSI_CALL_TEXT_NBYTES), words);
}

static void describe_header(const lksi_step_pair *pair, const lksi_step_header *header, char *text,
                            size_t text_nbytes) {
    char operation_name[sizeof header->operation + 1] = "", algorithm_name[sizeof header->algorithm + 1] = "";
    memcpy(operation_name, header->operation, sizeof header->operation);
    memcpy(algorithm_name, header->algorithm, sizeof header->algorithm);
    lksi_operation operation = {.name = operation_name,
                                .has_count = (header->flags & HAS_COUNT) != 0,
                                .has_type = (header->flags & HAS_TYPE) != 0,
                                .has_counts = (header->flags & HAS_COUNTS) != 0,
                                .has_own_counts = (header->flags & HAS_OWN_COUNTS) != 0,
                                .is_reduction = (header->flags & IS_REDUCTION) != 0,
                                .is_rooted = (header->flags & IS_ROOTED) != 0};
    lksi_algorithm algorithm = {.name = algorithm_name};
    lksi_meaning meaning = {write_words, pair->heard.words};
    lksi_call call = {.operation = &operation,
                      .algorithm = algorithm_name[0] != '\0' ? &algorithm : NULL,
                      .count = (size_t)header->count,
                      .type = (lks_type)header->type,
                      .op = (lks_operator)header->op,
                      .root = header->root,
                      .fingerprint = header->fingerprint,
                      .meaning = has_heard_words(pair, header) ? &meaning : NULL};
    lksi_call_describe(&call, text, text_nbytes);
}

/* This rank's call to compare with `head`: the one before if `head` is of that one. This rank has completed its part of
 * it already. */
static void describe_own(lks_group *group, const lksi_call *call, const lksi_step_header *head, lksi_called *mine) {
    const lksi_step_header *own = lksi_step_own(group, call), *before = &group->steps->before;
    bool is_before = head->sequence == before->sequence && head->fingerprint != before->fingerprint;
    mine->rank = group->rank;
    mine->number = is_before ? before->number : own->number;
    if (is_before)
        describe_header(&group->steps->pairs[group->rank], before, mine->text, sizeof mine->text);
    else
        lksi_call_describe(lksi_users_call(group, call), mine->text, sizeof mine->text);
}

static bool are_alike(const lksi_called *one, const lksi_called *other) {
    return one->number == other->number && strcmp(one->text, other->text) == 0;
}

lks_status lksi_step_mismatch(lks_group *group, const lksi_call *call, int other, const lksi_step_header *head) {
    lksi_called mine, theirs = {.rank = other, .number = head->number};
    describe_own(group, call, head, &mine);
    describe_header(&group->steps->pairs[other], head, theirs.text, sizeof theirs.text);
    if (group->steps->is_searching && are_alike(&mine, &theirs)) return LKS_OK;
    group->steps->is_other = true, group->steps->other = other, group->steps->theirs = *head;
    return lksi_step_disagree(group, call, &mine, &theirs);
}

static lks_status judge(lks_group *group, const lksi_call *call, int other, const lksi_step_header *head) {
    const lksi_step_header *before = &group->steps->before;
    bool is_other = head->sequence == call->sequence && head->fingerprint != call->fingerprint;
    is_other |= head->sequence == before->sequence && head->fingerprint != before->fingerprint;
    return is_other ? lksi_step_mismatch(group, call, other, head) : LKS_OK;
}

/* Whether the message that `head` belongs to is of an earlier call. The numbers of internal calls have no order. */
static bool is_left_over(const lksi_call *call, const lksi_step_header *head) {
    return head->sequence < call->sequence && call->sequence < LKSI_SPLIT_CALL;
}

static bool is_notice(const lksi_step_pair *pair) {
    return pair->n_in >= sizeof pair->in.head && pair->in.head.is_notice;
}

bool lksi_step_has_header(const lksi_step_pair *pair) { return pair->n_in == sizeof pair->in.head && !is_notice(pair); }

static lks_status hear(lks_group *group, int from) {
    lksi_step_pair *pair = &group->steps->pairs[from];
    while (!lksi_step_has_header(pair)) {
        size_t n, nbytes = is_notice(pair) ? sizeof pair->in : sizeof pair->in.head;
        LKS_TRY(lksi_stream_read(group, LKSI_CONTEXT_COLLECTIVE, from, (char *)&pair->in + pair->n_in,
                                 nbytes - pair->n_in, &n));
        if (n == 0) break;
        pair->n_in += n;
        if (pair->n_in < sizeof pair->in) continue;
        pair->heard = pair->in;
        pair->n_in = 0;
    }
    return LKS_OK;
}

lks_status lksi_step_listen(lks_group *group, const lksi_call *call, int from) {
    lksi_step_pair *pair = &group->steps->pairs[from];
    LKS_TRY(hear(group, from));
    LKS_TRY(judge(group, call, from, &pair->heard.head));
    if (!lksi_step_has_header(pair)) return LKS_OK;
    if (is_left_over(call, &pair->in.head)) return lksi_step_mismatch(group, call, from, &pair->in.head);
    return judge(group, call, from, &pair->in.head);
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

/* A rank that has done its part of the call may leave. That is an error only for ranks that wait for it. */
static lks_status listen_aside(lks_group *group, const lksi_call *call, int from, bool is_awaited) {
    lksi_step_pair *pair = &group->steps->pairs[from];
    if (pair->has_ended && !is_awaited) return LKS_OK;
    lks_status status = lksi_step_listen(group, call, from);
    pair->has_ended = status == LKS_ERR_PEER;
    return pair->has_ended && !is_awaited ? LKS_OK : status;
}

static lks_status tell(lks_group *group, const lksi_call *call, int to) {
    lksi_step_pair *pair = &group->steps->pairs[to];
    lksi_step_notice *told = &pair->told;
    bool is_through;
    if (pair->n_untold == 0 && told->head.sequence != call->sequence) {
        *told = (lksi_step_notice){.head = *lksi_step_own(group, call)};
        told->head.nbytes = 0, told->head.is_notice = 1;
        if (call->meaning != NULL) call->meaning->write(call->meaning->context, told->words, sizeof told->words);
        pair->n_untold = sizeof *told;
    }
    return lksi_step_finish_notice(group, to, &is_through);
}

lks_status lksi_step_compare_notes(lks_group *group, const lksi_call *call, int awaited, bool may_write) {
    if (may_write) LKS_TRY(tell(group, call, awaited));
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank) LKS_TRY(listen_aside(group, call, rank, rank == awaited));
    return LKS_OK;
}

lks_status lksi_step_listen_to_all(lks_group *group, const lksi_call *call) {
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank) LKS_TRY(listen_aside(group, call, rank, false));
    return LKS_OK;
}

/* A rank in another call waits for this rank or has sent it something, over the streams of the whole group. */
lks_status lksi_step_overhear(lks_group *group) {
    const lksi_call *call = group->divided;
    if (call == NULL) return LKS_OK;
    LKS_TRY(lksi_steps_open(group));
    lks_status status = lksi_step_listen_to_all(group, call);
    return status == LKS_ERR_MISMATCH ? lksi_step_explain(group, call, -1) : status;
}

lks_status lksi_step_look_aside(lks_group *group, const lksi_call *call, int from) {
    enum { PATIENCE_MS = 20 }; /* what is looked for has been sent already and only needs to arrive */
    for (int i = 0; i < PATIENCE_MS && group->remote != NULL; i++) {
        for (int rank = 0; rank < group->size; rank++)
            if (rank != group->rank && rank != from) LKS_TRY(listen_aside(group, call, rank, false));
        lksi_sleep_ns(1000000);
    }
    return LKS_OK;
}

/* --- a call before this one that differed --- */

static lks_status search(lks_group *group, const lksi_call *call) {
    enum { PATIENCE_MS = 500 }; /* the rank that finds the message may look for it only after a long wait */
    for (int i = 0; i < PATIENCE_MS; i++) {
        LKS_TRY(lksi_step_listen_to_all(group, call));
        LKS_TRY(lksi_refuse_aborted(group, LKSI_CONTEXT_COLLECTIVE));
        lksi_sleep_ns(1000000);
    }
    return LKS_OK;
}

/* The call that differed did not compare the two ranks. A message of it that its receiver does not expect lies unread,
 * here or on a rank that aborts when it finds it. LKS_OK: none was found. */
static lks_status find_earlier(lks_group *group, const lksi_call *call) {
    const lksi_call *users = lksi_users_call(group, call);
    lks_group *whole = users != call ? group->parent : group;
    LKS_TRY(lksi_steps_open(whole));
    whole->steps->is_searching = true;
    lks_status status = search(whole, users);
    whole->steps->is_searching = false;
    return status;
}

/* All ranks name the lower rank and the lower number first, so that their texts are the same. */
lks_status lksi_step_disagree(lks_group *group, const lksi_call *call, const lksi_called *one,
                              const lksi_called *other) {
    const lksi_called *first = one->rank < other->rank ? one : other, *second = first == one ? other : one;
    const lksi_called *early = one->number < other->number ? one : other, *late = early == one ? other : one;
    int first_rank = lksi_world_rank(group, first->rank), second_rank = lksi_world_rank(group, second->rank);
    char when[48] = "";
    bool is_part = lksi_users_call(group, call) != call;
    if (are_alike(one, other) || (is_part && early->number != late->number)) LKS_TRY(find_earlier(group, call));
    if (are_alike(one, other))
        return lksi_error(LKS_ERR_MISMATCH,
                          "ranks disagree before call %llu: rank %d and rank %d both called %s, but their calls before "
                          "it differ",
                          (unsigned long long)first->number, first_rank, second_rank, first->text);
    if (early->number != late->number)
        snprintf(when, sizeof when, ", rank %d's call %llu", lksi_world_rank(group, late->rank),
                 (unsigned long long)late->number);
    return lksi_error(LKS_ERR_MISMATCH, "ranks disagree at call %llu%s: rank %d called %s, rank %d called %s",
                      (unsigned long long)early->number, when, first_rank, first->text, second_rank, second->text);
}

/* --- words that a header lacks --- */

/* Discards the payload behind the header. */
static lks_status skip_message(lks_group *group, int from) {
    lksi_step_pair *pair = &group->steps->pairs[from];
    unsigned char unread[LKSI_PAYLOAD_NBYTES];
    uint64_t *n_left = &pair->in.head.nbytes;
    while (*n_left > 0) {
        size_t n, most = *n_left < sizeof unread ? (size_t)*n_left : sizeof unread;
        LKS_TRY(lksi_stream_read(group, LKSI_CONTEXT_COLLECTIVE, from, unread, most, &n));
        if (n == 0) return LKS_OK;
        *n_left -= n;
    }
    pair->n_in = 0;
    return LKS_OK;
}

static bool lacks_words(const lksi_step_state *steps) {
    return (steps->theirs.flags & HAS_WORDS) != 0 && !has_heard_words(&steps->pairs[steps->other], &steps->theirs);
}

/* Errors are ignored: a rank that cannot be reached learns of it by the abort, if at all. */
static void tell_all(lks_group *group, const lksi_call *call, int busy) {
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank && rank != busy && !lksi_control_is_aborted(group->control))
            (void)tell(group, call, rank);
}

/* Reads what has arrived of the other rank's notice. */
static lks_status hear_words(lks_group *group) {
    int other = group->steps->other;
    LKS_TRY(hear(group, other));
    if (!lksi_step_has_header(&group->steps->pairs[other])) return LKS_OK;
    LKS_TRY(skip_message(group, other));
    return hear(group, other);
}

/* Waits for the words of the other rank until they are here or the group is dead. The other rank may have received ours
 * first, and have aborted with a text that shows both calls. */
static lks_status get_words(lks_group *group, const lksi_call *call, int busy) {
    enum { PATIENCE_MS = 1000 };
    lks_status status = LKS_OK;
    bool is_over = false;
    for (int i = 0; i < PATIENCE_MS && status == LKS_OK && !is_over; i++) {
        if (i > 0) lksi_sleep_ns(1000000);
        is_over = lksi_control_is_aborted(group->control); /* one more pass: data sent before the abort counts */
        tell_all(group, call, busy);
        if (lacks_words(group->steps)) status = hear_words(group);
        if (!lacks_words(group->steps)) return LKS_OK;
    }
    return status != LKS_OK ? status : lksi_refuse_aborted(group, LKSI_CONTEXT_COLLECTIVE);
}

lks_status lksi_step_explain(lks_group *group, const lksi_call *call, int busy) {
    lksi_step_state *steps = group->steps;
    char text[LKSI_ERROR_TEXT_NBYTES];
    if (!steps->is_other || (call->meaning == NULL && !lacks_words(steps))) return LKS_ERR_MISMATCH;
    lksi_error_keep(text);
    lks_status status = get_words(group, call, busy);
    if (!lacks_words(steps)) return lksi_step_mismatch(group, call, steps->other, &steps->theirs);
    if (status != LKS_ERR_MISMATCH) lksi_error_restore(text); /* otherwise the abort's text shows both calls */
    return LKS_ERR_MISMATCH;
}
