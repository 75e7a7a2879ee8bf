/* Accepts connections on a listening socket from peers that prove that they know the job's key. It never blocks on a
 * single connection.
 *
 * Anyone may connect. A stranger occupies only one of a fixed number of places. If all places are taken, a silent
 * stranger is dropped for the next connection. Every handshake ends after ten seconds. All events are in one
 * descriptor, so that one thread can poll it together with other descriptors.
 */
#ifndef LKSI_ACCEPTOR_H
#define LKSI_ACCEPTOR_H

#include "comm/bootstrap/auth.h"

typedef struct lksi_acceptor lksi_acceptor;

/* Called for a connection whose `hello` is proven. The connection is non-blocking, TCP_NODELAY and close-on-exec. The
 * callee owns it. The callee must not destroy the acceptor. */
typedef void (*lksi_accepted)(void *argument, int connection, const void *hello);

/* The caller owns `listener`, which must outlive the acceptor. It is made non-blocking. */
lks_status lksi_acceptor_create(lksi_acceptor **acceptor, int listener, const unsigned char key[LKSI_KEY_NBYTES],
                                size_t hello_nbytes, lksi_accepted accepted, void *argument);
/* From now on the key is also handed out at `listener` (local_key.h). The caller owns it, and it must outlive the
 * acceptor. */
void lksi_acceptor_hand_out_key(lksi_acceptor *acceptor, int listener);
/* Whether a peer has tried with another key for several seconds. This is what a rank does whose LOCKSTEP_JOB_KEY is
 * wrong. A stranger can do it, too, so it is a reason for a warning and not for an error. `peer` gets the address of
 * the last peer that tried, or "". */
bool lksi_acceptor_hears_other_key(const lksi_acceptor *acceptor, char peer[LKSI_ADDRESS_TEXT_NBYTES]);
/* Returns LKS_ERR_SYSTEM if a connection has waited for a second because this process is out of descriptors, and no
 * unproven connection holds one. The waiting connection may be a stranger's, so this is an error only for a caller that
 * expects another connection. Any thread may call it. */
lks_status lksi_acceptor_check(const lksi_acceptor *acceptor);
/* Becomes readable when lksi_acceptor_step has something to do. */
int lksi_acceptor_descriptor(const lksi_acceptor *acceptor);
/* Accepts connections, continues all handshakes without blocking, and calls `accepted` for each that is done. */
void lksi_acceptor_step(lksi_acceptor *acceptor);
void lksi_acceptor_destroy(lksi_acceptor *acceptor); /* closes unfinished connections; accepts NULL */
void lksi_acceptor_forget(lksi_acceptor *acceptor);  /* in a forked child: frees the memory only; accepts NULL */

#endif
