/* reduce_scatter, halving: in every round a rank sends half of its remaining blocks to its partner, at distance 1, then
 * 2, then 4. It keeps the blocks whose number has the same low bits as its own rank.
 *
 *     0<─>1   2<─>3          round 0: even blocks to the even rank, odd blocks to the odd rank, in one message
 *     0<───>2 1<───>3        round 1: of these, the blocks whose second bit is that of the receiver
 *
 * Ranks past the largest power of two do the same among themselves. Their result is combined with that of the others
 * last, as in the canonical tree. In general: the ranks low .. low + m - 1 form a part, which combines block j at its
 * rank owner(low, m, j). That is rank j if it belongs to the part, else low + (j - low) mod p, where p is the largest
 * power of two <= m. When two parts are merged, the owner of block j in the whole is its owner in one of the parts. Its
 * owner in the other part sends to it.
 *
 *     steps: log2 n per piece of W = 1 MiB / n of accumulators of every block if n is a power of two
 *     messages: one per piece (at least one) and partner, with all blocks for that partner. If n is a power of two:
 *     log2 n per rank, together n - 1 blocks of accumulators
 */
#include "comm/collective/collective.h"

typedef struct halving {
    lks_group *group;
    const lksi_call *call;
    const lksi_window *window;
    unsigned char *sums, *sent, *received; /* each with room for every block */
    size_t wide_each, room;                /* of one block */
} halving;

static int owner(int low, int m, int block) {
    if (block >= low && block < low + m) return block;
    int prefix = lksi_split(m + 1);
    return low + ((block - low) % prefix + prefix) % prefix;
}

typedef struct part {
    int low, m;
} part;

/* Whether block `block` goes from rank `from` of the source part to rank `to` of the target part. */
static bool goes(part whole, part source, part target, int block, int from, int to) {
    return owner(source.low, source.m, block) == from && owner(target.low, target.m, block) == to &&
           owner(whole.low, whole.m, block) == to;
}

static unsigned char *sum_of(const halving *h, int block) { return h->sums + (size_t)block * h->room; }
static size_t nbytes_of(const halving *h, int block) { return lksi_window_count(h->window, block) * h->wide_each; }

/* Packs and sends the blocks for `peer`, and combines the blocks received from it. */
static lks_status meet_peer(const halving *h, part whole, part mine, part theirs, int peer) {
    int rank = h->group->rank, n_sent = 0, n_received = 0;
    size_t n_sent_nbytes = 0, n_received_nbytes = 0;
    for (int block = 0; block < h->group->size; block++) {
        size_t nbytes = nbytes_of(h, block);
        if (goes(whole, mine, theirs, block, rank, peer)) {
            lksi_copy(h->sent + n_sent_nbytes, sum_of(h, block), nbytes);
            n_sent_nbytes += nbytes, n_sent++;
        }
        if (goes(whole, theirs, mine, block, peer, rank)) n_received_nbytes += nbytes, n_received++;
    }
    if (n_sent > 0 && n_received > 0)
        LKS_TRY(
            lksi_step_exchange(h->group, h->call, peer, h->sent, n_sent_nbytes, peer, h->received, n_received_nbytes));
    else if (n_sent > 0)
        LKS_TRY(lksi_step_send(h->group, h->call, peer, h->sent, n_sent_nbytes));
    else if (n_received > 0)
        LKS_TRY(lksi_step_receive(h->group, h->call, peer, h->received, n_received_nbytes));
    const unsigned char *next = h->received;
    for (int block = 0; block < h->group->size && n_received > 0; block++) {
        if (!goes(whole, theirs, mine, block, peer, rank)) continue;
        void *sum = sum_of(h, block);
        bool is_low = mine.low < theirs.low;
        lksi_combine(h->call, sum, is_low ? sum : next, is_low ? next : sum, lksi_window_count(h->window, block));
        next += nbytes_of(h, block);
    }
    return LKS_OK;
}

/* Combines the blocks of ranks low .. low + m - 1, each at its owner. The calling rank is one of them. Deadlock-free:
 * each rank visits the ranks of the other part in rank order, so the lowest pair that is left can always proceed. */
static lks_status climb(const halving *h, int low, int m) {
    if (m == 1) return LKS_OK;
    int half = lksi_split(m);
    part whole = {low, m}, lower = {low, half}, higher = {low + half, m - half};
    bool is_low = h->group->rank < low + half;
    part mine = is_low ? lower : higher, theirs = is_low ? higher : lower;
    LKS_TRY(climb(h, mine.low, mine.m));
    if (m == 2 * half) return meet_peer(h, whole, mine, theirs, h->group->rank + theirs.low - mine.low);
    for (int peer = theirs.low; peer < theirs.low + theirs.m; peer++) LKS_TRY(meet_peer(h, whole, mine, theirs, peer));
    return LKS_OK;
}

lks_status lksi_reduce_blocks_halving(lks_group *group, const lksi_call *call, const lksi_window *window, void *place,
                                      void **own) {
    (void)place;
    size_t wide_each = lksi_type_nbytes(lksi_accumulator_type(call->type)), room = window->length * wide_each;
    size_t all_nbytes = (size_t)group->size * room;
    halving h = {.group = group, .call = call, .window = window, .wide_each = wide_each, .room = room};
    LKS_TRY(lksi_group_scratch(group, 3 * all_nbytes, &h.sums));
    h.sent = h.sums + all_nbytes, h.received = h.sent + all_nbytes;
    for (int block = 0; block < group->size; block++)
        lksi_contribute(sum_of(&h, block),
                        lksi_at(call->in, lksi_window_begin(window, block) * lksi_type_nbytes(call->type)), call->scale,
                        lksi_window_count(window, block), call->type);
    LKS_TRY(climb(&h, 0, group->size));
    *own = sum_of(&h, group->rank);
    return LKS_OK;
}

lks_status lksi_reduce_scatter_halving(lks_group *group, const lksi_call *call) {
    return lksi_reduce_scatter_by(group, call, lksi_reduce_blocks_halving);
}

lksi_cost lksi_reduce_scatter_halving_cost(int n_ranks, size_t nbytes) {
    bool is_power = (n_ranks & (n_ranks - 1)) == 0;
    double n_windows = (double)lksi_piece_count(nbytes * (size_t)n_ranks, LKSI_WINDOW_NBYTES);
    double rounds = is_power ? lksi_log2(n_ranks) : lksi_log2(n_ranks) + n_ranks;
    return (lksi_cost){rounds * n_windows, (is_power ? 1.0 : 2.0) * (n_ranks - 1) * (double)nbytes,
                       (7.0 * n_ranks - 3) * (double)nbytes};
}
