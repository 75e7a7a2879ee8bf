/* How the ranks of a host meet in a call (exchange.c): each shows a line, and sees those of all. */
#ifndef LKSI_EXCHANGE_H
#define LKSI_EXCHANGE_H

#include "comm/group.h"

#include <string.h>

/* The index of all ranks' lines of the coming exchange: the next of n_posts, or of LKSI_LEAST_POSTS in a row of calls
 * in which all wait for all (exchange.c). */
static inline uint32_t lksi_next_post(const lks_group *group) {
    uint32_t next = group->last_post + 1;
    if (group->n_waited >= LKSI_LEAST_POSTS)
        next = (group->last_post & ~(LKSI_LEAST_POSTS - 1U)) | (next & (LKSI_LEAST_POSTS - 1U));
    return next & (group->n_posts - 1);
}
/* The line that this rank shows in the coming exchange: lksi_post_put, then lksi_post_and_collect. */
static inline lksi_post *lksi_post_next(lks_group *group) { return &group->own_seat->posts[lksi_next_post(group)]; }
/* Bytes [offset, offset + nbytes) of its payload. */
static inline void lksi_post_put(lks_group *group, size_t offset, const void *data, size_t nbytes) {
    memcpy(lksi_post_next(group)->payload + offset, data, nbytes);
    memcpy(group->own_post.payload + offset, data, nbytes);
}
/* The place and the payload that `rank` showed in the last exchange; valid until this rank's next exchange. */
static inline const lksi_post *lksi_post_of(const lks_group *group, int rank) {
    if (rank == group->rank) return &group->own_post;
    return &group->control->seats[group->seat_of[rank]].posts[group->last_post];
}
/* Room for the at most LKSI_ANNEX_NBYTES bytes that this rank shows in the coming exchange, in its line or beside it;
 * and what another rank showed in the last one, equally long. */
static inline unsigned char *lksi_shown_next(lks_group *group, size_t nbytes) {
    lksi_seat *seat = group->own_seat;
    uint32_t next = lksi_next_post(group);
    return nbytes <= LKSI_PAYLOAD_NBYTES ? seat->posts[next].payload : seat->annexes[next];
}
static inline const unsigned char *lksi_shown_by(const lks_group *group, int rank, size_t nbytes) {
    const lksi_seat *seat = &group->control->seats[group->seat_of[rank]];
    return nbytes <= LKSI_PAYLOAD_NBYTES ? seat->posts[group->last_post].payload : seat->annexes[group->last_post];
}
/* What every rank shows in a call's exchange, in its line or beside it: maybe nothing; and what of it is read here. */
typedef struct lksi_shown {
    size_t nbytes, begin, end;
} lksi_shown;
/* Asks for what `rank` shows behind or beside the first half of the line of that index, before this rank waits for
 * it: mostly it is there by then, and comes at the same time (all_reduce of 256 B on two ranks: 109 to 98 ns). */
static inline void lksi_shown_ask(const lks_group *group, int rank, uint32_t index, lksi_shown shown) {
    const lksi_seat *seat = &group->control->seats[group->seat_of[rank]];
    const lksi_post *post = &seat->posts[index];
    const unsigned char *in_line = post->payload, *beside = seat->annexes[index];
    const unsigned char *base = shown.nbytes <= LKSI_PAYLOAD_NBYTES ? in_line : beside, *end = base + shown.end;
    const unsigned char *at = base + shown.begin / LKSI_CACHE_LINE_NBYTES * LKSI_CACHE_LINE_NBYTES;
    if (base == in_line) at = (const unsigned char *)post + LKSI_CACHE_LINE_NBYTES;
    for (; at < end; at += LKSI_CACHE_LINE_NBYTES) __builtin_prefetch(at);
}
/* Shows the line, waits for everyone's, compares fingerprints. `call` explains a mismatch. */
lks_status lksi_post_and_collect(lks_group *group, const lksi_call *call, uint64_t place);
/* The same for small calls, which ranks make in a row: with no place, and asking for what is `shown`. */
lks_status lksi_post_wait_and_collect(lks_group *group, const lksi_call *call, lksi_shown shown);
/* The same for a rank that shows `nbytes` and needs nothing of the others: from the second call of a row on (one
 * operation, one root) it does not wait for them, and compares later. For operations of the table that have a root: in
 * all others all wait. */
lks_status lksi_post_and_run_ahead(lks_group *group, const lksi_call *call, size_t nbytes);
/* The same for one that needs what is `shown` by `rank` alone. */
lks_status lksi_post_and_hear(lks_group *group, const lksi_call *call, int rank, lksi_shown shown);
/* Of a rank that waits: LKS_ERR_MISMATCH where those that have shown a line of the exchange that it waits in disagree,
 * whoever is still missing. */
lks_status lksi_posts_compare(lks_group *group);
/* Returns when all ranks have called it; everything written before is then visible to all. */
lks_status lksi_meet(lks_group *group);
/* The same for a rank that has read others' buffers. They stay as they are until it meets their owners, or one gives
 * up: then it is that error here, and not LKS_OK with what the owner put there afterwards. */
lks_status lksi_meet_having_read(lks_group *group);

#endif
