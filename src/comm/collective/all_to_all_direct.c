/* all_to_all, direct: every rank reads its blocks directly from the other ranks' memory.
 *
 *     rank 0 ─┐                                           ┌─> rank 0      blocks of N bytes
 *     rank 1 ─┼─> lines, staging or symmetric buffers ────┼─> rank 1
 *     rank 2 ─┘                                           └─> rank 2
 *
 *     1 KiB in all              the lines carry them           steps: 1
 *     symmetric, out of place   all read, then a barrier       steps: 2      bytes: N (n - 1) read per rank
 *     processes, 8 KiB on,      all read the others' buffers,  steps: 2    bytes: N (n - 1) read per rank
 *     out of place              then a barrier
 *     otherwise                 each stages a piece of every   steps: ceil(N (n - 1) / S)
 *                               block, each copies its own     bytes: N (n - 1) written and read per rank
 *
 * Above 1 KiB all data is staged if that is faster (collective.h, lksi_place_begin).
 *
 * Over messages it is all_to_all pairwise.
 */
#include "comm/collective/collective.h"

lks_status lksi_all_to_all_direct(lks_group *group, const lksi_call *call) {
    lksi_move move = {.in = call->in,
                      .out = call->out,
                      .sources = LKSI_EVERYONE,
                      .readers = LKSI_EVERYONE,
                      .is_personal = true,
                      .is_placed = true};
    return lksi_move_blocks(group, call, &move);
}
