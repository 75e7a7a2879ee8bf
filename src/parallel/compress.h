/* Gradient compression: an approximation of the bucketed strategy's sum over ranks that sends fewer bytes. The kinds
 * and their residuals are described in lockstep/parallel.h. */
#ifndef LKSI_COMPRESS_H
#define LKSI_COMPRESS_H

#include "graph/graph.h"

#include <lockstep/parallel.h>

/* Checks the options for gradients of `type`. LKS_ERR_ARGUMENT: an invalid option. LKS_ERR_UNSUPPORTED: the type. */
lks_status lksi_compression_check(const lks_compression *compression, lks_type type);
/* PowerSGD's r, with the default filled in. 0 for the other kinds. */
int lksi_compression_rank(const lks_compression *compression);
/* Whether the kind works on all gradients at once, in one bucket. */
bool lksi_compression_wants_whole(const lks_compression *compression);

typedef struct lksi_compressor lksi_compressor;

/* `compression` must be valid and the same on all ranks. `group` and `store` must outlive the compressor. Not
 * collective. Errors: LKS_ERR_MEMORY. */
lks_status lksi_compressor_create(lksi_compressor **compressor, lks_group *group, lks_store *store,
                                  const lks_compression *compression);
void lksi_compressor_destroy(lksi_compressor *compressor); /* accepts NULL */
/* Resets it to its initial state. The residual is discarded, because its steps are abandoned. Not collective. */
void lksi_compressor_reset(lksi_compressor *compressor);

/* Bytes that it allocates on this rank. */
size_t lksi_compressor_nbytes(const lksi_compressor *compressor);

/* Replaces elements [begin, begin + count) of the store's gradients by their sum over all ranks. Collective. The ranges
 * are the same on all ranks, but may change from step to step. A call with a new largest range allocates. */
lks_status lksi_compressor_reduce(lksi_compressor *compressor, size_t begin, size_t count);
/* Adopts the residuals and PowerSGD's Q of a step that takes place. The step must have reduced each element exactly
 * once. Without this call the next step begins with the same ones as this one. Not collective. */
void lksi_compressor_adopt(lksi_compressor *compressor);

#endif
