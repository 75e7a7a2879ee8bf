/* Rank 0's side of the rendezvous, and what both sides say. */
#ifndef LKSI_STORE_H
#define LKSI_STORE_H

#include "comm/bootstrap/build.h"
#include "comm/bootstrap/rendezvous.h"

/* Proven by the handshake: who comes. It and the verdict are the same in every version of the library, so that two
 * versions can say which they are. */
typedef struct lksi_rendezvous_hello {
    uint64_t magic;
    lksi_build build;
    int32_t rank, size;
    char host[LKSI_HOST_NBYTES];
    char transport[7]; /* of lksi_environment */
    unsigned char unused[9];
} lksi_rendezvous_hello;
_Static_assert(sizeof(lksi_rendezvous_hello) == 128, "a hello has this length in every version");
#define LKSI_RENDEZVOUS_MAGIC UINT64_C(0x4c4f434b52454e44) /* "LOCKREND" */

/* How it ended; where it is LKS_OK, the members follow. */
typedef struct lksi_verdict {
    int32_t status;
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_verdict;

/* A rank's verdict comes at rank 0's deadline, which may be a little after its own. */
#define LKSI_VERDICT_GRACE_NS (INT64_C(900) * 1000 * 1000)

/* Serves `listener` until all ranks have come and were answered; then their connections are in `connections` and their
 * records in `members`. On failure those who had come have heard why, and all connections are closed. Where rank 0 has
 * failed `before`, with the error that is the thread's last, that is what all hear. */
lks_status lksi_store_serve(int listener, const lksi_environment *environment, const unsigned char key[LKSI_KEY_NBYTES],
                            lks_status before, int64_t deadline_ns, lksi_member *members, int *connections);

#endif
