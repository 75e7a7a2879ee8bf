/* Two ends of a connection prove to each other that they know the job's key, without showing it.
 *
 *     dialler                                                  acceptor
 *        | magic, version, nonce_d (32)  ------------------------> |
 *        | <----------------------  magic, version, nonce_a (32)   |
 *        | hello, HMAC(key, "dialler", nonce_d, nonce_a, hello) -> |
 *        | <--- HMAC(key, "acceptor", nonce_d, nonce_a, hello)     |   or zeros: your proof is wrong
 *
 * Every message has a length that both know beforehand: nothing that is read is a length. What was recorded proves
 * nothing later, because the nonces are others; what is sent back to its sender proves nothing, because the role's
 * name is part of it. The hello says what the connection is for, and is proven together with the key.
 * What follows on the connection is neither encrypted nor authenticated: the network is trusted to carry bytes of a
 * connection once it is made, not to make connections.
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

/* The first message of both sides, in every version of the protocol. */
typedef struct lksi_greeting {
    uint64_t magic;
    uint32_t version;
    uint32_t hello_nbytes; /* compared, never used as a length */
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
    LKSI_AUTH_ENDED,   /* the other side ended the connection, or it broke */
    LKSI_AUTH_GARBAGE, /* it does not speak this protocol */
    LKSI_AUTH_OTHER_VERSION,
    LKSI_AUTH_OTHER_KEY
} lksi_auth_failure;

typedef enum lksi_auth_stage {
    LKSI_AUTH_STAGE_GREETING, /* the other side's is awaited */
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
    unsigned char hello[LKSI_AUTH_HELLO_MAX_NBYTES]; /* the dialler's, given or received */
    size_t hello_nbytes;
    unsigned char out[sizeof(lksi_greeting) + LKSI_AUTH_MESSAGE_MAX_NBYTES], in[LKSI_AUTH_MESSAGE_MAX_NBYTES];
    size_t n_out, n_sent;     /* bytes of `out` to be sent, sent */
    size_t n_wanted, n_taken; /* bytes of the message that is awaited, taken */
} lksi_auth;

/* `descriptor` is a connected non-blocking socket and stays the caller's. The dialler gives its hello, the acceptor
 * NULL and the length that it expects, at most LKSI_AUTH_HELLO_MAX_NBYTES. Errors: LKS_ERR_SYSTEM. */
lks_status lksi_auth_begin(lksi_auth *auth, int descriptor, bool is_dialler, const unsigned char key[LKSI_KEY_NBYTES],
                           const void *hello, size_t hello_nbytes);
/* Goes on as far as it can without waiting. Once done or failed it stays so. When done, auth->hello is proven, and not
 * a byte behind the handshake has been read. */
lksi_auth_result lksi_auth_step(lksi_auth *auth);
/* What lksi_auth_step does with the bytes it reads, without a socket: takes at most `nbytes` and at most what belongs
 * to the awaited message. Returns how many; 0 where nothing is awaited. */
size_t lksi_auth_take(lksi_auth *auth, const void *data, size_t nbytes);
/* How the other side failed, as what follows "the other side": "knows another LOCKSTEP_JOB_KEY". */
void lksi_auth_describe_failure(const lksi_auth *auth, char *text, size_t text_nbytes);

#endif
