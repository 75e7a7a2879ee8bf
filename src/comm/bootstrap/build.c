#include "comm/bootstrap/build.h"

#include "comm/transport/segment/control.h"

#include <source_hash.h> /* made by cmake/source_hash.cmake */
#include <string.h>

void lksi_build_fill(lksi_build *build) {
    memset(build, 0, sizeof *build);
    snprintf(build->version, sizeof build->version, "%s", lks_version());
    build->source = LKSI_SOURCE_HASH;
}

lks_status lksi_build_check(const lksi_build *build, int rank, const char *host, int leader) {
    lksi_build mine;
    char my_host[LKSI_HOST_NBYTES], theirs[sizeof build->version];
    lksi_build_fill(&mine);
    lksi_host_name(my_host, sizeof my_host);
    memcpy(theirs, build->version, sizeof theirs);
    theirs[sizeof theirs - 1] = '\0';
    if (strcmp(theirs, mine.version) != 0)
        return lksi_error(LKS_ERR_MISMATCH, "lks_init: rank %d on host %s runs lockstep %s, rank %d on host %s %s",
                          rank, host, theirs, leader, my_host, mine.version);
    if (build->source != mine.source)
        return lksi_error(
            LKS_ERR_MISMATCH,
            "lks_init: rank %d on host %s runs another build of lockstep %s than rank %d on host %s: they are of "
            "different sources",
            rank, host, theirs, leader, my_host);
    return LKS_OK;
}
