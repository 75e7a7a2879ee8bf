/* Grains: the shards into which a global batch is cut for any number of ranks. */
#ifndef LKSI_GRAINS_H
#define LKSI_GRAINS_H

#include "base/base.h"

enum { LKSI_MAX_GRAINS = 1 << 20 };

/* LKS_ERR_ARGUMENT: `grains` is not a power of two, or `n_ranks` does not divide it. 0 (no grains) is always valid. */
lks_status lksi_grains_check(int64_t grains, int64_t n_ranks);
/* The first sample of grain `grain` in a batch of `count` samples. For `grain` == `grains` it is the end of the batch.
 */
int64_t lksi_grain_begin(int64_t grain, int64_t grains, int64_t count);
/* The samples of rank `rank` in such a batch, as one block. All ranks have the same number of grains. */
void lksi_grains_of_rank(int64_t grains, int64_t rank, int64_t n_ranks, int64_t count, int64_t *begin, int64_t *end);

#endif
