/* Gradient compression: the bucketed strategy's sum over ranks, by fewer bytes and approximately. What the kinds are
 * and what they keep stands in lockstep/parallel.h. */
#ifndef LKSI_COMPRESS_H
#define LKSI_COMPRESS_H

#include "graph/graph.h"

#include <lockstep/parallel.h>

typedef struct lksi_compressor lksi_compressor;

/* Collective: ranks compare kind and rank. `group` and `store` must outlive it. An error on one rank fails the group.
 * Errors: LKS_ERR_ARGUMENT: an option; LKS_ERR_UNSUPPORTED: gradients that are not f32, but for a hook of the user's;
 * LKS_ERR_MISMATCH. */
lks_status lksi_compressor_create(lksi_compressor **compressor, lks_group *group, lks_store *store,
                                  const lks_compression *compression);
void lksi_compressor_destroy(lksi_compressor *compressor); /* accepts NULL */

/* Whether it works on all gradients at once: there is then one bucket. */
bool lksi_compressor_wants_whole(const lksi_compressor *compressor);

/* Makes elements [begin, begin + count) of the store's gradients their sum over all ranks. Collective; ranges may
 * change from step to step, the same on all ranks. The first call of the largest range allocates. */
lks_status lksi_compressor_reduce(lksi_compressor *compressor, size_t begin, size_t count);

#endif
