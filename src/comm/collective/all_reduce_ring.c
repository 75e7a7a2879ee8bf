/* all_reduce, ring: each slice goes round the ring once, added to by every rank, and round again as it is.
 *
 *     slice j   j+1 ──> j+2 ──> ... ──> j          reduce_scatter ring, then all_gather ring
 *               j ──> j+1 ──> ... ──> j-1
 *
 *     steps: 2 (n - 1) per window of 1 MiB of accumulators
 *     messages: 2 (n - 1) per rank and window (at least one), of the slices of it that the rank does not keep:
 *     (A + N) (n - 1) / n bytes
 *
 * Floats are added in another order than the canonical one (see reduce_scatter_ring.c): the same bits on all ranks, but
 * not for another size. Integers, min and max are exact.
 *
 * Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
 */
#include "comm/collective/collective.h"

lks_status lksi_all_reduce_ring(lks_group *group, const lksi_call *call) {
    return lksi_all_reduce_by(group, call, lksi_reduce_blocks_ring, lksi_gather_blocks_ring);
}

lksi_cost lksi_all_reduce_ring_cost(int n_ranks, size_t nbytes) {
    double n_windows = (double)lksi_piece_count(nbytes, LKSI_WINDOW_NBYTES);
    return (lksi_cost){2 * (n_ranks - 1) * n_windows, 2.0 * (n_ranks - 1) / n_ranks * (double)nbytes,
                       (3.0 * (n_ranks - 1) + 2) / n_ranks * (double)nbytes};
}
