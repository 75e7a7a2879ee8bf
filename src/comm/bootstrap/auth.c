#include "comm/bootstrap/auth.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(lksi_greeting) == 48, "the greeting has no padding, and this length in every version");
_Static_assert((int)LKSI_PROOF_NBYTES == (int)LKSI_SHA256_NBYTES, "a proof is one HMAC");

static unsigned char *my_nonce(lksi_auth *auth) {
    return auth->is_dialler ? auth->dialler_nonce : auth->acceptor_nonce;
}

static size_t put(unsigned char *message, size_t used, const void *data, size_t nbytes) {
    memcpy(message + used, data, nbytes);
    return used + nbytes;
}

/* Returns false if libcrypto fails. The proof is then all zeros, which proves nothing. */
static bool prove(const lksi_auth *auth, const char *role, unsigned char proof[LKSI_PROOF_NBYTES]) {
    enum { MAX_ROLE_NBYTES = 16 };
    unsigned char message[MAX_ROLE_NBYTES + 2 * LKSI_NONCE_NBYTES + LKSI_AUTH_HELLO_MAX_NBYTES];
    size_t used = put(message, 0, role, strlen(role) + 1);
    used = put(message, used, auth->dialler_nonce, sizeof auth->dialler_nonce);
    used = put(message, used, auth->acceptor_nonce, sizeof auth->acceptor_nonce);
    used = put(message, used, auth->hello, auth->hello_nbytes);
    memset(proof, 0, LKSI_PROOF_NBYTES);
    return lksi_hmac_sha256(auth->key, sizeof auth->key, message, used, proof) == LKS_OK;
}

static bool is_proven(const lksi_auth *auth, const char *role, const unsigned char *proof) {
    unsigned char expected[LKSI_PROOF_NBYTES];
    return prove(auth, role, expected) && lksi_secrets_are_equal(expected, proof, sizeof expected);
}

static void say(lksi_auth *auth, const void *data, size_t nbytes) {
    memcpy(auth->out + auth->n_out, data, nbytes);
    auth->n_out += nbytes;
}

static void say_greeting(lksi_auth *auth) {
    lksi_greeting greeting = {
        .magic = LKSI_AUTH_MAGIC, .version = LKSI_AUTH_VERSION, .hello_nbytes = (uint32_t)auth->hello_nbytes};
    memcpy(greeting.nonce, my_nonce(auth), sizeof greeting.nonce);
    say(auth, &greeting, sizeof greeting);
}

static void await(lksi_auth *auth, lksi_auth_stage stage, size_t nbytes) {
    auth->stage = stage;
    auth->n_wanted = nbytes;
    auth->n_taken = 0;
}

static void fail(lksi_auth *auth, lksi_auth_failure failure) {
    await(auth, LKSI_AUTH_STAGE_FAILED, 0);
    auth->failure = failure;
}

lks_status lksi_auth_begin(lksi_auth *auth, int descriptor, bool is_dialler, const unsigned char key[LKSI_KEY_NBYTES],
                           const void *hello, size_t hello_nbytes) {
    if (hello_nbytes > LKSI_AUTH_HELLO_MAX_NBYTES)
        return lksi_error(LKS_ERR_ARGUMENT, "a hello of %zu bytes is over %d", hello_nbytes,
                          (int)LKSI_AUTH_HELLO_MAX_NBYTES);
    *auth = (lksi_auth){.descriptor = descriptor, .is_dialler = is_dialler, .hello_nbytes = hello_nbytes};
    memcpy(auth->key, key, sizeof auth->key);
    LKS_TRY(lksi_random_secret(my_nonce(auth), LKSI_NONCE_NBYTES));
    if (is_dialler) {
        if (hello_nbytes > 0) memcpy(auth->hello, hello, hello_nbytes);
        say_greeting(auth);
    }
    await(auth, LKSI_AUTH_STAGE_GREETING, sizeof(lksi_greeting));
    return LKS_OK;
}

static void hear_greeting(lksi_auth *auth) {
    lksi_greeting greeting;
    memcpy(&greeting, auth->in, sizeof greeting);
    if (greeting.magic != LKSI_AUTH_MAGIC) {
        fail(auth, LKSI_AUTH_GARBAGE);
        return;
    }
    if (!auth->is_dialler) say_greeting(auth); /* also to another version, so that it learns ours */
    auth->other_version = greeting.version;
    if (greeting.version != LKSI_AUTH_VERSION || greeting.hello_nbytes != auth->hello_nbytes) {
        fail(auth, LKSI_AUTH_OTHER_VERSION);
        return;
    }
    memcpy(auth->is_dialler ? auth->acceptor_nonce : auth->dialler_nonce, greeting.nonce, sizeof greeting.nonce);
    if (auth->is_dialler) {
        unsigned char proof[LKSI_PROOF_NBYTES];
        (void)prove(auth, "dialler", proof);
        say(auth, auth->hello, auth->hello_nbytes);
        say(auth, proof, sizeof proof);
    }
    await(auth, LKSI_AUTH_STAGE_PROOF, (auth->is_dialler ? 0 : auth->hello_nbytes) + LKSI_PROOF_NBYTES);
}

static void hear_proof(lksi_auth *auth) {
    unsigned char answer[LKSI_PROOF_NBYTES] = {0}; /* zeros: the proof was wrong */
    const unsigned char *proof = auth->in;
    if (!auth->is_dialler) {
        memcpy(auth->hello, auth->in, auth->hello_nbytes);
        proof += auth->hello_nbytes;
    }
    bool is_right = is_proven(auth, auth->is_dialler ? "acceptor" : "dialler", proof);
    if (!auth->is_dialler) {
        if (is_right) (void)prove(auth, "acceptor", answer);
        say(auth, answer, sizeof answer);
    }
    if (is_right)
        await(auth, LKSI_AUTH_STAGE_DONE, 0);
    else
        fail(auth, LKSI_AUTH_OTHER_KEY);
}

static void hear_if_whole(lksi_auth *auth) {
    if (auth->n_taken < auth->n_wanted) return;
    if (auth->n_sent == auth->n_out) auth->n_out = auth->n_sent = 0;
    if (auth->stage == LKSI_AUTH_STAGE_GREETING)
        hear_greeting(auth);
    else if (auth->stage == LKSI_AUTH_STAGE_PROOF)
        hear_proof(auth);
}

size_t lksi_auth_take(lksi_auth *auth, const void *data, size_t nbytes) {
    size_t missing = auth->n_wanted - auth->n_taken;
    if (nbytes > missing) nbytes = missing;
    if (nbytes == 0) return 0;
    memcpy(auth->in + auth->n_taken, data, nbytes);
    auth->n_taken += nbytes;
    hear_if_whole(auth);
    return nbytes;
}

static lksi_auth_result send_out(lksi_auth *auth) {
    while (auth->n_sent < auth->n_out) {
        ssize_t n = send(auth->descriptor, auth->out + auth->n_sent, auth->n_out - auth->n_sent, MSG_NOSIGNAL);
        if (n > 0) {
            auth->n_sent += (size_t)n;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return LKSI_AUTH_WANTS_WRITE;
        if (auth->stage != LKSI_AUTH_STAGE_FAILED) fail(auth, LKSI_AUTH_ENDED);
        return LKSI_AUTH_FAILED;
    }
    return LKSI_AUTH_DONE;
}

lksi_auth_result lksi_auth_step(lksi_auth *auth) {
    for (;;) {
        lksi_auth_result sent = send_out(auth);
        if (auth->stage == LKSI_AUTH_STAGE_FAILED) return LKSI_AUTH_FAILED;
        if (sent != LKSI_AUTH_DONE) return sent;
        if (auth->stage == LKSI_AUTH_STAGE_DONE) return LKSI_AUTH_DONE;
        unsigned char data[LKSI_AUTH_MESSAGE_MAX_NBYTES];
        ssize_t n = recv(auth->descriptor, data, auth->n_wanted - auth->n_taken, 0);
        if (n > 0)
            (void)lksi_auth_take(auth, data, (size_t)n);
        else if (n < 0 && errno == EAGAIN)
            return LKSI_AUTH_WANTS_READ;
        else if (n == 0 || errno != EINTR)
            fail(auth, LKSI_AUTH_ENDED);
    }
}

void lksi_auth_describe_failure(const lksi_auth *auth, char *text, size_t text_nbytes) {
    switch (auth->failure) {
    case LKSI_AUTH_NO_FAILURE:
        snprintf(text, text_nbytes, "has not ended the handshake");
        break;
    case LKSI_AUTH_ENDED:
        snprintf(text, text_nbytes, "ended the connection during the handshake");
        break;
    case LKSI_AUTH_GARBAGE:
        snprintf(text, text_nbytes, "does not speak Lockstep's handshake");
        break;
    case LKSI_AUTH_OTHER_VERSION:
        if (auth->other_version != LKSI_AUTH_VERSION)
            snprintf(text, text_nbytes, "speaks version %u of the handshake, this one version %d",
                     (unsigned)auth->other_version, (int)LKSI_AUTH_VERSION);
        else
            snprintf(text, text_nbytes, "expects another kind of connection");
        break;
    case LKSI_AUTH_OTHER_KEY:
        snprintf(text, text_nbytes, "knows another LOCKSTEP_JOB_KEY");
        break;
    }
}
