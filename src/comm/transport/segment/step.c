/* One step of an algorithm: it sends a message, receives one, or does both at once.
 *
 *     sender ── header: the call, nbytes ── payload, straight from the algorithm's buffer ──> receiver
 *
 * Both sides know the length. Payloads are read straight into the algorithm's buffer, so the only copies are those of
 * the ring. A header of another call is an error that names both calls. notice.c covers ranks that wait for each other.
 */
#include "comm/transport/segment/step.h"
#include "comm/transport/segment/stream.h"

static const int64_t long_wait_ns = INT64_C(200) * 1000 * 1000; /* before a notice is sent */

void lksi_steps_close(lks_group *group) {
    if (group->steps == NULL) return;
    lksi_free(group->steps->pairs);
    lksi_free(group->steps);
    group->steps = NULL;
}

lks_status lksi_steps_open(lks_group *group) {
    if (group->steps != NULL) return LKS_OK;
    LKS_TRY(lksi_streams_open(group, LKSI_CONTEXT_COLLECTIVE));
    lksi_step_state *opened = lksi_alloc(sizeof *opened);
    if (opened == NULL) return LKS_ERR_MEMORY;
    opened->pairs = lksi_alloc_array((size_t)group->size, sizeof *opened->pairs);
    if (opened->pairs == NULL) {
        lksi_free(opened);
        return LKS_ERR_MEMORY;
    }
    group->steps = opened;
    return LKS_OK;
}

/* State of a step. A direction without a message counts as done. */
typedef struct step {
    const lksi_call *call;
    int to, from;
    lksi_step_header head;
    const unsigned char *sent;
    unsigned char *received;
    size_t n_out, n_out_done; /* header and payload */
    size_t n_in, n_in_done;   /* payload */
    bool is_sent, is_received, has_moved;
    lksi_pauses pauses;
    int64_t waits_since_ns;
} step;

static lks_status push(lks_group *group, step *s) {
    bool is_through;
    size_t n, n_head = sizeof s->head;
    LKS_TRY(lksi_step_finish_notice(group, s->to, &is_through));
    if (!is_through) return LKS_OK;
    struct iovec parts[2] = {{&s->head, n_head}, {(void *)(uintptr_t)s->sent, s->n_out - n_head}};
    int n_parts = lksi_parts_left(parts, s->n_out_done);
    LKS_TRY(lksi_stream_write(group, LKSI_CONTEXT_COLLECTIVE, s->to, parts, n_parts, &n));
    size_t n_payload_before = s->n_out_done > n_head ? s->n_out_done - n_head : 0;
    s->n_out_done += n;
    s->has_moved |= n > 0;
    if (s->n_out_done > n_head) group->progress.done_nbytes += s->n_out_done - n_head - n_payload_before;
    s->is_sent = s->n_out_done == s->n_out;
    return LKS_OK;
}

static lks_status pull(lks_group *group, step *s) {
    lksi_step_pair *pair = &group->steps->pairs[s->from];
    if (s->n_in_done == 0) {
        LKS_TRY(lksi_step_listen(group, s->call, s->from));
        const lksi_step_header *head = &pair->in.head;
        if (!lksi_step_has_header(pair)) return LKS_OK;
        if (head->fingerprint != s->call->fingerprint) {
            if (head->sequence > s->call->sequence) LKS_TRY(lksi_step_look_aside(group, s->call, s->from));
            return lksi_step_mismatch(group, s->call, s->from, head);
        }
        if (head->nbytes != s->n_in)
            return lksi_error(LKS_ERR_MISMATCH, "rank %d sent %llu bytes in %s, rank %d expected %zu (call %llu)",
                              lksi_world_rank(group, s->from), (unsigned long long)head->nbytes,
                              s->call->operation->name, lksi_world_rank(group, group->rank), s->n_in,
                              (unsigned long long)s->call->sequence);
    }
    while (s->n_in_done < s->n_in) {
        size_t n;
        LKS_TRY(lksi_stream_read(group, LKSI_CONTEXT_COLLECTIVE, s->from, s->received + s->n_in_done,
                                 s->n_in - s->n_in_done, &n));
        if (n == 0) return LKS_OK;
        s->n_in_done += n;
        s->has_moved = true;
        group->progress.done_nbytes += n;
    }
    pair->n_in = 0;
    s->is_received = s->has_moved = true;
    return LKS_OK;
}

static lks_status wait_for_either(lks_group *group, step *s) {
    lksi_interest interests[2];
    int ranks[2], n = 0;
    if (!s->is_received) ranks[n] = s->from, interests[n++] = (lksi_interest){s->from, false};
    if (!s->is_sent) ranks[n] = s->to, interests[n++] = (lksi_interest){s->to, true};
    LKS_TRY(lksi_streams_wait(group, LKSI_CONTEXT_COLLECTIVE, interests, n, ranks, n, &s->pauses));
    if (group->remote == NULL) return LKS_OK;
    int64_t now_ns = lksi_now_ns();
    if (s->waits_since_ns == 0) s->waits_since_ns = now_ns;
    if (now_ns - s->waits_since_ns < long_wait_ns) return LKS_OK;
    if (s->is_received) return lksi_step_listen_to_all(group, s->call);
    bool is_between_messages = s->is_sent || s->to != s->from || s->n_out_done == 0;
    return lksi_step_compare_notes(group, s->call, s->from, is_between_messages);
}

static lks_status move(lks_group *group, step *s) {
    s->has_moved = false;
    if (!s->is_sent) LKS_TRY(push(group, s));
    if (!s->is_received) LKS_TRY(pull(group, s));
    if (s->has_moved) s->pauses = (lksi_pauses){0}, s->waits_since_ns = 0;
    return LKS_OK;
}

static lks_status move_through(lks_group *group, step *s) {
    for (;;) {
        LKS_TRY(move(group, s));
        if (s->is_sent && s->is_received) return LKS_OK;
        lks_status status = wait_for_either(group, s);
        if (status == LKS_OK) continue;
        /* The wait failed, but data that arrived before the failure still counts. */
        char reason[LKSI_ERROR_TEXT_NBYTES];
        lksi_error_keep(reason);
        if (status != LKS_ERR_MISMATCH && move(group, s) == LKS_OK && s->has_moved) continue;
        lksi_error_restore(reason);
        return status;
    }
}

static lks_status run(lks_group *group, step *s) {
    lks_status status = move_through(group, s);
    if (status == LKS_ERR_PEER && !s->is_received) {
        char reason[LKSI_ERROR_TEXT_NBYTES];
        lksi_error_keep(reason);
        status = lksi_step_look_aside(group, s->call, s->from);
        if (status == LKS_OK) {
            lksi_error_restore(reason);
            status = LKS_ERR_PEER;
        }
    }
    if (status != LKS_ERR_MISMATCH) return status;
    bool is_half_sent = !s->is_sent && s->n_out_done > 0;
    return lksi_step_explain(group, s->call, is_half_sent ? s->to : -1);
}

static void prepare_send(lks_group *group, step *s, int to, const void *data, size_t nbytes) {
    s->head = *lksi_step_own(group, s->call);
    s->head.nbytes = nbytes;
    s->to = to, s->sent = data, s->n_out = sizeof s->head + nbytes;
    s->is_sent = false;
    lksi_counter_add(&group->counters.n_messages, 1);
    lksi_counter_add(&group->counters.n_message_nbytes, nbytes);
}

/* A rank that only receives also remembers the call, for the error that a message of it makes later. */
static void prepare_receive(lks_group *group, step *s, int from, void *data, size_t nbytes) {
    (void)lksi_step_own(group, s->call);
    s->from = from, s->received = data, s->n_in = nbytes;
    s->is_received = false;
}

lks_status lksi_step_send(lks_group *group, const lksi_call *call, int to, const void *data, size_t nbytes) {
    step s = {.call = call, .is_received = true};
    LKS_TRY(lksi_steps_open(group));
    prepare_send(group, &s, to, data, nbytes);
    return run(group, &s);
}

lks_status lksi_step_receive(lks_group *group, const lksi_call *call, int from, void *data, size_t nbytes) {
    step s = {.call = call, .is_sent = true};
    LKS_TRY(lksi_steps_open(group));
    prepare_receive(group, &s, from, data, nbytes);
    return run(group, &s);
}

lks_status lksi_step_exchange(lks_group *group, const lksi_call *call, int to, const void *sent, size_t n_sent_nbytes,
                              int from, void *received, size_t n_received_nbytes) {
    step s = {.call = call};
    LKS_TRY(lksi_steps_open(group));
    prepare_send(group, &s, to, sent, n_sent_nbytes);
    prepare_receive(group, &s, from, received, n_received_nbytes);
    return run(group, &s);
}
