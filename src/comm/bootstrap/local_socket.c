#define _GNU_SOURCE /* struct ucred, accept4 */
#include "comm/bootstrap/local_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* An abstract address: the first byte is 0, and the name ends at the address's length, not at a NUL. */
static socklen_t address_of(const char *name, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t nbytes = strlen(name);
    if (nbytes > sizeof address->sun_path - 1) nbytes = sizeof address->sun_path - 1;
    memcpy(address->sun_path + 1, name, nbytes);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + nbytes);
}

static int close_keeping_errno(int descriptor) {
    int saved = errno;
    close(descriptor);
    errno = saved;
    return -1;
}

int lksi_local_listen(const char *name) {
    struct sockaddr_un address;
    socklen_t nbytes = address_of(name, &address);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0) return -1;
    if (bind(listener, (struct sockaddr *)&address, nbytes) != 0 || listen(listener, SOMAXCONN) != 0)
        return close_keeping_errno(listener);
    return listener;
}

int lksi_local_accept(int listener) { return accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK); }

int lksi_local_connect(const char *name) {
    struct sockaddr_un address;
    socklen_t nbytes = address_of(name, &address);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0) return -1;
    if (connect(connection, (struct sockaddr *)&address, nbytes) != 0) return close_keeping_errno(connection);
    return connection;
}

bool lksi_is_ours(int connection) {
    struct ucred peer;
    socklen_t nbytes = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &nbytes) == 0 && peer.uid == getuid();
}
