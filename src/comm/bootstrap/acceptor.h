/* Lets in whoever proves to know the job's key: serves a listening socket without ever waiting for one connection.
 *
 * Anyone may connect. A stranger only takes one of the places; one that stays silent makes room for the next, and
 * every handshake ends after ten seconds. All that it waits for is in one descriptor, so that one thread can poll it
 * with other things.
 */
#ifndef LKSI_ACCEPTOR_H
#define LKSI_ACCEPTOR_H

#include "comm/bootstrap/auth.h"

typedef struct lksi_acceptor lksi_acceptor;

/* A connection that has proven its `hello`: non-blocking, TCP_NODELAY, closed on exec. It is the callee's now,
 * who may not destroy the acceptor meanwhile. */
typedef void (*lksi_accepted)(void *argument, int connection, const void *hello);

/* `listener` stays the caller's, is made non-blocking, and outlives the acceptor. */
lks_status lksi_acceptor_create(lksi_acceptor **acceptor, int listener, const unsigned char key[LKSI_KEY_NBYTES],
                                size_t hello_nbytes, lksi_accepted accepted, void *argument);
/* Whether somebody has tried with another key for seconds on end, as a rank does whose LOCKSTEP_JOB_KEY is mistyped,
 * and has had the time to hear it; a stranger in passing has not. `peer` gets the address of who has tried last, ""
 * where nobody has. */
bool lksi_acceptor_hears_other_key(const lksi_acceptor *acceptor, char peer[LKSI_ADDRESS_TEXT_NBYTES]);
/* LKS_ERR_SYSTEM where a connection has waited for a second because this process is out of descriptors, and none of
 * them is held by somebody who has yet to prove the key. It may be a stranger's: an error only for who needs one more.
 * For any thread. */
lks_status lksi_acceptor_check(const lksi_acceptor *acceptor);
/* Readable when lksi_acceptor_step has something to do. */
int lksi_acceptor_descriptor(const lksi_acceptor *acceptor);
/* Accepts, goes on with all handshakes as far as they can, and calls `accepted` for each that is done. */
void lksi_acceptor_step(lksi_acceptor *acceptor);
void lksi_acceptor_destroy(lksi_acceptor *acceptor); /* drops what is not done; accepts NULL */

#endif
