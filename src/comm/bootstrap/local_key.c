#include "comm/bootstrap/local_key.h"

#include "comm/bootstrap/dial.h"
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/clock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_LIMIT_NS (INT64_C(100) * 1000 * 1000) /* asked again soon */
enum { N_ACCEPTED_PER_STEP = 64 };                   /* another user may connect without end */

/* Generations and users have names of their own, so that they do not take the name from each other by mistake. An IPv4
 * address has one name, also if it is written as an IPv6 address. */
static void make_name(const lksi_address *at, char name[LKSI_SOCKET_NAME_NBYTES]) {
    static const char mapped[] = "::ffff:";
    char text[LKSI_ADDRESS_TEXT_NBYTES], *host = text;
    const char *generation = lksi_variable("LOCKSTEP_GENERATION");
    lksi_address_host_text(at, text);
    if (strncmp(host, mapped, sizeof mapped - 1) == 0) host += sizeof mapped - 1;
    snprintf(name, LKSI_SOCKET_NAME_NBYTES, "lockstep-key %lu %s:%d %lld", (unsigned long)getuid(), host,
             lksi_address_port(at), generation != NULL ? strtoll(generation, NULL, 10) : 0);
}

lks_status lksi_local_key_listen(const lksi_address *at, int *listener) {
    char name[LKSI_SOCKET_NAME_NBYTES];
    make_name(at, name);
    *listener = lksi_local_listen(name);
    return *listener >= 0 ? LKS_OK : lksi_error_errno("cannot listen at the local socket '%s'", name);
}

/* The key fits into the socket's buffer, so that sending it never waits. */
bool lksi_local_key_hand_out(int listener, const unsigned char key[LKSI_KEY_NBYTES]) {
    for (int i = 0; i < N_ACCEPTED_PER_STEP; i++) {
        int connection = lksi_local_accept(listener);
        if (connection < 0) return true;
        if (lksi_is_ours(connection)) (void)!send(connection, key, LKSI_KEY_NBYTES, MSG_NOSIGNAL);
        close(connection);
    }
    return false;
}

typedef struct dialling {
    const lksi_address *to;
    lksi_job_secret *job;
    int64_t deadline_ns;
    bool (*is_given_up)(void *);
    void *argument;
    bool has_key;      /* somebody has handed one out */
    lks_status status; /* LKS_OK, or why there cannot be a key, with its text */
    char text[LKSI_ERROR_TEXT_NBYTES];
} dialling;

static void ask(dialling *d) {
    char name[LKSI_SOCKET_NAME_NBYTES];
    unsigned char key[LKSI_KEY_NBYTES];
    int64_t limit_ns = lksi_running_ns() + ANSWER_LIMIT_NS;
    if (limit_ns > d->deadline_ns) limit_ns = d->deadline_ns;
    make_name(d->to, name);
    int connection = lksi_local_connect(name);
    if (connection < 0) return;
    if (!lksi_is_ours(connection)) {
        d->status = LKS_ERR_MISMATCH;
        snprintf(d->text, sizeof d->text,
                 "a process of another user is at the local socket '%s', where the job's key is handed out; another "
                 "port or a LOCKSTEP_JOB_KEY, the same on all ranks, avoids it",
                 name);
    } else if (lksi_take_over(connection, key, sizeof key, NULL, limit_ns) == LKS_OK) {
        memcpy(d->job->key, key, sizeof key);
        d->has_key = true;
    }
    close(connection);
}

static bool asks_before_each_attempt(void *opaque) {
    dialling *d = opaque;
    if (d->is_given_up != NULL && d->is_given_up(d->argument)) return true;
    if (!d->job->has_key) ask(d);
    return d->status != LKS_OK;
}

static lks_status explain(dialling *d, lks_status status) {
    char name[LKSI_SOCKET_NAME_NBYTES], text[LKSI_ERROR_TEXT_NBYTES];
    if (d->status != LKS_OK) return lksi_error(d->status, "%s", d->text);
    if (status != LKS_ERR_MISMATCH || d->job->has_key || d->has_key) return status;
    make_name(d->to, name);
    lksi_error_keep(text);
    return lksi_error(
        status,
        "%s; no LOCKSTEP_JOB_KEY is set here, and nobody hands out a key at the local socket '%s' (another "
        "LOCKSTEP_GENERATION, or another network namespace?)",
        text, name);
}

lks_status lksi_local_key_dial(const lksi_address *to, lksi_job_secret *job, const void *hello, size_t hello_nbytes,
                               int64_t deadline_ns, bool (*is_given_up)(void *), void *argument, int *connection) {
    dialling d = {.to = to, .job = job, .deadline_ns = deadline_ns, .is_given_up = is_given_up, .argument = argument};
    lks_status status = LKS_OK;
    if (!job->has_key) ask(&d);
    if (d.status == LKS_OK)
        status =
            lksi_dial(to, job->key, hello, hello_nbytes, deadline_ns, true, asks_before_each_attempt, &d, connection);
    return explain(&d, status);
}
