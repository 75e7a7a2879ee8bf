/* all_to_all and all_to_allv, pairwise: every rank exchanges blocks with every other, one pair at a time. In round k
 * ranks r and k - r (mod n) swap blocks.
 *
 *     4 ranks   k=0: 1<─>3        k=1: 0<─>1 2<─>3        k=2: 0<─>2        k=3: 0<─>3 1<─>2
 *
 *     steps: n - 1 at every rank, in n rounds
 *     messages: n - 1 per rank and piece of P = 256 KiB of a block (at least one), N bytes to each
 *
 * In all_to_all the block for a peer lies at the offset at which the peer's block is received, so it also works in
 * place: each piece is copied aside first. A block of all_to_allv is one piece. Its message carries the whole length,
 * which the receiver compares with the expected one.
 */
#include "comm/collective/collective.h"

static lks_status swap(lks_group *group, const lksi_call *call, int peer, void *aside) {
    size_t first = 0, begin = (size_t)peer * call->nbytes;
    do {
        size_t nbytes = lksi_least(call->nbytes - first, LKSI_PIECE_NBYTES);
        const unsigned char *in = lksi_at(call->in, begin + first);
        unsigned char *out = lksi_at(call->out, begin + first);
        if (in == out) {
            lksi_copy(aside, in, nbytes);
            in = aside;
        }
        LKS_TRY(lksi_step_exchange(group, call, peer, in, nbytes, peer, out, nbytes));
        first += nbytes;
    } while (first < call->nbytes);
    return LKS_OK;
}

static lks_status swap_uneven(lks_group *group, const lksi_call *call, int peer, lksi_extent sent,
                              lksi_extent received) {
    return lksi_step_exchange(group, call, peer, lksi_at(call->in, sent.begin), sent.nbytes, peer,
                              lksi_at(call->out, received.begin), received.nbytes);
}

lks_status lksi_all_to_all_pairwise(lks_group *group, const lksi_call *call) {
    unsigned char *aside;
    LKS_TRY(lksi_group_scratch(group, LKSI_PIECE_NBYTES, &aside));
    lksi_block_layout in = lksi_block_layout_of(group, call), out = lksi_block_layout_of_out(group, call);
    for (int round = 0; round < group->size; round++) {
        int peer = lksi_rotate(group, round, -group->rank);
        lksi_extent sent = lksi_blocks(&in, peer, 1), received = lksi_blocks(&out, peer, 1);
        if (peer != group->rank && call->out_counts == NULL)
            LKS_TRY(swap(group, call, peer, aside));
        else if (peer != group->rank)
            LKS_TRY(swap_uneven(group, call, peer, sent, received));
        else
            lksi_copy_unless_same(lksi_at(call->out, received.begin), lksi_at(call->in, sent.begin), sent.nbytes);
    }
    return LKS_OK;
}

lksi_cost lksi_all_to_all_pairwise_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){n_ranks - 1, (double)(n_ranks - 1) * (double)nbytes, 0};
}
