/* Ranks that would look for each other in two places: some over TCP at MASTER_ADDR:MASTER_PORT, some at the local
 * socket of their host, because the transports, sizes or host ids that they were given differ. Whoever meets over TCP
 * looks at the other place, too:
 *
 *     rank 0 is        rank r comes
 *     at its socket    over TCP           rank r knocks at the socket, and hears why it cannot come in
 *     at the store     over the socket    rank 0 listens there as well, and says why it cannot
 */
#ifndef LKSI_CROSSING_H
#define LKSI_CROSSING_H

#include "comm/bootstrap/handshake.h"

typedef struct lksi_crossing {
    const lksi_environment *environment;
    char name[LKSI_SOCKET_NAME_NBYTES]; /* of the local socket */
    int listener;                       /* rank 0's; -1: not open */
    int n_refused;                      /* by rank 0 */
    lks_status status;                  /* what rank r has heard; LKS_OK: nothing */
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_crossing;

lks_status lksi_crossing_init(lksi_crossing *crossing, const lksi_environment *environment);
void lksi_crossing_close(lksi_crossing *crossing);

/* LKS_ERR_MISMATCH where a hello comes from a rank that meets the other way than this one does. */
lks_status lksi_crossing_check(const lksi_environment *environment, bool is_over_tcp, const lksi_hello *hello);

/* Rank r's, for lksi_dial: true where rank 0 is at its socket and has refused this rank; `status` and `text` say why.
 */
bool lksi_crossing_knock(void *crossing);

/* Rank 0's, now and then while it serves the store, or when `listener` is readable. Whoever has come hears `status`
 * with the current error's text, or where that is LKS_OK the mismatch, which is returned. */
lks_status lksi_crossing_step(lksi_crossing *crossing, lks_status status);

#endif
