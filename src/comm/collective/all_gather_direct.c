/* all_gather and all_gatherv, direct: every rank reads every block directly from its owner's memory.
 *
 *     rank 0 ─┐                                           ┌─> rank 0      blocks of N bytes, chunks of S
 *     rank 1 ─┼─> lines, staging or symmetric buffers ────┼─> rank 1
 *     rank 2 ─┘                                           └─> rank 2
 *
 *     up to 1 KiB             the lines carry them             steps: 1
 *     symmetric everywhere    all read, then a barrier         steps: 2          bytes: N (n - 1) read per rank
 *     2 processes, 8 KiB on   each reads the other's buffer,   steps: 2          bytes: N read per rank
 *                             then a barrier
 *     otherwise               each stages a chunk and copies   steps: ceil(N/S)  bytes: N written, N (n - 1) read per
 *                             those of the others                                rank
 *
 * Above 1 KiB all data is staged if that is faster (collective.h, lksi_place_begin).
 *
 * Over messages: every rank sends its block to every other.          steps: n - 1
 *                                                                    messages: n - 1 per rank, of its block
 */
#include "comm/collective/collective.h"

lks_status lksi_all_gather_direct(lks_group *group, const lksi_call *call) {
    lksi_move move = {
        .in = call->in, .out = call->out, .sources = LKSI_EVERYONE, .readers = LKSI_EVERYONE, .is_placed = true};
    return lksi_move_blocks(group, call, &move);
}

lks_status lksi_gather_blocks_direct(lks_group *group, const lksi_call *call, void *buffer,
                                     const lksi_block_layout *layout) {
    for (int distance = 1; distance < group->size; distance++) {
        int to = lksi_rotate(group, group->rank, distance), from = lksi_rotate(group, group->rank, -distance);
        lksi_block_exchange blocks = {to, group->rank, 1, from, from, 1};
        LKS_TRY(lksi_exchange_blocks(group, call, buffer, layout, &blocks));
    }
    return LKS_OK;
}

lks_status lksi_all_gather_direct_remote(lks_group *group, const lksi_call *call) {
    return lksi_all_gather_by(group, call, lksi_gather_blocks_direct);
}

lksi_cost lksi_all_gather_direct_cost(int n_ranks, size_t nbytes) {
    return (lksi_cost){n_ranks - 1, (double)(n_ranks - 1) * (double)nbytes, 0};
}
