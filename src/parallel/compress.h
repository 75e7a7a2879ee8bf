/* Gradient compression: the bucketed strategy's sum over ranks, by fewer bytes and approximately. What the kinds are
 * and what they keep stands in lockstep/parallel.h. */
#ifndef LKSI_COMPRESS_H
#define LKSI_COMPRESS_H

#include "graph/graph.h"

#include <lockstep/parallel.h>

/* What was asked for, of gradients of `type`. Errors: LKS_ERR_ARGUMENT: an option; LKS_ERR_UNSUPPORTED: the type. */
lks_status lksi_compression_check(const lks_compression *compression, lks_type type);
/* PowerSGD's r, the default filled in; 0 of the other kinds. */
int lksi_compression_rank(const lks_compression *compression);
/* Whether it works on all gradients at once: there is then one bucket. */
bool lksi_compression_wants_whole(const lks_compression *compression);

typedef struct lksi_compressor lksi_compressor;

/* `compression` is good, and the same on all ranks. `group` and `store` must outlive it. Not collective. Errors:
 * LKS_ERR_MEMORY. */
lks_status lksi_compressor_create(lksi_compressor **compressor, lks_group *group, lks_store *store,
                                  const lks_compression *compression);
void lksi_compressor_destroy(lksi_compressor *compressor); /* accepts NULL */
/* As it was created: what this rank holds back belongs to steps that are given up. Not collective. */
void lksi_compressor_reset(lksi_compressor *compressor);

/* Bytes that it keeps on this rank. */
size_t lksi_compressor_nbytes(const lksi_compressor *compressor);

/* Makes elements [begin, begin + count) of the store's gradients their sum over all ranks. Collective; ranges may
 * change from step to step, the same on all ranks. The first call of the largest range allocates. */
lks_status lksi_compressor_reduce(lksi_compressor *compressor, size_t begin, size_t count);

#endif
