/* all_reduce, halving_doubling: reduce_scatter by halving, then all_gather by doubling.
 *
 *     0<─>1   2<─>3          halving: half of the slices, then a quarter, and so on, to the rank that keeps them
 *     0<───>2 1<───>3
 *     0<─>1   2<─>3          doubling: the finished slices
 *     0<───>2 1<───>3
 *
 *     steps: 2 log2 n per window of 1 MiB of accumulators if n is a power of two
 *     messages: per window (at least one) those of reduce_scatter halving and of all_gather butterfly, with slices of
 *     1/n of the window as blocks: (A + N) (n - 1) / n bytes per rank if n is a power of two
 *
 * Source: Rabenseifner, "Optimization of collective reduction operations", 2004. The order of the rounds differs from
 * the paper.
 */
#include "comm/collective/collective.h"

lks_status lksi_all_reduce_halving_doubling(lks_group *group, const lksi_call *call) {
    return lksi_all_reduce_by(group, call, lksi_reduce_blocks_halving, lksi_gather_blocks_butterfly);
}

lksi_cost lksi_all_reduce_halving_doubling_cost(int n_ranks, size_t nbytes) {
    bool is_power = (n_ranks & (n_ranks - 1)) == 0;
    double n_windows = (double)lksi_piece_count(nbytes, LKSI_WINDOW_NBYTES);
    double rounds = is_power ? 2 * lksi_log2(n_ranks) : 2 * lksi_log2(n_ranks) + n_ranks;
    double others = (double)(n_ranks - 1) / n_ranks; /* fraction of the slices */
    return (lksi_cost){rounds * n_windows, (is_power ? 2 : 4) * others * (double)nbytes,
                       (2 + 5 * others + 2.0 / n_ranks) * (double)nbytes};
}
