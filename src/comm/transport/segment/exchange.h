/* How the ranks of a host meet in a call (exchange.c): each rank shows a line and reads the lines of all. */
#ifndef LKSI_EXCHANGE_H
#define LKSI_EXCHANGE_H

#include "base/cache.h"
#include "comm/group.h"

#include <string.h>

/* The index of the lines of the next exchange, the same for all ranks. Indices cycle through n_posts, or through
 * LKSI_LEAST_POSTS in a row of calls in which all ranks wait for all, or stay where lines change hands (exchange.c). */
static inline uint32_t lksi_next_post(const lks_group *group) {
    uint32_t next = group->last_post + 1;
    if (group->is_handed_over)
        next = group->last_post;
    else if (group->n_waited >= LKSI_LEAST_POSTS)
        next = (group->last_post & ~(LKSI_LEAST_POSTS - 1U)) | (next & (LKSI_LEAST_POSTS - 1U));
    return next & (group->n_posts - 1);
}
/* The seat whose lines `rank` uses in the last exchange, and in the next one. */
static inline lksi_seat *lksi_seat_last(const lks_group *group, int rank) {
    return &group->control->seats[rank ^ (group->last_crossed == group->n_exchanges)];
}
static inline lksi_seat *lksi_seat_next(const lks_group *group, int rank) {
    return &group->control->seats[rank ^ (group->is_handed_over && group->last_crossed != group->n_exchanges)];
}
/* The line that this rank shows in the next exchange. lksi_post_put fills it in, lksi_post_and_collect shows it. */
static inline lksi_post *lksi_post_next(lks_group *group) {
    return &lksi_seat_next(group, group->rank)->posts[lksi_next_post(group)];
}
/* Writes bytes [offset, offset + nbytes) of the payload of that line. */
static inline void lksi_post_put(lks_group *group, size_t offset, const void *data, size_t nbytes) {
    memcpy(lksi_post_next(group)->payload + offset, data, nbytes);
    memcpy(group->own_post.payload + offset, data, nbytes);
}
/* The place and the payload that `rank` showed in the last exchange. Valid until this rank begins to fill in its line
 * or annex of the next exchange, which may be this one. */
static inline const lksi_post *lksi_post_of(const lks_group *group, int rank) {
    if (rank == group->rank) return &group->own_post;
    return &lksi_seat_last(group, rank)->posts[group->last_post];
}
static inline unsigned char *lksi_shown_in(lksi_seat *seat, uint32_t index, size_t nbytes) {
    return nbytes <= LKSI_PAYLOAD_NBYTES ? seat->posts[index].payload : seat->annexes[index];
}
/* lksi_shown_next: room for what this rank shows in the next exchange, at most LKSI_ANNEX_NBYTES, in its line or in the
 * annex. lksi_shown_by: what `rank` showed in the last exchange, valid as long as lksi_post_of. `nbytes` is the same
 * for both. */
static inline unsigned char *lksi_shown_next(lks_group *group, size_t nbytes) {
    return lksi_shown_in(lksi_seat_next(group, group->rank), lksi_next_post(group), nbytes);
}
static inline const unsigned char *lksi_shown_by(const lks_group *group, int rank, size_t nbytes) {
    return lksi_shown_in(lksi_seat_last(group, rank), group->last_post, nbytes);
}
/* What every rank shows in the exchange of a call: `nbytes` (may be 0) in its line or annex. This rank reads
 * [begin, end) of it. */
typedef struct lksi_shown {
    size_t nbytes, begin, end;
} lksi_shown;
/* The cache lines of `shown` beyond the first half of the line of that index. */
typedef struct lksi_shown_lines {
    const unsigned char *at, *end;
} lksi_shown_lines;
static inline lksi_shown_lines lksi_shown_lines_of(lksi_seat *seat, uint32_t index, lksi_shown shown) {
    const unsigned char *base = lksi_shown_in(seat, index, shown.nbytes);
    const unsigned char *at = base + shown.begin / LKSI_CACHE_LINE_NBYTES * LKSI_CACHE_LINE_NBYTES;
    if (shown.nbytes <= LKSI_PAYLOAD_NBYTES) at = (const unsigned char *)&seat->posts[index] + LKSI_CACHE_LINE_NBYTES;
    return (lksi_shown_lines){at, base + shown.end};
}
/* Prefetches them before this rank waits for the line. They have mostly been written by then, so they arrive together
 * with the first half. */
static inline void lksi_shown_ask(lksi_seat *seat, uint32_t index, lksi_shown shown) {
    lksi_shown_lines lines = lksi_shown_lines_of(seat, index, shown);
    for (; lines.at < lines.end; lines.at += LKSI_CACHE_LINE_NBYTES) __builtin_prefetch(lines.at);
}
/* Fetches what the other rank has shown for writing, if this rank shows these lines in the next exchange. */
static inline void lksi_shown_take_over(const lks_group *group, lksi_shown shown) {
    if (!group->is_handed_over) return;
    lksi_shown_lines lines = lksi_shown_lines_of(lksi_seat_last(group, 1 - group->rank), group->last_post, shown);
    for (; lines.at < lines.end; lines.at += LKSI_CACHE_LINE_NBYTES) lksi_ask_to_write(lines.at);
}
/* Shows the line, waits for the lines of all ranks and compares the fingerprints. `call` explains a mismatch. */
lks_status lksi_post_and_collect(lks_group *group, const lksi_call *call, uint64_t place);
/* The same for small calls. If one rank uses one of these two functions, all do. In a row of such calls the second is
 * faster for ranks that do not meet a second time: it waits before the first look, and prefetches what is `shown`. It
 * shows no place. */
lks_status lksi_post_small_and_collect(lks_group *group, const lksi_call *call, uint64_t place);
lks_status lksi_post_wait_and_collect(lks_group *group, const lksi_call *call, lksi_shown shown);
/* The same for a rank that shows `nbytes` and needs nothing from the others. From the second call of a row (the same
 * operation and root) on, it does not wait for the others and compares later. Only for operations of the table that
 * have a root. In all others all ranks wait. */
lks_status lksi_post_and_run_ahead(lks_group *group, const lksi_call *call, size_t nbytes);
/* The same for a rank that needs only what is `shown` by `rank`. */
lks_status lksi_post_and_hear(lks_group *group, const lksi_call *call, int rank, lksi_shown shown);
/* Called by a rank that waits in an exchange. LKS_ERR_MISMATCH: the ranks that have shown their lines disagree. Lines
 * may still be missing. */
lks_status lksi_posts_compare(lks_group *group);
/* Returns when all ranks have called it. Everything that a rank wrote before its call is then visible to all. */
lks_status lksi_meet(lks_group *group);
/* The same for a rank that has read buffers of other ranks. These stay unchanged until this rank meets their owners, or
 * until an owner gives up. In that case the error is returned, not LKS_OK with data that the owner wrote afterwards. */
lks_status lksi_meet_having_read(lks_group *group);

#endif
