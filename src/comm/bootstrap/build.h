/* Identifies the library that a rank runs. All ranks of a job must run the same, because they share memory and exchange
 * records. */
#ifndef LKSI_BUILD_H
#define LKSI_BUILD_H

#include "base/base.h"

/* Part of a rank's first message, at the same offset in every version. */
typedef struct lksi_build {
    char version[28]; /* lks_version */
    uint32_t source;  /* a hash of the source files */
} lksi_build;

void lksi_build_fill(lksi_build *build);
/* Returns LKS_ERR_MISMATCH if rank `rank` on `host` runs another library than rank `leader`, which is the calling
 * rank. */
lks_status lksi_build_check(const lksi_build *build, int rank, const char *host, int leader);

#endif
