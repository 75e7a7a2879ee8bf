/* The exchange: every rank shows a line to all ranks, and reads the lines of all.
 *
 *     rank 0  post ─┬─> all     step 1: one line each, written by its owner, read by all ranks
 *     rank 1  post ─┤
 *     rank 2  post ─┘           then each compares the fingerprints: same lines, so the same verdict on every rank
 *
 * A rank may run ahead if it needs nothing from the others (the root of a broadcast), or only one line (the readers of
 * the broadcast). It shows its line, continues, and reads the other lines later. One rule bounds how far it gets and
 * makes it safe to reuse lines:
 *
 *     A rank that shows line e has read the lines of all ranks up to e - m. m is half the number of lines, minus 1.
 *
 * A rank fills its line for exchange e after it has shown e - 1, so it has read all lines of e - 1 - m. The ranks that
 * showed those had read all lines up to e - 1 - 2 m. What is overwritten is the line of e - 2 m - 2 or an older one.
 *
 * Few lines stay in the caches. In a row of calls in which all ranks wait for all (all_reduce), a rank that starts an
 * exchange knows that all ranks have left the one before the last. So these calls cycle through LKSI_LEAST_POSTS lines.
 * Two lines would suffice, but a rank may prefetch the line that it is going to write (lksi_wait_by_turns).
 *
 * Where two ranks have a CPU each, two lines do suffice, and they change hands:
 *
 *     exchange e        rank 0 writes line A, rank 1 writes line B; each reads the other's
 *     exchange e + 1    rank 0 writes line B, rank 1 writes line A
 *
 * A rank writes the line that it read in the exchange before. Nobody else needs that line any more: its only other user
 * is the rank that wrote it, which does not read it again. So a line makes one journey from core to core in an exchange
 * instead of two: the reader fetches it for writing, and its next stores find it in its own cache. This is so in the
 * exchange that follows a small call in which both waited (show_and_hand_over). Larger calls gain nothing.
 *
 * A line carries the fingerprints of all calls so far, combined into one number. So a rank that ran ahead reads one
 * line for many exchanges. If the number differs from its own, or the line does not come, it searches for the first
 * exchange with a difference.
 *
 * In the first call of a row all ranks wait. Ranks mostly disagree where something changes, and then all of them learn
 * of it in the call itself. Later in the row, a waiting rank detects the disagreement by the line of a rank that did
 * not wait: the call of that rank is stored with it. The rank that did not wait detects it at its next call.
 */
#include "base/cache.h"
#include "comm/comm_internal.h"
#include "comm/transport/segment/step.h"

#include <string.h>

/* The delay before the first look (lksi_post_wait_and_collect), in turns of a loop. A turn is about a cycle. */
enum { TURNS_MORE = 8, TURNS_LESS = 1, MOST_TURNS = 2000 };
enum { EARLY = 2 /* exchanges */ };                                    /* how far ahead ask_to_show fetches a line */
static const uint64_t fingerprint_base = UINT64_C(0x9e3779b97f4a7c15); /* odd, so that multiplication is invertible */

/* The line index of `exchange`, which is the last exchange or one that is not checked yet. Since then every exchange
 * has used the next index. */
static size_t index_of_exchange(const lks_group *group, uint64_t exchange) {
    return (group->last_post - (group->n_exchanges - exchange)) & (group->n_posts - 1);
}

/* Since a crosswise exchange that is not checked yet, there was no other. */
static lksi_post *post_of_exchange(const lks_group *group, int rank, uint64_t exchange) {
    return &group->control->seats[rank ^ (exchange == group->last_crossed)].posts[index_of_exchange(group, exchange)];
}

static lksi_ahead *ahead_of_exchange(const lks_group *group, int rank, uint64_t exchange) {
    return &group->control->seats[rank].aheads[index_of_exchange(group, exchange)];
}

/* This rank's combined fingerprint of all calls up to `exchange`. */
static uint64_t *own_fingerprint(lks_group *group, uint64_t exchange) {
    return &group->own_fingerprints[exchange % LKSI_N_POSTS];
}

/* A rank does not read its own line, because the other rank of a pair may write its next line there. Only a mismatch
 * makes it read its own line: the other rank has then found the same one, or will find it, and writes nothing more. */
static uint64_t shown_fingerprint(const lks_group *group, int rank, uint64_t exchange) {
    if (rank == group->rank) return group->own_fingerprints[exchange % LKSI_N_POSTS];
    return post_of_exchange(group, rank, exchange)->fingerprint;
}

/* Describes the call of a rank that ran ahead. The two ranks agreed up to the exchange before, so the fingerprint of
 * the call is the difference. */
static void describe_ahead(lks_group *group, uint64_t exchange, lksi_called *called) {
    const lksi_post *post = post_of_exchange(group, called->rank, exchange);
    const lksi_ahead *ahead = ahead_of_exchange(group, called->rank, exchange);
    const lksi_operation *operation = lksi_operation_at(ahead->operation);
    lksi_call call = {.operation = operation,
                      .algorithm = &operation->algorithms[ahead->algorithm],
                      .count = (size_t)ahead->count,
                      .type = (lks_type)ahead->type,
                      .op = (lks_operator)ahead->op,
                      .root = ahead->root,
                      .fingerprint = post->fingerprint - fingerprint_base * *own_fingerprint(group, exchange - 1)};
    called->number = ahead->sequence;
    lksi_call_describe(&call, called->text, sizeof called->text);
}

static bool has_shown(const lks_group *group, int rank, uint64_t exchange) {
    if (rank == group->rank) return exchange <= group->n_exchanges;
    return atomic_load_explicit(&post_of_exchange(group, rank, exchange)->counter, memory_order_acquire) >= exchange;
}

/* Finds two ranks that have shown different fingerprints in that exchange: the first rank that has shown a line, and
 * the first rank that disagrees with it. */
static bool find_difference(const lks_group *group, uint64_t exchange, int *first, int *second) {
    *first = 0;
    while (*first < group->rank && !has_shown(group, *first, exchange)) ++*first;
    uint64_t fingerprint = shown_fingerprint(group, *first, exchange);
    for (*second = *first + 1; *second < group->size; ++*second)
        if (has_shown(group, *second, exchange) && shown_fingerprint(group, *second, exchange) != fingerprint)
            return true;
    return false;
}

/* Compares the first exchange that is not checked yet. All ranks agreed in the exchanges before it. */
lks_status lksi_posts_compare(lks_group *group) {
    int first, second;
    uint64_t exchange = group->n_checked + 1;
    if (exchange > group->n_exchanges || group->is_explaining) return LKS_OK;
    if (!find_difference(group, exchange, &first, &second)) return LKS_OK;
    return lksi_error(LKS_ERR_MISMATCH, "rank %d called another operation than rank %d", lksi_world_rank(group, second),
                      lksi_world_rank(group, first));
}

static lks_status describe_rank(lks_group *group, uint64_t exchange, lksi_called *called) {
    lksi_seat *seat = &group->control->seats[called->rank];
    const lksi_post *post = post_of_exchange(group, called->rank, exchange);
    if (post->place == LKSI_PLACE_AHEAD) {
        describe_ahead(group, exchange, called);
        return LKS_OK;
    }
    LKS_TRY(lksi_wait(group, &seat->explained.value, exchange, called->rank));
    called->number = seat->call_number;
    memcpy(called->text, seat->call_text, sizeof called->text);
    return LKS_OK;
}

/* All waiting ranks see the same lines, so all of them come here unless they die. A rank that waited writes its call to
 * its seat for the others. If all lines have come, all ranks name the same two ranks. */
static lks_status explain_mismatch(lks_group *group, const lksi_call *call, uint64_t exchange, int one, int other) {
    lksi_seat *mine = group->own_seat;
    const lksi_post *post = post_of_exchange(group, group->rank, exchange);
    lksi_called first = {.rank = one}, second = {.rank = other};
    group->is_explaining = true;
    if (post->place != LKSI_PLACE_AHEAD) {
        mine->call_number = group->progress.sequence;
        lksi_call_describe(lksi_users_call(group, call), mine->call_text, sizeof mine->call_text);
        lksi_publish(group->control, &mine->explained.value, exchange, group->seat);
    }
    LKS_TRY(describe_rank(group, exchange, &first));
    LKS_TRY(describe_rank(group, exchange, &second));
    return lksi_step_disagree(group, call, &first, &second);
}

/* Reads the lines of all ranks in one exchange. `n_in_vain`: as for lksi_wait_counting. */
static lks_status read_lines(lks_group *group, uint64_t exchange, bool *is_agreed, int *n_in_vain) {
    uint64_t own = *own_fingerprint(group, exchange);
    size_t index = index_of_exchange(group, exchange);
    lksi_seat *seats = group->control->seats;
    int crossing = exchange == group->last_crossed;
    *is_agreed = true;
    if (!group->may_spin && !group->is_pair) /* the wait by turns looks for lines in their owners' seats */
        LKS_TRY(lksi_wait_by_turns(group, offsetof(lksi_seat, posts) + index * sizeof(lksi_post), exchange));
    for (int rank = 0; rank < group->size; rank++) {
        const lksi_post *post = &seats[rank ^ crossing].posts[index];
        if (rank == group->rank) continue;
        LKS_TRY(lksi_wait_counting(group, &post->counter, exchange, rank, n_in_vain));
        *is_agreed &= post->fingerprint == own;
        if (group->is_handed_over) lksi_ask_to_write(post);
    }
    return LKS_OK;
}

/* Checks one exchange after the other. It stops at the first one in which ranks disagree, or that cannot be read
 * because a rank has left. */
static lks_status check_each(lks_group *group, const lksi_call *call, uint64_t last) {
    bool is_agreed;
    int one, other;
    for (int n_in_vain = 0; group->n_checked < last; group->n_checked++) {
        uint64_t exchange = group->n_checked + 1;
        lks_status status = read_lines(group, exchange, &is_agreed, &n_in_vain);
        if (status == LKS_OK && is_agreed) continue;
        if (status != LKS_OK && status != LKS_ERR_MISMATCH) return status;
        return find_difference(group, exchange, &one, &other) ? explain_mismatch(group, call, exchange, one, other)
                                                              : status;
    }
    return LKS_OK;
}

/* Checks all exchanges up to `last` by the lines of `last` alone. */
static lks_status check_up_to(lks_group *group, const lksi_call *call, uint64_t last, int *n_in_vain) {
    bool is_agreed;
    lks_status status = read_lines(group, last, &is_agreed, n_in_vain);
    if (status != LKS_OK || !is_agreed) return check_each(group, call, last);
    group->n_checked = last;
    return LKS_OK;
}

static bool have_all_shown(const lks_group *group, uint64_t exchange) {
    for (int rank = 0; rank < group->size; rank++)
        if (!has_shown(group, rank, exchange)) return false;
    return true;
}

/* Enforces the rule at the top of this file before `exchange` is shown. Ranks that share CPUs run in turns: the others
 * have mostly advanced as far as this rank already. So a binary search finds the last exchange that all have shown. */
static lks_status check_before(lks_group *group, const lksi_call *call, uint64_t exchange) {
    int n_in_vain = 0;
    uint64_t most_ahead = group->n_posts / 2 - 1;
    if (exchange - group->n_checked <= most_ahead) return LKS_OK;
    LKS_TRY(check_up_to(group, call, exchange - most_ahead / 2, &n_in_vain));
    if (group->may_spin) return LKS_OK;
    uint64_t last = group->n_checked, end = exchange; /* all have shown `last`; `end` may not be shown */
    for (uint64_t tried = exchange - 1; last + 1 < end; tried = last + (end - last) / 2) {
        if (have_all_shown(group, tried))
            last = tried;
        else
            end = tried;
    }
    return last > group->n_checked ? check_up_to(group, call, last, &n_in_vain) : LKS_OK;
}

/* Completes the line, whose payload is filled in, and publishes it. */
static lks_status show(lks_group *group, const lksi_call *call, uint64_t place, const lksi_ahead *ahead) {
    lksi_post *mine = lksi_post_next(group);
    uint64_t exchange = group->n_exchanges + 1;
    bool is_crossed = lksi_seat_next(group, group->rank) != group->own_seat;
    LKS_TRY(check_before(group, call, exchange));
    uint64_t fingerprint = fingerprint_base * *own_fingerprint(group, exchange - 1) + call->fingerprint;
    group->last_post = lksi_next_post(group);
    group->n_exchanges = exchange;
    if (is_crossed) group->last_crossed = exchange;
    group->is_handed_over = false;
    group->n_waited = ahead == NULL && !call->operation->is_rooted ? group->n_waited + 1 : 0;
    mine->fingerprint = *own_fingerprint(group, exchange) = fingerprint;
    mine->place = group->own_post.place = ahead == NULL ? place : LKSI_PLACE_AHEAD;
    if (ahead != NULL) group->own_seat->aheads[group->last_post] = *ahead;
    lksi_publish(group->control, &mine->counter, exchange, group->seat);
    return LKS_OK;
}

lks_status lksi_post_and_collect(lks_group *group, const lksi_call *call, uint64_t place) {
    int n_in_vain = 0;
    LKS_TRY(show(group, call, place, NULL));
    return check_up_to(group, call, group->n_exchanges, &n_in_vain);
}

static lks_status show_and_hand_over(lks_group *group, const lksi_call *call, uint64_t place) {
    LKS_TRY(show(group, call, place, NULL));
    group->is_handed_over = group->is_pair && group->n_waited > 0;
    return LKS_OK;
}

lks_status lksi_post_small_and_collect(lks_group *group, const lksi_call *call, uint64_t place) {
    int n_in_vain = 0;
    LKS_TRY(show_and_hand_over(group, call, place));
    return check_up_to(group, call, group->n_exchanges, &n_in_vain);
}

/* Fetches for writing what this rank will show in the next call, if that is as large. */
static void ask_for_own(const lks_group *group, size_t nbytes) {
    lksi_shown_lines lines =
        lksi_shown_lines_of(group->own_seat, lksi_next_post(group), (lksi_shown){nbytes, 0, nbytes});
    for (; lines.at < lines.end; lines.at += LKSI_CACHE_LINE_NBYTES) lksi_ask_to_write(lines.at);
}

/* Ranks that take turns have not all shown their lines yet. So they use the time for their own ones. */
static void ask_for_shown(const lks_group *group, lksi_shown shown) {
    if (group->is_handed_over) {
        lksi_ask_to_write(post_of_exchange(group, 1 - group->rank, group->n_exchanges));
        lksi_shown_take_over(group, shown);
        return;
    }
    if (!group->may_spin) {
        ask_for_own(group, shown.nbytes);
        return;
    }
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank) lksi_shown_ask(lksi_seat_last(group, rank), group->last_post, shown);
}

/* A rank that reads a line too early takes the cache line from its owner, who is about to write it, and must fetch it
 * again. So ranks that arrive at about the same time delay their first look. The delay adapts to the time that the
 * lines took lately: a look that was slightly too early adds TURNS_MORE, any other look subtracts TURNS_LESS. In
 * equilibrium one look of nine is slightly too early. */
lks_status lksi_post_wait_and_collect(lks_group *group, const lksi_call *call, lksi_shown shown) {
    int n_turns = group->n_turns_before_look, n_in_vain = 0;
    LKS_TRY(show_and_hand_over(group, call, 0));
    for (int i = n_turns; i > 0; i--) __asm__ volatile(""); /* keeps the compiler from removing the loop */
    ask_for_shown(group, shown);
    LKS_TRY(check_up_to(group, call, group->n_exchanges, &n_in_vain));
    bool is_a_little_early = n_in_vain > 0 && n_in_vain < LKSI_MOST_LOOKS;
    n_turns += is_a_little_early ? TURNS_MORE : -TURNS_LESS;
    if (n_turns >= 0 && n_turns <= MOST_TURNS) group->n_turns_before_look = n_turns;
    return LKS_OK;
}

/* Shows the line. *is_ahead: without waiting. Otherwise it has read the lines of all ranks. */
static lks_status run_ahead(lks_group *group, const lksi_call *call, bool *is_ahead) {
    lksi_row *row = &group->row;
    *is_ahead = row->operation == call->operation && row->root == call->root && row->exchange == group->n_exchanges;
    *row = (lksi_row){call->operation, call->root, group->n_exchanges + 1};
    if (!*is_ahead) return lksi_post_and_collect(group, call, 0);
    const lksi_call *users = lksi_users_call(group, call);
    lksi_ahead ahead = {.sequence = users->sequence,
                        .count = users->count,
                        .root = users->root,
                        .operation = (uint8_t)(users->operation - lksi_operation_at(0)),
                        .algorithm = (uint8_t)(users->algorithm - users->operation->algorithms),
                        .type = (uint8_t)users->type,
                        .op = (uint8_t)users->op};
    return show(group, call, 0, &ahead);
}

/* Prefetches, for writing, the line that this rank will use in exchange + EARLY. Its readers no longer need it, but
 * their caches still hold it, and a core completes its stores one after the other. Annexes are not prefetched: that
 * does not pay. */
static void ask_to_show(lks_group *group, size_t nbytes) {
    char *line = (char *)&group->own_seat->posts[(group->last_post + EARLY) & (group->n_posts - 1)];
    if (nbytes > LKSI_PAYLOAD_NBYTES) return;
    for (size_t at = 0; at < offsetof(lksi_post, payload) + nbytes; at += LKSI_CACHE_LINE_NBYTES)
        lksi_ask_to_write(line + at);
}

lks_status lksi_post_and_run_ahead(lks_group *group, const lksi_call *call, size_t nbytes) {
    bool is_ahead = false;
    LKS_TRY(run_ahead(group, call, &is_ahead));
    if (is_ahead) ask_to_show(group, nbytes);
    return LKS_OK;
}

lks_status lksi_post_and_hear(lks_group *group, const lksi_call *call, int rank, lksi_shown shown) {
    bool is_ahead = false;
    lksi_shown_ask(lksi_seat_next(group, rank), lksi_next_post(group), shown);
    LKS_TRY(run_ahead(group, call, &is_ahead));
    uint64_t exchange = group->n_exchanges;
    const lksi_post *post = post_of_exchange(group, rank, exchange);
    if (is_ahead) {
        lks_status status = lksi_wait(group, &post->counter, exchange, rank);
        if (status != LKS_OK || post->fingerprint != *own_fingerprint(group, exchange))
            return check_each(group, call, exchange);
    }
    /* If that rank has run ahead, its next line has probably been shown, too. Fetch it for the next call. */
    if (post->place == LKSI_PLACE_AHEAD) __builtin_prefetch(&group->control->seats[rank].posts[lksi_next_post(group)]);
    return LKS_OK;
}

lks_status lksi_meet(lks_group *group) {
    lksi_seat *seats = group->control->seats;
    uint64_t meet = ++group->n_meets;
    lksi_publish(group->control, &group->own_seat->meets.value, meet, group->seat);
    if (!group->may_spin) LKS_TRY(lksi_wait_by_turns(group, offsetof(lksi_seat, meets), meet));
    for (int rank = 0; rank < group->size; rank++)
        if (rank != group->rank) LKS_TRY(lksi_wait(group, &seats[rank].meets.value, meet, rank));
    return LKS_OK;
}

/* A rank that gives up sets the abort word before its user gets the buffer back. No rank can complete the call before
 * this meeting, so an abort that is seen here belongs to this call. */
lks_status lksi_meet_having_read(lks_group *group) {
    atomic_thread_fence(memory_order_acquire);
    LKS_TRY(lksi_refuse_aborted(group, LKSI_CONTEXT_COLLECTIVE));
    return lksi_meet(group);
}
