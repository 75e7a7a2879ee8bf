/* Rank 0's side of the rendezvous, and the messages of both sides. */
#ifndef LKSI_STORE_H
#define LKSI_STORE_H

#include "comm/bootstrap/build.h"
#include "comm/bootstrap/rendezvous.h"

/* Who connects. The handshake proves it. It and the verdict have the same layout in every version of the library, so
 * that two versions can report each other. */
typedef struct lksi_rendezvous_hello {
    uint64_t magic;
    lksi_build build;
    int32_t rank, size;
    char host[LKSI_HOST_NBYTES];
    char transport[7]; /* lksi_environment.transport */
    unsigned char unused[9];
} lksi_rendezvous_hello;
_Static_assert(sizeof(lksi_rendezvous_hello) == 128, "a hello has this length in every version");
#define LKSI_RENDEZVOUS_MAGIC UINT64_C(0x4c4f434b52454e44) /* "LOCKREND" */

/* The result of the rendezvous. If it is LKS_OK, the members follow. */
typedef struct lksi_verdict {
    int32_t status;
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_verdict;

/* A rank receives its verdict at rank 0's deadline, which may be a little later than its own. */
#define LKSI_VERDICT_GRACE_NS (INT64_C(900) * 1000 * 1000)

/* Serves `listener` until all ranks have arrived and were answered, and hands out the key at `key_listener` (-1:
 * nowhere). Then `connections` and `members` are filled in. On failure, the ranks that had arrived have been told why,
 * and all connections are closed. If rank 0 has failed `before`, with the thread's last error, all ranks are told that
 * error. */
lks_status lksi_store_serve(int listener, int key_listener, const lksi_environment *environment,
                            const unsigned char key[LKSI_KEY_NBYTES], lks_status before, int64_t deadline_ns,
                            lksi_member *members, int *connections);

#endif
