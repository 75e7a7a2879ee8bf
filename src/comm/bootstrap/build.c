#include "comm/bootstrap/build.h"

#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/rendezvous.h"
#include "comm/bootstrap/star.h"

#include <string.h>

void lksi_build_fill(lksi_build *build) {
    const uint64_t layout[] = {LKSI_LAYOUT_VERSION, sizeof(lksi_hello),   sizeof(lksi_welcome),     sizeof(lksi_member),
                               sizeof(lksi_seat),   sizeof(lksi_control), sizeof(lksi_star_record), LKSI_N_POSTS};
    memset(build, 0, sizeof *build);
    snprintf(build->version, sizeof build->version, "%s", lks_version());
    build->layout = (uint32_t)lksi_hash64(LKSI_HASH_START, layout, sizeof layout);
}

lks_status lksi_build_check(const lksi_build *build, int rank, const char *host, int leader) {
    lksi_build mine;
    char my_host[LKSI_HOST_NBYTES], theirs[sizeof build->version];
    lksi_build_fill(&mine);
    lksi_host_name(my_host);
    memcpy(theirs, build->version, sizeof theirs);
    theirs[sizeof theirs - 1] = '\0';
    if (strcmp(theirs, mine.version) != 0)
        return lksi_error(LKS_ERR_MISMATCH, "lks_init: rank %d on host %s runs lockstep %s, rank %d on host %s %s",
                          rank, host, theirs, leader, my_host, mine.version);
    if (build->layout != mine.layout)
        return lksi_error(
            LKS_ERR_MISMATCH,
            "lks_init: rank %d on host %s runs another build of lockstep %s than rank %d on host %s: they "
            "would not understand each other",
            rank, host, theirs, leader, my_host);
    return LKS_OK;
}
