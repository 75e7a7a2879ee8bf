#include "comm/bootstrap/dial.h"

#include "comm/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#define MS_NS INT64_C(1000000)
#define FIRST_RETRY_NS (1 * MS_NS)
#define LAST_RETRY_NS (100 * MS_NS)
#define DOUBT_LIMIT_NS (5000 * MS_NS)
#define ASK_NS (100 * MS_NS)

typedef struct dial {
    const lksi_address *to;
    const unsigned char *key;
    const void *hello;
    size_t hello_nbytes;
    int64_t deadline_ns;
    bool (*is_given_up)(void *);
    void *argument;
    char address[LKSI_ADDRESS_TEXT_NBYTES];
} dial;

/* The result of one attempt. BROKEN_OFF: the connection ended during the handshake, for example because the acceptor
 * made room. */
typedef enum outcome { MADE, REFUSED, BROKEN_OFF, ANSWERED_WRONGLY, NO_ANSWER, GIVEN_UP, IMPOSSIBLE } outcome;

static bool is_given_up(const dial *d) { return d->is_given_up != NULL && d->is_given_up(d->argument); }

/* MADE: ready. NO_ANSWER: the deadline has passed. GIVEN_UP: the caller gave up. */
static outcome wait_ready(const dial *d, int connection, short events) {
    for (;;) {
        int64_t left_ns = d->deadline_ns - lksi_running_ns();
        if (is_given_up(d)) return GIVEN_UP;
        if (left_ns <= 0) return NO_ANSWER;
        if (left_ns > ASK_NS) left_ns = ASK_NS;
        struct pollfd ready = {.fd = connection, .events = events};
        if (lksi_poll(&ready, 1, (int)((left_ns + MS_NS - 1) / MS_NS)) > 0) return MADE;
    }
}

/* TCP self-connection: if nobody listens on the port, the kernel may choose it as the local port of the connecting
 * socket, which then connects to itself. It would also keep the port from the peer that is about to listen. */
static bool is_own_reflection(int connection) {
    lksi_address own, peer = {.nbytes = sizeof peer.storage};
    return lksi_address_of_socket(connection, &own) == LKS_OK &&
           getpeername(connection, (struct sockaddr *)&peer.storage, &peer.nbytes) == 0 &&
           lksi_address_is_same(&own, &peer);
}

static outcome reach(const dial *d, int connection, char *what, size_t what_nbytes) {
    int error = 0;
    socklen_t nbytes = sizeof error;
    if (connect(connection, (const struct sockaddr *)&d->to->storage, d->to->nbytes) != 0) error = errno;
    if (error == EINPROGRESS || error == EINTR) {
        outcome waited = wait_ready(d, connection, POLLOUT);
        if (waited != MADE) return waited;
        if (getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &nbytes) != 0) error = errno;
    }
    if (error == 0 && is_own_reflection(connection)) error = ECONNREFUSED;
    if (error != 0) snprintf(what, what_nbytes, "%s", strerror(error));
    return error == 0 ? MADE : REFUSED;
}

static outcome shake_hands(const dial *d, int connection, char *what, size_t what_nbytes) {
    lksi_auth auth;
    lksi_auth_result result;
    char failure[96];
    if (lksi_auth_begin(&auth, connection, true, d->key, d->hello, d->hello_nbytes) != LKS_OK) {
        snprintf(what, what_nbytes, "%s", lksi_error_text());
        return IMPOSSIBLE;
    }
    while ((result = lksi_auth_step(&auth)) == LKSI_AUTH_WANTS_READ || result == LKSI_AUTH_WANTS_WRITE) {
        outcome waited = wait_ready(d, connection, result == LKSI_AUTH_WANTS_READ ? POLLIN : POLLOUT);
        if (waited == NO_ANSWER) snprintf(what, what_nbytes, "it does not answer");
        if (waited != MADE) return waited;
    }
    if (result == LKSI_AUTH_DONE) return MADE;
    lksi_auth_describe_failure(&auth, failure, sizeof failure);
    snprintf(what, what_nbytes, "the other side %s", failure);
    return auth.failure == LKSI_AUTH_ENDED ? BROKEN_OFF : ANSWERED_WRONGLY;
}

/* `what` describes the failure. The description of a wrong answer is kept even if later attempts get no answer, because
 * it is more informative. */
static outcome attempt(const dial *d, bool has_answered, char *what, size_t what_nbytes, int *connection) {
    char now[192];
    int one = 1;
    int made = socket(d->to->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0) {
        lksi_errno_describe(errno, now);
        snprintf(what, what_nbytes, "%s", now);
        return IMPOSSIBLE;
    }
    (void)setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    snprintf(now, sizeof now, "%s", what);
    outcome result = reach(d, made, now, sizeof now);
    if (result == MADE) result = shake_hands(d, made, now, sizeof now);
    if (!has_answered || result == ANSWERED_WRONGLY || result == IMPOSSIBLE) snprintf(what, what_nbytes, "%s", now);
    if (result == MADE)
        *connection = made;
    else
        close(made);
    return result;
}

static lks_status explain(const dial *d, outcome result, const char *what) {
    switch (result) {
    case MADE:
        return LKS_OK;
    case GIVEN_UP:
        return lksi_error(LKS_ERR_PEER, "the connection to %s was given up", d->address);
    case NO_ANSWER:
        return lksi_error(LKS_ERR_TIMEOUT, "no connection to %s in time: %s", d->address, what);
    case ANSWERED_WRONGLY:
        return lksi_error(LKS_ERR_MISMATCH, "no connection to %s: %s", d->address, what);
    case REFUSED:
    case BROKEN_OFF:
        return lksi_error(LKS_ERR_PEER, "no connection to %s: %s", d->address, what);
    case IMPOSSIBLE:
        break;
    }
    return lksi_error(LKS_ERR_SYSTEM, "no connection to %s: %s", d->address, what);
}

/* Sleeps for retry_ns. Returns false if there must be no further attempt. */
static bool may_retry(const dial *d, outcome *result, int64_t retry_ns) {
    if (*result != REFUSED && *result != BROKEN_OFF && *result != ANSWERED_WRONGLY) return false;
    if (lksi_running_ns() + retry_ns >= d->deadline_ns) {
        if (*result != ANSWERED_WRONGLY) *result = NO_ANSWER;
        return false;
    }
    lksi_doze(retry_ns);
    if (is_given_up(d)) *result = GIVEN_UP;
    return *result != GIVEN_UP;
}

lks_status lksi_dial(const lksi_address *to, const unsigned char key[LKSI_KEY_NBYTES], const void *hello,
                     size_t hello_nbytes, int64_t deadline_ns, bool is_retrying, bool (*given_up)(void *),
                     void *argument, int *connection) {
    dial d = {.to = to,
              .key = key,
              .hello = hello,
              .hello_nbytes = hello_nbytes,
              .deadline_ns = deadline_ns,
              .is_given_up = given_up,
              .argument = argument};
    char what[192] = "it does not answer";
    int64_t doubted_since_ns = 0, retry_ns = FIRST_RETRY_NS;
    bool has_answered = false;
    lksi_address_text(to, d.address);
    for (;;) {
        outcome result = attempt(&d, has_answered, what, sizeof what, connection);
        if (result == ANSWERED_WRONGLY) has_answered = true;
        if (result == MADE || (!is_retrying && result != BROKEN_OFF)) return explain(&d, result, what);
        int64_t now = lksi_running_ns();
        bool is_doubted = result == (is_retrying ? ANSWERED_WRONGLY : BROKEN_OFF);
        if (!is_doubted) doubted_since_ns = 0;
        if (is_doubted && doubted_since_ns == 0) doubted_since_ns = now;
        bool is_believed = is_doubted && now - doubted_since_ns >= DOUBT_LIMIT_NS;
        if (is_believed || !may_retry(&d, &result, retry_ns)) return explain(&d, result, what);
        retry_ns = retry_ns < LAST_RETRY_NS / 2 ? 2 * retry_ns : LAST_RETRY_NS;
    }
}
