/* all_gather, butterfly: recursive doubling. In round k pairs of ranks at distance 2^k exchange all blocks that they
 * have.
 *
 *     0<─>1   2<─>3          steps: log2 p, p the largest power of two <= n, and 2 more if p < n
 *     0<───>2 1<───>3        messages: log2 p per rank, of 2^k blocks
 *
 * If n is not a power of two, rank p + i first sends its block to rank i. Rank i forwards it in a second message of
 * every round. At the end it sends all blocks to rank p + i:
 *
 *     4 ─> 0   butterfly of 0..3 with blocks {0, 4} {1} {2} {3}   0 ─> 4
 *
 *     messages: 1 of N bytes from rank p + i to rank i, 1 of n N bytes back. In round k rank i sends a second message
 *     if any rank p + j exists, for j among the 2^k ranks whose blocks it has
 */
#include "comm/collective/collective.h"

/* How many of the blocks `first` .. `first` + n - 1 exist. */
static int existing(const lks_group *group, int first, int n) {
    int left = group->size - first;
    return left < 0 ? 0 : left < n ? left : n;
}

static lks_status exchange_halves(lks_group *group, const lksi_call *call, void *buffer,
                                  const lksi_block_layout *layout, int prefix, int distance) {
    int peer = group->rank ^ distance, mine = group->rank / distance * distance, theirs = peer / distance * distance;
    lksi_block_exchange main = {peer, mine, distance, peer, theirs, distance};
    lksi_block_exchange carried = {.to = peer,
                                   .first_sent = prefix + mine,
                                   .n_sent = existing(group, prefix + mine, distance),
                                   .from = peer,
                                   .first_received = prefix + theirs,
                                   .n_received = existing(group, prefix + theirs, distance)};
    LKS_TRY(lksi_exchange_blocks(group, call, buffer, layout, &main));
    return lksi_exchange_blocks(group, call, buffer, layout, &carried);
}

lks_status lksi_gather_blocks_butterfly(lks_group *group, const lksi_call *call, void *buffer,
                                        const lksi_block_layout *layout) {
    int n = group->size, rank = group->rank, prefix = lksi_split(n + 1);
    if (rank >= prefix) {
        lksi_extent mine = lksi_blocks(layout, rank, 1);
        LKS_TRY(lksi_step_send(group, call, rank - prefix, lksi_at(buffer, mine.begin), mine.nbytes));
        return lksi_step_receive(group, call, rank - prefix, buffer, lksi_blocks(layout, 0, n).nbytes);
    }
    bool has_guest = rank + prefix < n;
    if (has_guest) {
        lksi_extent guest = lksi_blocks(layout, rank + prefix, 1);
        LKS_TRY(lksi_step_receive(group, call, rank + prefix, lksi_at(buffer, guest.begin), guest.nbytes));
    }
    for (int distance = 1; distance < prefix; distance *= 2)
        LKS_TRY(exchange_halves(group, call, buffer, layout, prefix, distance));
    if (!has_guest) return LKS_OK;
    return lksi_step_send(group, call, rank + prefix, buffer, lksi_blocks(layout, 0, n).nbytes);
}

lks_status lksi_all_gather_butterfly(lks_group *group, const lksi_call *call) {
    return lksi_all_gather_by(group, call, lksi_gather_blocks_butterfly);
}

lksi_cost lksi_all_gather_butterfly_cost(int n_ranks, size_t nbytes) {
    bool is_power = (n_ranks & (n_ranks - 1)) == 0;
    double more = is_power ? 0 : n_ranks + 1;
    return (lksi_cost){lksi_log2(n_ranks) + (is_power ? 0 : 1), (n_ranks - 1 + more) * (double)nbytes, 0};
}
