/* Which library a rank runs. Ranks of one job share memory and send each other records, so they run the same. */
#ifndef LKSI_BUILD_H
#define LKSI_BUILD_H

#include "base/base.h"

/* Part of a rank's first words, where it stands in the same place in every version. */
typedef struct lksi_build {
    char version[28]; /* lks_version */
    uint32_t source;  /* a hash of what it was built of */
} lksi_build;

void lksi_build_fill(lksi_build *build);
/* LKS_ERR_MISMATCH where rank `rank` on `host` runs another library than rank `leader`, which is this one. */
lks_status lksi_build_check(const lksi_build *build, int rank, const char *host, int leader);

#endif
