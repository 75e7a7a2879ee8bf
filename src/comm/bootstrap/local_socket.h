/* Local sockets with abstract names, and who is at the other end. */
#ifndef LKSI_LOCAL_SOCKET_H
#define LKSI_LOCAL_SOCKET_H

#include "base/base.h"

#define LKSI_HELLO_MAGIC UINT64_C(0x4c4f434b53544550) /* "LOCKSTEP" */

/* -1 with errno set. All are non-blocking and closed on exec. */
int lksi_local_listen(const char *name);
int lksi_local_connect(const char *name);
int lksi_local_accept(int listener);
/* Whether the process at the other end runs under our user. */
bool lksi_is_ours(int connection);

#endif
