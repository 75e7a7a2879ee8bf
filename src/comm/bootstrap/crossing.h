/* Detects ranks that look for each other in different places. Some meet over TCP at MASTER_ADDR:MASTER_PORT and others
 * at the local socket of their host, because they were given different transports, sizes or host ids. Or they use two
 * sockets, because the socket's name depends on the job's key. A rank that has not found the others also tries the
 * other places:
 *
 *     rank 0 is         rank r comes
 *     at its socket     over TCP           rank r connects to the socket, and is told why it cannot join
 *     at the store      over the socket    rank 0 also listens at the socket, and tells rank r why it cannot join
 *     anywhere          with another key   after some seconds both use a socket whose name does not depend on the key
 *
 * No rank joins this way. A rank that rank 0 meets there is a mismatch.
 */
#ifndef LKSI_CROSSING_H
#define LKSI_CROSSING_H

#include "comm/bootstrap/handshake.h"

enum { LKSI_CROSSING_JOB, LKSI_CROSSING_ANY_KEY, LKSI_N_CROSSINGS };

typedef struct lksi_crossing {
    const lksi_environment *environment;
    bool is_over_tcp;          /* this rank meets the others over TCP */
    int64_t began_ns, next_ns; /* when rank r tries next */
    struct {
        char name[LKSI_SOCKET_NAME_NBYTES];
        int listener; /* of rank 0; -1: not open */
    } places[LKSI_N_CROSSINGS];
    int n_refused;     /* ranks that rank 0 has turned away */
    lks_status status; /* what rank 0 has told rank r; LKS_OK: nothing yet */
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_crossing;

lks_status lksi_crossing_init(lksi_crossing *crossing, const lksi_environment *environment, bool is_over_tcp);
void lksi_crossing_close(lksi_crossing *crossing);

/* Returns LKS_ERR_MISMATCH if the sender of the hello meets the others in another way than this rank. */
lks_status lksi_crossing_check(const lksi_environment *environment, bool is_over_tcp, const lksi_hello *hello);

/* For rank r, while it has not found rank 0. Returns true if rank 0 has refused this rank: `status` and `text` say why.
 * Its type is that of lksi_dial's `is_given_up`. */
bool lksi_crossing_knock(void *crossing);

/* For rank 0, called periodically while it waits. A rank that has come is told `status` with the text of the current
 * error. If `status` is LKS_OK, it is told the mismatch, which is returned. */
lks_status lksi_crossing_step(lksi_crossing *crossing, lks_status status);

#endif
