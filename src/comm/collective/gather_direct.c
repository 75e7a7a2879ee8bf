/* gather and gatherv, direct: the root reads every rank's block directly from its memory.
 *
 *     rank 1 ──> line, staging area or symmetric buffer ──> root      blocks of N bytes, chunks of S
 *     rank 2 ──>                                        ──> root
 *
 *     up to 1 KiB             the lines carry them              steps: 1
 *     symmetric everywhere    the root reads, then a barrier    steps: 2          bytes: N (n - 1) read by the root
 *     2 processes, 8 KiB on   the root reads the other's        steps: 2          bytes: N read by the root
 *                             buffer, then a barrier
 *     otherwise               each stages a chunk, the root     steps: ceil(N/S)  bytes: N written per rank, N (n - 1)
 *                             copies all while the next comes                     read by the root
 *
 * Above 1 KiB all data is staged if that is faster (collective.h, lksi_place_begin).
 *
 * Over messages it is gather naive.
 */
#include "comm/collective/collective.h"

lks_status lksi_gather_direct(lks_group *group, const lksi_call *call) {
    lksi_move move = {
        .in = call->in, .out = call->out, .sources = LKSI_EVERYONE, .readers = LKSI_ROOT, .is_placed = true};
    return lksi_move_blocks(group, call, &move);
}
