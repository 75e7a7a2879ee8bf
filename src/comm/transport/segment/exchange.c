/* Where ranks meet: every rank shows a line to all, and reads theirs.
 *
 *     rank 0  post ─┬─> all     step 1: one cache line each, written by its owner, read by everyone
 *     rank 1  post ─┤
 *     rank 2  post ─┘           then each compares the fingerprints: the same lines, so the same verdict everywhere
 *
 * Lines are double-buffered by the parity of the exchange: who writes exchange e+2 has seen everyone's line of e+1, and
 * a rank shows that only after it has finished with e. So no second barrier is needed before a line is used again.
 */
#include "comm/comm_internal.h"

#include <string.h>

/* All ranks saw the same lines, so all come here; each writes down its call, and all name the same two. */
static lks_status explain_mismatch(lks_group *group, const lksi_call *call) {
    lksi_seat *seats = group->control->seats, *mine = &seats[group->seat];
    lksi_call_describe(call, mine->call_text, sizeof mine->call_text);
    lksi_publish(group->control, &mine->explained.value, group->n_exchanges, group->seat);
    int other = 0;
    for (int rank = 0; rank < group->size; rank++) {
        LKS_TRY(lksi_wait(group, &seats[rank].explained.value, group->n_exchanges, rank));
        if (other == 0 && lksi_post_of(group, rank)->fingerprint != lksi_post_of(group, 0)->fingerprint) other = rank;
    }
    return lksi_error(LKS_ERR_MISMATCH, "ranks disagree at call %llu: rank 0 called %s, rank %d called %s",
                      (unsigned long long)group->progress.sequence, seats[0].call_text, other, seats[other].call_text);
}

lks_status lksi_post_and_collect(lks_group *group, const lksi_call *call, uint64_t place) {
    lksi_seat *seats = group->control->seats;
    lksi_post *mine = lksi_post_next(group);
    uint64_t exchange = ++group->n_exchanges;
    mine->fingerprint = call->fingerprint;
    mine->place = place;
    lksi_publish(group->control, &mine->counter, exchange, group->seat);
    bool is_agreed = true;
    for (int rank = 0; rank < group->size; rank++) {
        const lksi_post *post = &seats[rank].posts[exchange & 1];
        LKS_TRY(lksi_wait(group, &post->counter, exchange, rank));
        is_agreed &= post->fingerprint == call->fingerprint;
    }
    return is_agreed ? LKS_OK : explain_mismatch(group, call);
}

lks_status lksi_meet(lks_group *group) {
    lksi_seat *seats = group->control->seats;
    uint64_t meet = ++group->n_meets;
    lksi_publish(group->control, &seats[group->seat].meets.value, meet, group->seat);
    for (int rank = 0; rank < group->size; rank++) LKS_TRY(lksi_wait(group, &seats[rank].meets.value, meet, rank));
    return LKS_OK;
}
