/* all_reduce, ring: each slice goes round the ring twice. In the first round every rank adds its contribution, in the
 * second the result is copied.
 *
 *     slice j   j+1 ──> j+2 ──> ... ──> j          reduce_scatter ring, then all_gather ring
 *               j ──> j+1 ──> ... ──> j-1
 *
 *     steps: 2 (n - 1) per window of 1 MiB of accumulators
 *     messages: 2 (n - 1) per rank and window (at least one). Each carries a slice: (A + N) (n - 1) / n bytes together
 *
 * Floats are not added in the canonical order (see reduce_scatter_ring.c). All ranks get the same bits, but the bits
 * may differ for another count. Integers, min and max are exact.
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
