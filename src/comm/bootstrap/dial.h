/* A connection to another rank, made and proven under a deadline. */
#ifndef LKSI_DIAL_H
#define LKSI_DIAL_H

#include "comm/bootstrap/auth.h"

/* *connection is non-blocking, TCP_NODELAY and closed on exec; the other side has proven to know the key, and knows
 * the hello.
 * With is_retrying the other side may not be up yet: refused and broken connections are tried again until the
 * deadline. One that answers wrongly (another key, another version, no handshake) may be a former job on its way out,
 * and is believed after five seconds. Without it, refused is refused; but an acceptor may have had to make room in the
 * middle of a handshake, so that is tried again for five seconds.
 * `is_given_up`, which may be NULL, is asked about ten times a second.
 * Errors, each naming the address and what happened: LKS_ERR_PEER (refused, ended, given up), LKS_ERR_TIMEOUT (no
 * answer; still refused), LKS_ERR_MISMATCH (wrong answers), LKS_ERR_SYSTEM. */
lks_status lksi_dial(const lksi_address *to, const unsigned char key[LKSI_KEY_NBYTES], const void *hello,
                     size_t hello_nbytes, int64_t deadline_ns, bool is_retrying, bool (*is_given_up)(void *),
                     void *argument, int *connection);

#endif
