/* scatter and scatterv, direct: every rank reads its block directly from the root's memory.
 *
 *     root ──> line, staging area or symmetric buffer ──> rank 1      blocks of N bytes
 *                                                     ──> rank 2
 *
 *     1 KiB in all            the root's line carries them         steps: 1
 *     symmetric at the root   all read their own, then a barrier   steps: 2    bytes: N read per rank
 *     processes, 8 KiB on     all read their own of the root's     steps: 2    bytes: N read per rank
 *                             buffer, then a barrier
 *     otherwise               the root stages a piece of every     steps: ceil(N (n - 1) / S)
 *                             block, each rank copies its own      bytes: N (n - 1) written by the root,
 *                                                                         N read per rank
 *
 * Above 1 KiB all data is staged if that is faster (collective.h, lksi_place_begin).
 *
 * Over messages it is scatter naive.
 */
#include "comm/collective/collective.h"

lks_status lksi_scatter_direct(lks_group *group, const lksi_call *call) {
    lksi_move move = {
        .in = call->in, .out = call->out, .sources = LKSI_ROOT, .readers = LKSI_EVERYONE, .is_personal = true};
    return lksi_move_blocks(group, call, &move);
}
