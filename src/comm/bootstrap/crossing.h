/* Ranks that would look for each other in two places: some over TCP at MASTER_ADDR:MASTER_PORT, some at the local
 * socket of their host, because the transports, sizes or host ids that they were given differ; or at two sockets, whose
 * names hold the job's key. Whoever has not found the others looks at the other places, too:
 *
 *     rank 0 is        rank r comes
 *     at its socket    over TCP           rank r knocks at the socket, and hears why it cannot come in
 *     at the store     over the socket    rank 0 listens there as well, and says why it cannot
 *     anywhere         with another key   after some seconds both look at a socket whose name holds no key
 *
 * No rank comes in so: whom rank 0 meets there is a mismatch.
 */
#ifndef LKSI_CROSSING_H
#define LKSI_CROSSING_H

#include "comm/bootstrap/handshake.h"

enum { LKSI_CROSSING_JOB, LKSI_CROSSING_ANY_KEY, LKSI_N_CROSSINGS };

typedef struct lksi_crossing {
    const lksi_environment *environment;
    bool is_over_tcp;          /* this rank meets the others there */
    int64_t began_ns, next_ns; /* when rank r knocks next */
    struct {
        char name[LKSI_SOCKET_NAME_NBYTES];
        int listener; /* rank 0's; -1: not open */
    } places[LKSI_N_CROSSINGS];
    int n_refused;     /* by rank 0 */
    lks_status status; /* what rank r has heard; LKS_OK: nothing */
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_crossing;

lks_status lksi_crossing_init(lksi_crossing *crossing, const lksi_environment *environment, bool is_over_tcp);
void lksi_crossing_close(lksi_crossing *crossing);

/* LKS_ERR_MISMATCH where a hello comes from a rank that meets the other way than this one does. */
lks_status lksi_crossing_check(const lksi_environment *environment, bool is_over_tcp, const lksi_hello *hello);

/* Rank r's, while it does not find rank 0: true where that has refused this rank; `status` and `text` say why. As
 * lksi_dial asks. */
bool lksi_crossing_knock(void *crossing);

/* Rank 0's, now and then while it waits. Whoever has come hears `status` with the current error's text, or where that
 * is LKS_OK the mismatch, which is returned. */
lks_status lksi_crossing_step(lksi_crossing *crossing, lks_status status);

#endif
