/* How a global batch is cut into grains.
 *
 *     5 samples, 8 grains    | |0| |1|2| |3|4|
 *     1 rank                  0 0 0 0 0 0 0 0
 *     2 ranks                 0 0 0 0 1 1 1 1
 *     4 ranks                 0 0 1 1 2 2 3 3
 */
#include "data/grains.h"

lks_status lksi_grains_check(int64_t grains, int64_t n_ranks) {
    if (grains == 0) return LKS_OK;
    if (grains < 0 || grains > LKSI_MAX_GRAINS || (grains & (grains - 1)) != 0)
        return lksi_error(LKS_ERR_ARGUMENT, "grains %lld is not a power of two in 1..%d", (long long)grains,
                          (int)LKSI_MAX_GRAINS);
    if (grains % n_ranks == 0) return LKS_OK;
    return lksi_error(LKS_ERR_ARGUMENT, "grains %lld cannot be divided equally among %lld ranks", (long long)grains,
                      (long long)n_ranks);
}

/* Computes grain * count / grains, rounded down, without forming the product, which may overflow. */
int64_t lksi_grain_begin(int64_t grain, int64_t grains, int64_t count) {
    return grain * (count / grains) + grain * (count % grains) / grains;
}

void lksi_grains_of_rank(int64_t grains, int64_t rank, int64_t n_ranks, int64_t count, int64_t *begin, int64_t *end) {
    int64_t each = grains / n_ranks;
    *begin = lksi_grain_begin(rank * each, grains, count);
    *end = lksi_grain_begin((rank + 1) * each, grains, count);
}
