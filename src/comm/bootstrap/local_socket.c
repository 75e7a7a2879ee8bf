#define _GNU_SOURCE /* struct ucred, accept4 */
#include "comm/bootstrap/local_socket.h"

#include "comm/bootstrap/handshake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

lksi_meeting lksi_meeting_or_world(const lksi_environment *environment, const lksi_meeting *meeting) {
    if (meeting != NULL) return *meeting;
    return (lksi_meeting){
        .purpose = "lks_init", .is_world = true, .rank = environment->rank, .size = environment->size};
}

const char *lksi_meeting_hint(const lksi_meeting *meeting) {
    return meeting->is_world ? "; ranks of one host need the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT, "
                               "LOCKSTEP_JOB_KEY and transport, those of several LOCAL_RANK and LOCAL_WORLD_SIZE, too; "
                               "LOCKSTEP_HOST_ID is for all ranks or none"
                             : "";
}

bool lksi_meeting_is_slow(int64_t began_ns, bool *is_told) {
    static const int64_t slow_ns = INT64_C(10) * 1000 * 1000 * 1000;
    if (*is_told || lksi_now_ns() - began_ns < slow_ns) return false;
    return *is_told = true;
}

static lks_status make_name(const lksi_environment *environment, const lksi_meeting *met, const char *key,
                            const char *generation, char name[LKSI_SOCKET_NAME_NBYTES]) {
    lksi_sha256 *hash;
    char text[96], hex[65];
    const char *secrets[] = {environment->master_address, key, generation, met->purpose};
    LKS_TRY(lksi_sha256_create(&hash));
    snprintf(text, sizeof text, "lockstep %d %lu %llu", environment->master_port, (unsigned long)getuid(),
             (unsigned long long)met->id);
    lksi_sha256_update(hash, text, strlen(text) + 1);
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++) {
        const char *value = secrets[i] == NULL ? "" : secrets[i];
        lksi_sha256_update(hash, value, strlen(value) + 1);
    }
    lksi_sha256_finish_hex(hash, hex);
    snprintf(name, LKSI_SOCKET_NAME_NBYTES, "lockstep-%s", hex);
    return LKS_OK;
}

lks_status lksi_socket_name(const lksi_environment *environment, const lksi_meeting *meeting,
                            char name[LKSI_SOCKET_NAME_NBYTES]) {
    lksi_meeting met = lksi_meeting_or_world(environment, meeting);
    return make_name(environment, &met, lksi_environment_job_key(environment), getenv("LOCKSTEP_GENERATION"), name);
}

lks_status lksi_socket_name_without_key(const lksi_environment *environment, char name[LKSI_SOCKET_NAME_NBYTES]) {
    return make_name(environment, &(lksi_meeting){.purpose = "lks_init with any key"}, "", "", name);
}

/* Abstract: the first byte is 0, and the name ends with the address and not at a NUL. */
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
