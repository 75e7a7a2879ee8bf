/* all_to_all and all_to_allv, pairwise: everyone meets everyone, a pair at a time; in round k ranks r and k - r (mod n)
 * swap blocks.
 *
 *     4 ranks   k=0: 1<─>3        k=1: 0<─>1 2<─>3        k=2: 0<─>2        k=3: 0<─>3 1<─>2
 *
 *     steps: n - 1 at every rank, in n rounds
 *     messages: n - 1 per rank and piece of P = 256 KiB of a block (at least one), N bytes to each
 *
 * A block of all_to_all goes to the rank whose block comes to its place, so it also works in place, a piece being put
 * aside. Where two blocks of a pair differ in length, both ranks go on to the end of the longer one.
 */
#include "comm/collective/collective.h"

/* What is left of a block from `first` on, a piece at most. */
static size_t piece(lksi_extent block, size_t first) {
    return first < block.nbytes ? lksi_least(block.nbytes - first, LKSI_PIECE_NBYTES) : 0;
}

static lks_status swap(lks_group *group, const lksi_call *call, int peer, lksi_extent sent, lksi_extent received,
                       void *aside) {
    size_t first = 0, longer = sent.nbytes > received.nbytes ? sent.nbytes : received.nbytes;
    do {
        size_t n_out = piece(sent, first), n_in = piece(received, first);
        const unsigned char *in = lksi_at(call->in, sent.begin + first);
        unsigned char *out = lksi_at(call->out, received.begin + first);
        if (in == out) {
            lksi_copy(aside, in, n_out);
            in = aside;
        }
        LKS_TRY(lksi_step_exchange(group, call, peer, in, n_out, peer, out, n_in));
        first += LKSI_PIECE_NBYTES;
    } while (first < longer);
    return LKS_OK;
}

lks_status lksi_all_to_all_pairwise(lks_group *group, const lksi_call *call) {
    unsigned char *aside;
    LKS_TRY(lksi_group_scratch(group, LKSI_PIECE_NBYTES, &aside));
    lksi_block_layout in = lksi_block_layout_of(group, call), out = lksi_block_layout_of_out(group, call);
    for (int round = 0; round < group->size; round++) {
        int peer = lksi_rotate(group, round, -group->rank);
        lksi_extent sent = lksi_blocks(&in, peer, 1), received = lksi_blocks(&out, peer, 1);
        if (peer != group->rank)
            LKS_TRY(swap(group, call, peer, sent, received, aside));
        else
            lksi_copy_unless_same(lksi_at(call->out, received.begin), lksi_at(call->in, sent.begin), sent.nbytes);
    }
    return LKS_OK;
}

lksi_cost lksi_all_to_all_pairwise_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){n_ranks - 1, (double)(n_ranks - 1) * (double)nbytes, 0};
}
