/* all_to_all, bruck: blocks travel to their rank in jumps of 1, 2, 4, ... ranks, many in one message.
 *
 *     slot i of rank r starts as the block for rank r + i, so it has to travel the distance i;
 *     in round k the slots whose number has bit k move from rank r to the same slots of rank r + 2^k
 *
 *     r ─ slots 1 3 5 7 ─> r+1        r ─ slots 2 3 6 7 ─> r+2        r ─ slots 4 5 6 7 ─> r+4
 *
 *     steps: ceil(log2 n) per piece of W = 1 MiB / n of every block
 *     messages: ceil(log2 n) per rank and piece (at least one), of about n/2 blocks' pieces each
 *
 * Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
 * message-passing systems", 1997.
 */
#include "comm/collective/collective.h"

typedef struct slots {
    unsigned char *all, *sent, *received;
    size_t nbytes; /* of one slot: a piece of a block */
} slots;

/* Packs the slots whose number has this bit, or unpacks the received ones into them. Returns their size. */
static size_t pack(const slots *s, int n, int bit, bool is_back) {
    size_t nbytes = 0;
    for (int i = bit; i < n; i++) {
        if ((i & bit) == 0) continue;
        unsigned char *slot = s->all + (size_t)i * s->nbytes;
        if (is_back)
            lksi_copy(slot, s->received + nbytes, s->nbytes);
        else
            lksi_copy(s->sent + nbytes, slot, s->nbytes);
        nbytes += s->nbytes;
    }
    return nbytes;
}

static lks_status travel(lks_group *group, const lksi_call *call, const slots *s, size_t first) {
    int n = group->size, rank = group->rank;
    for (int i = 0; i < n; i++) {
        size_t block = (size_t)lksi_rotate(group, rank, i) * call->nbytes;
        lksi_copy(s->all + (size_t)i * s->nbytes, lksi_at(call->in, block + first), s->nbytes);
    }
    for (int bit = 1; bit < n; bit *= 2) {
        size_t nbytes = pack(s, n, bit, false);
        LKS_TRY(lksi_step_exchange(group, call, lksi_rotate(group, rank, bit), s->sent, nbytes,
                                   lksi_rotate(group, rank, -bit), s->received, nbytes));
        (void)pack(s, n, bit, true);
    }
    for (int i = 0; i < n; i++) {
        size_t block = (size_t)lksi_rotate(group, rank, -i) * call->nbytes;
        lksi_copy(lksi_at(call->out, block + first), s->all + (size_t)i * s->nbytes, s->nbytes);
    }
    return LKS_OK;
}

lks_status lksi_all_to_all_bruck(lks_group *group, const lksi_call *call) {
    size_t first = 0, n = (size_t)group->size, step = LKSI_WINDOW_NBYTES / n;
    size_t room = n * lksi_least(call->nbytes, step);
    slots s;
    LKS_TRY(lksi_group_scratch(group, 3 * room, &s.all));
    s.sent = s.all + room, s.received = s.sent + room;
    do {
        s.nbytes = lksi_least(call->nbytes - first, step);
        LKS_TRY(travel(group, call, &s, first));
        first += s.nbytes;
    } while (first < call->nbytes);
    return LKS_OK;
}

lksi_cost lksi_all_to_all_bruck_cost(int n_ranks, size_t nbytes) {
    double n_pieces = (double)lksi_piece_count(nbytes, LKSI_WINDOW_NBYTES / (size_t)n_ranks);
    return (lksi_cost){lksi_log2(n_ranks) * n_pieces, lksi_log2(n_ranks) * ((double)n_ranks / 2) * (double)nbytes, 0};
}
