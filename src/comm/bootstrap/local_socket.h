/* Local sockets with abstract names, and the credentials of the peer. */
#ifndef LKSI_LOCAL_SOCKET_H
#define LKSI_LOCAL_SOCKET_H

#include "base/base.h"

#define LKSI_HELLO_MAGIC UINT64_C(0x4c4f434b53544550) /* "LOCKSTEP" */

/* They return -1 and set errno on failure. All sockets are non-blocking and close-on-exec. */
int lksi_local_listen(const char *name);
int lksi_local_connect(const char *name);
int lksi_local_accept(int listener);
/* Whether the peer process runs under the same user. */
bool lksi_is_ours(int connection);

#endif
