/* Mutual authentication: both ends of a connection prove that they know the job's key, without revealing it.
 *
 *     dialler                                                  acceptor
 *        | magic, version, nonce_d (32)  ------------------------> |
 *        | <----------------------  magic, version, nonce_a (32)   |
 *        | hello, HMAC(key, "dialler", nonce_d, nonce_a, hello) -> |
 *        | <--- HMAC(key, "acceptor", nonce_d, nonce_a, hello)     |   or zeros: your proof is wrong
 *
 * Both sides know the length of every message beforehand, so no length is ever read from the network. A recorded proof
 * cannot be replayed, because the nonces differ. A proof cannot be reflected to its sender, because it covers the name
 * of the role. The hello says what the connection is for. The proof covers it too.
 *
 * Later data on the connection is neither encrypted nor authenticated. The network is trusted to deliver the bytes of
 * an established connection. It is not trusted to establish connections.
 */
#ifndef LKSI_AUTH_H
#define LKSI_AUTH_H

#include "base/base.h"

#include "comm/bootstrap/job.h"

enum {
    LKSI_AUTH_VERSION = 1,
    LKSI_NONCE_NBYTES = 32,
    LKSI_PROOF_NBYTES = 32,
    LKSI_AUTH_HELLO_MAX_NBYTES = 128,
    LKSI_AUTH_MESSAGE_MAX_NBYTES = LKSI_AUTH_HELLO_MAX_NBYTES + LKSI_PROOF_NBYTES,
};
#define LKSI_AUTH_MAGIC UINT64_C(0x4c4f434b41555448) /* "LOCKAUTH" */

/* The first message of both sides. It has the same layout in every version of the protocol. */
typedef struct lksi_greeting {
    uint64_t magic;
    uint32_t version;
    uint32_t hello_nbytes; /* only compared, never used as a length */
    unsigned char nonce[LKSI_NONCE_NBYTES];
} lksi_greeting;

typedef enum lksi_auth_result {
    LKSI_AUTH_DONE,
    LKSI_AUTH_WANTS_READ,
    LKSI_AUTH_WANTS_WRITE,
    LKSI_AUTH_FAILED
} lksi_auth_result;

typedef enum lksi_auth_failure {
    LKSI_AUTH_NO_FAILURE,
    LKSI_AUTH_ENDED,   /* the peer closed the connection, or it broke */
    LKSI_AUTH_GARBAGE, /* the peer does not speak this protocol */
    LKSI_AUTH_OTHER_VERSION,
    LKSI_AUTH_OTHER_KEY
} lksi_auth_failure;

typedef enum lksi_auth_stage {
    LKSI_AUTH_STAGE_GREETING, /* waits for the peer's greeting */
    LKSI_AUTH_STAGE_PROOF,
    LKSI_AUTH_STAGE_DONE,
    LKSI_AUTH_STAGE_FAILED
} lksi_auth_stage;

typedef struct lksi_auth {
    int descriptor;
    bool is_dialler;
    lksi_auth_stage stage;
    lksi_auth_failure failure;
    uint32_t other_version;
    unsigned char key[LKSI_KEY_NBYTES];
    unsigned char dialler_nonce[LKSI_NONCE_NBYTES], acceptor_nonce[LKSI_NONCE_NBYTES];
    unsigned char hello[LKSI_AUTH_HELLO_MAX_NBYTES]; /* the dialler's hello, given or received */
    size_t hello_nbytes;
    unsigned char out[sizeof(lksi_greeting) + LKSI_AUTH_MESSAGE_MAX_NBYTES], in[LKSI_AUTH_MESSAGE_MAX_NBYTES];
    size_t n_out, n_sent;     /* bytes of `out`: to send, sent */
    size_t n_wanted, n_taken; /* bytes of the expected message: in total, received */
} lksi_auth;

/* `descriptor` is a connected non-blocking socket. The caller owns it. The dialler passes its hello. The acceptor
 * passes NULL and the length of the hello that it expects, at most LKSI_AUTH_HELLO_MAX_NBYTES. Errors:
 * LKS_ERR_SYSTEM. */
lks_status lksi_auth_begin(lksi_auth *auth, int descriptor, bool is_dialler, const unsigned char key[LKSI_KEY_NBYTES],
                           const void *hello, size_t hello_nbytes);
/* Continues the handshake without blocking. DONE and FAILED are final. After DONE, auth->hello is proven, and no byte
 * beyond the handshake has been read. */
lksi_auth_result lksi_auth_step(lksi_auth *auth);
/* Processes received bytes like lksi_auth_step, but without a socket. Takes at most `nbytes` and at most the rest of
 * the expected message. Returns how many it took, 0 if no message is expected. */
size_t lksi_auth_take(lksi_auth *auth, const void *data, size_t nbytes);
/* Describes how the peer failed, in words that follow "the other side": "knows another LOCKSTEP_JOB_KEY". */
void lksi_auth_describe_failure(const lksi_auth *auth, char *text, size_t text_nbytes);

#endif
