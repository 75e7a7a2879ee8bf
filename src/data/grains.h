/* Grains: the shards that a global batch is cut into whatever the number of ranks is. */
#ifndef LKSI_GRAINS_H
#define LKSI_GRAINS_H

#include "base/base.h"

enum { LKSI_MAX_GRAINS = 1 << 20 };

/* LKS_ERR_ARGUMENT where `n_ranks` ranks cannot compute `grains` grains: they are a power of two, which n_ranks
 * divides. 0, none, is possible with any number. */
lks_status lksi_grains_check(int64_t grains, int64_t n_ranks);
/* The first sample of grain `grain` of a batch of `count` samples; grain `grains` begins at its end. */
int64_t lksi_grain_begin(int64_t grain, int64_t grains, int64_t count);
/* Which samples of such a batch are rank `rank`'s, as one block: those of as many grains as each other rank has. */
void lksi_grains_of_rank(int64_t grains, int64_t rank, int64_t n_ranks, int64_t count, int64_t *begin, int64_t *end);

#endif
