/* Connects to another rank and authenticates the connection, with a deadline. */
#ifndef LKSI_DIAL_H
#define LKSI_DIAL_H

#include "comm/bootstrap/auth.h"

/* *connection is non-blocking, TCP_NODELAY and close-on-exec. The peer has proven that it knows the key, and has
 * received the hello. Each attempt uses what `key` then holds.
 *
 * is_retrying: the peer may not be up yet. Refused and broken connections are retried until the deadline. A wrong
 * answer (another key, another version, no handshake) may come from an earlier job that is about to end. It is accepted
 * as final after five seconds.
 *
 * Not is_retrying: a refused connection is an error at once. A connection that breaks during the handshake is retried
 * for five seconds, because the acceptor may have dropped it to make room.
 *
 * `is_given_up` may be NULL. It is called about ten times per second.
 *
 * Errors: the text names the address and what happened. LKS_ERR_PEER (refused, closed, given up), LKS_ERR_TIMEOUT (no
 * answer, still refused), LKS_ERR_MISMATCH (wrong answers), LKS_ERR_SYSTEM. */
lks_status lksi_dial(const lksi_address *to, const unsigned char key[LKSI_KEY_NBYTES], const void *hello,
                     size_t hello_nbytes, int64_t deadline_ns, bool is_retrying, bool (*is_given_up)(void *),
                     void *argument, int *connection);

#endif
