/* How the processes of one host find each other, before there is a segment: over a local socket. Steps, each its own
 * function, because other transports will share some and replace others: name, meet, hand over. */
#ifndef LKSI_HANDSHAKE_H
#define LKSI_HANDSHAKE_H

#include "comm/bootstrap/environment.h"
#include "comm/transport/segment/control.h"

/* What a rank says when it comes, and what it hears in the end: fixed sizes, so that nothing read is a length. */
typedef struct lksi_hello {
    uint64_t magic;
    uint32_t version;
    int32_t size, local_size;
    lksi_identity identity;
} lksi_hello;

/* Follows when all have arrived, together with the descriptor of the control segment; or when it failed, without. */
typedef struct lksi_welcome {
    uint64_t magic;
    uint64_t control_nbytes;
    int32_t status;
    char text[LKSI_ABORT_TEXT_NBYTES];
} lksi_welcome;

/* The socket's name: whoever does not know the job's key cannot tell it. Abstract, so that nothing is left behind. */
enum { LKSI_SOCKET_NAME_NBYTES = 96 };
lks_status lksi_socket_name(const lksi_environment *environment, char name[LKSI_SOCKET_NAME_NBYTES]);

/* The leader's side: connections[r] for every local rank r but itself, with the identities; all close-on-exec.
 * Strangers are dropped. Errors: LKS_ERR_TIMEOUT naming who did not come, LKS_ERR_MISMATCH, LKS_ERR_PEER. */
lks_status lksi_leader_meet(const lksi_environment *environment, int64_t deadline_ns, int *connections,
                            lksi_identity *identities);
/* A follower's side: comes back when the leader has heard it. */
lks_status lksi_follower_meet(const lksi_environment *environment, int64_t deadline_ns, int *connection);

/* Sends and receives one record, with a descriptor where `descriptor` is not NULL (-1: none). */
lks_status lksi_hand_over(int connection, const void *record, size_t nbytes, int descriptor);
lks_status lksi_take_over(int connection, void *record, size_t nbytes, int *descriptor, int64_t deadline_ns);

void lksi_identity_fill(lksi_identity *identity, int rank);

#endif
