/* Rank 0's side of the rendezvous: one thread and one poll, which never blocks on a single rank.
 *
 * Each rank goes through three states. Its place is empty until its handshake is done. Then it owes its member record.
 * Then it has arrived and sends nothing more. If anything is readable from an arrived rank, usually the end of its
 * connection, the rendezvous fails for all ranks, and the text names that rank.
 */
#include "comm/bootstrap/store.h"

#include "comm/bootstrap/acceptor.h"
#include "comm/bootstrap/crossing.h"
#include "comm/bootstrap/notice_board.h"
#include "comm/clock.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    POLL_MS = 100,
    FAREWELL_MS = 1000,
    LATECOMERS_MS = 3000,
    AFTER_LOSS_MS = 500,
    N_REFUSED = 16,
    OTHER_KEY_NBYTES = 160
};

typedef struct store {
    const lksi_environment *environment;
    lksi_acceptor *acceptor;
    lksi_crossing crossing;
    lksi_member *members;
    int *connections;
    size_t *n_read; /* bytes of each rank's member record */
    int64_t began_ns;
    int n_arrived; /* ranks whose record is complete, with rank 0 */
    int n_refused;
    int refused[N_REFUSED]; /* connections of ranks that cannot join, until they have been told why */
    size_t n_sent_refused[N_REFUSED];
    lks_status status;
    char text[LKSI_ABORT_TEXT_NBYTES];
    struct pollfd *polls;
    unsigned char *answer; /* the verdict, then the members */
    size_t answer_nbytes;
    size_t *n_sent;
} store;

/* The first failure is the result of the whole rendezvous. */
static void fail(store *s, lks_status status) {
    if (s->status != LKS_OK || status == LKS_OK) return;
    s->status = status;
    snprintf(s->text, sizeof s->text, "%s", lksi_error_text());
}

/* --- arriving --- */

static lks_status check_hello(const store *s, const lksi_rendezvous_hello *hello) {
    int size = s->environment->size;
    if (hello->magic != LKSI_RENDEZVOUS_MAGIC)
        return lksi_error(LKS_ERR_MISMATCH, "a rank sent a hello that rank 0 does not know");
    LKS_TRY(lksi_build_check(&hello->build, hello->rank, hello->host, 0));
    if (hello->size != size)
        return lksi_error(LKS_ERR_MISMATCH, "rank %d has WORLD_SIZE %d, rank 0 has %d", hello->rank, hello->size, size);
    if (hello->rank < 0 || hello->rank >= size)
        return lksi_error(LKS_ERR_MISMATCH, "there is no rank %d of %d", hello->rank, size);
    if (hello->rank == 0 || s->connections[hello->rank] >= 0)
        return lksi_error(LKS_ERR_MISMATCH,
                          "two processes say that they are rank %d of %d (or two jobs have one MASTER_PORT)",
                          hello->rank, size);
    if (strncmp(hello->transport, s->environment->transport, sizeof hello->transport) != 0)
        return lksi_error(LKS_ERR_MISMATCH,
                          "rank %d on host %s has transport '%.*s', rank 0 '%s': LOCKSTEP_TRANSPORT, or lks_init's "
                          "option, must be the same on all ranks",
                          hello->rank, hello->host, (int)sizeof hello->transport, hello->transport,
                          s->environment->transport);
    return LKS_OK;
}

static void arrive(void *argument, int connection, const void *said) {
    store *s = argument;
    lksi_rendezvous_hello hello;
    memcpy(&hello, said, sizeof hello);
    hello.host[sizeof hello.host - 1] = '\0';
    bool is_free = hello.rank > 0 && hello.rank < s->environment->size && s->connections[hello.rank] < 0;
    lks_status status = s->status == LKS_OK ? check_hello(s, &hello) : s->status;
    fail(s, status);
    if (is_free) { /* even if it cannot join: it is told why, like all ranks */
        s->connections[hello.rank] = connection;
        return;
    }
    if (s->n_refused < N_REFUSED)
        s->refused[s->n_refused++] = connection;
    else
        close(connection);
}

static lks_status lost(const store *s, int rank) {
    char address[LKSI_ADDRESS_TEXT_NBYTES] = "?";
    lksi_address peer = {.nbytes = sizeof peer.storage};
    const lksi_identity *identity = &s->members[rank].identity;
    if (s->n_read[rank] == sizeof(lksi_member))
        return lksi_error(LKS_ERR_PEER, "rank %d (host %s, pid %d) was lost; lks_init", rank, identity->host,
                          (int)identity->pid);
    if (getpeername(s->connections[rank], (struct sockaddr *)&peer.storage, &peer.nbytes) == 0)
        lksi_address_text(&peer, address);
    return lksi_error(LKS_ERR_PEER, "rank %d (%s) was lost before it had said who it is; lks_init", rank, address);
}

static lks_status check_member(lksi_member *member, int rank, int size) {
    member->identity.host[LKSI_HOST_NBYTES - 1] = '\0';
    if (member->identity.rank == rank && member->size == size && lksi_address_is_valid(&member->address)) return LKS_OK;
    return lksi_error(LKS_ERR_FORMAT, "the member record of rank %d is not valid", rank);
}

/* Receives from a rank: a part of its record, nothing, or the end of its connection. */
static lks_status hear(store *s, int rank) {
    lksi_member *member = &s->members[rank];
    size_t missing = sizeof *member - s->n_read[rank];
    char beyond;
    ssize_t n = recv(s->connections[rank], missing > 0 ? (char *)member + s->n_read[rank] : &beyond,
                     missing > 0 ? missing : 1, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return LKS_OK;
    if (n <= 0 || missing == 0) return lost(s, rank);
    s->n_read[rank] += (size_t)n;
    if (s->n_read[rank] < sizeof *member) return LKS_OK;
    LKS_TRY(check_member(member, rank, s->environment->size));
    s->n_arrived++;
    return LKS_OK;
}

/* --- waiting --- */

/* Waits for a connection, or for data of a rank. poll ignores entries of -1. */
static void wait_for_arrivals(store *s) {
    int size = s->environment->size;
    s->polls[0] = (struct pollfd){.fd = lksi_acceptor_descriptor(s->acceptor), .events = POLLIN};
    for (int rank = 1; rank < size; rank++)
        s->polls[rank] = (struct pollfd){.fd = s->connections[rank], .events = POLLIN};
    (void)lksi_poll(s->polls, (nfds_t)size, POLL_MS);
}

static lks_status name_missing(const store *s, lks_status status, const char *other) {
    char missing[256] = "";
    for (int rank = 1; rank < s->environment->size; rank++)
        if (s->n_read[rank] < sizeof(lksi_member)) lksi_append_number(missing, sizeof missing, rank);
    return lksi_error(status, "lks_init: rank(s) %s of %d did not arrive%s", missing, s->environment->size, other);
}

/* Describes any peer that has tried with another key. "": none. */
static void describe_other_key(const store *s, char text[OTHER_KEY_NBYTES]) {
    char peer[LKSI_ADDRESS_TEXT_NBYTES];
    (void)lksi_acceptor_hears_other_key(s->acceptor, peer);
    text[0] = '\0';
    if (peer[0] != '\0')
        snprintf(text, OTHER_KEY_NBYTES, ", and somebody at %s tries with another LOCKSTEP_JOB_KEY", peer);
}

/* A rank with another key ends by itself, because rank 0's proof is wrong for it. A stranger who insists must not end
 * the job. Rank 0 cannot tell them apart, so it only warns. */
static void warn_of_other_key(const store *s, bool *is_told) {
    char peer[LKSI_ADDRESS_TEXT_NBYTES];
    if (*is_told || !lksi_acceptor_hears_other_key(s->acceptor, peer)) return;
    *is_told = true;
    lksi_log(LKS_LOG_WARNING,
             "lks_init: somebody at %s insists with another LOCKSTEP_JOB_KEY; if it is a rank, all ranks need the same "
             "key",
             peer);
}

/* Each rank that has not arrived needs a descriptor. */
static lks_status check_descriptors(const store *s) {
    char why[LKSI_ERROR_TEXT_NBYTES];
    lks_status status = lksi_acceptor_check(s->acceptor);
    if (status == LKS_OK) return LKS_OK;
    snprintf(why, sizeof why, ", and at rank 0 %s", lksi_error_text());
    return name_missing(s, status, why);
}

static lks_status give_up(const store *s) {
    char other[OTHER_KEY_NBYTES], loopback[LKSI_LOOPBACK_TEXT_NBYTES], both[sizeof other + sizeof loopback];
    describe_other_key(s, other);
    lksi_environment_describe_loopback(s->environment, loopback);
    snprintf(both, sizeof both, "%s%s", other, loopback);
    return name_missing(s, LKS_ERR_TIMEOUT, both);
}

/* Ranks of other hosts cannot arrive at a loopback address. */
static void warn_of_loopback(const store *s, bool *is_told) {
    const lksi_meeting world = lksi_meeting_or_world(s->environment, NULL);
    if (s->environment->loopback[0] == '\0') return;
    if (!lksi_meeting_is_slow(s->environment, &world, s->began_ns, is_told)) return;
    (void)give_up(s);
    lksi_log(LKS_LOG_WARNING, "so far: %s", lksi_error_text());
}

static void gather(store *s, int64_t deadline_ns) {
    bool is_told = false, is_told_of_key = false;
    while (s->status == LKS_OK && s->n_arrived < s->environment->size) {
        if (lksi_running_ns() >= deadline_ns) {
            fail(s, give_up(s));
            return;
        }
        warn_of_loopback(s, &is_told);
        wait_for_arrivals(s);
        lksi_acceptor_step(s->acceptor);
        fail(s, lksi_crossing_step(&s->crossing, s->status));
        warn_of_other_key(s, &is_told_of_key);
        fail(s, check_descriptors(s));
        fail(s, lksi_notice_board_check());
        for (int rank = 1; rank < s->environment->size && s->status == LKS_OK; rank++) {
            if (s->connections[rank] >= 0) fail(s, hear(s, rank));
        }
    }
}

/* --- answering --- */

static void write_answer(store *s) {
    lksi_verdict verdict = {.status = (int32_t)s->status};
    memcpy(verdict.text, s->text, sizeof verdict.text);
    memcpy(s->answer, &verdict, sizeof verdict);
    s->answer_nbytes = sizeof verdict;
    if (s->status != LKS_OK) return;
    size_t members_nbytes = (size_t)s->environment->size * sizeof *s->members;
    memcpy(s->answer + sizeof verdict, s->members, members_nbytes);
    s->answer_nbytes += members_nbytes;
}

/* Sends as much as possible without blocking. Returns false if the rank is gone. */
static bool send_some(const store *s, int connection, size_t *n_sent) {
    while (*n_sent < s->answer_nbytes) {
        ssize_t n = send(connection, s->answer + *n_sent, s->answer_nbytes - *n_sent, MSG_NOSIGNAL);
        if (n > 0)
            *n_sent += (size_t)n;
        else if (errno == EAGAIN)
            return true;
        else if (errno != EINTR)
            return false;
    }
    return true;
}

/* Returns how many ranks have not received the whole answer. A rank that is gone fails the rendezvous, unless it has
 * failed already. Refused ranks are not counted, because a verdict alone fits into a socket buffer. */
static int send_to_all(store *s) {
    int n_waiting = 0;
    for (int i = 0; i < s->n_refused; i++) (void)send_some(s, s->refused[i], &s->n_sent_refused[i]);
    for (int rank = 1; rank < s->environment->size; rank++) {
        if (s->connections[rank] < 0 || s->n_sent[rank] == s->answer_nbytes) continue;
        if (!send_some(s, s->connections[rank], &s->n_sent[rank])) {
            fail(s, lost(s, rank));
            s->n_sent[rank] = s->answer_nbytes;
        }
        n_waiting += s->n_sent[rank] < s->answer_nbytes;
    }
    return n_waiting;
}

static void wait_for_takers(store *s) {
    int size = s->environment->size;
    for (int rank = 0; rank < size; rank++) {
        bool is_waiting = rank > 0 && s->n_sent[rank] < s->answer_nbytes;
        s->polls[rank] = (struct pollfd){.fd = is_waiting ? s->connections[rank] : -1, .events = POLLOUT};
    }
    (void)lksi_poll(s->polls, (nfds_t)size, POLL_MS);
}

static int count_missing(const store *s) {
    int n_missing = -s->n_refused - s->crossing.n_refused;
    for (int rank = 1; rank < s->environment->size; rank++) n_missing += s->connections[rank] < 0;
    return n_missing;
}

/* Ranks that start a little later than rank 0 would otherwise not learn of the error and wait until their deadline.
 * They read the launcher's notice themselves. After the loss of a rank, rank 0 stays only briefly: all ranks shall
 * return within a second of it. */
static void tell_latecomers(store *s) {
    int64_t limit_ns = s->began_ns + LATECOMERS_MS * INT64_C(1000000);
    int64_t soon_ns = lksi_running_ns() + AFTER_LOSS_MS * INT64_C(1000000);
    if (s->status == LKS_ERR_PEER && soon_ns < limit_ns) limit_ns = soon_ns;
    while (count_missing(s) > 0 && lksi_running_ns() < limit_ns && lksi_notice_board_check() == LKS_OK) {
        struct pollfd arrivals = {.fd = lksi_acceptor_descriptor(s->acceptor), .events = POLLIN};
        (void)lksi_poll(&arrivals, 1, POLL_MS);
        lksi_acceptor_step(s->acceptor);
        (void)lksi_error(s->status, "%s", s->text);
        (void)lksi_crossing_step(&s->crossing, s->status);
        (void)send_to_all(s);
    }
}

static lks_status name_slow(const store *s) {
    char slow[256] = "";
    for (int rank = 1; rank < s->environment->size; rank++)
        if (s->n_sent[rank] < s->answer_nbytes) lksi_append_number(slow, sizeof slow, rank);
    return lksi_error(LKS_ERR_TIMEOUT, "lks_init: rank(s) %s of %d did not take the list of all ranks in time", slow,
                      s->environment->size);
}

/* If a rank is lost after others have received a complete good answer, those learn of it as of any later loss: their
 * connection ends. */
static void answer(store *s, int64_t deadline_ns) {
    bool was_good = s->status == LKS_OK;
    write_answer(s);
    while (send_to_all(s) > 0 && was_good == (s->status == LKS_OK)) {
        if (lksi_running_ns() >= deadline_ns) {
            fail(s, name_slow(s));
            return;
        }
        wait_for_takers(s);
    }
    if (!was_good && s->status != LKS_ERR_TIMEOUT) tell_latecomers(s);
}

/* Closing a connection with unread data sends a reset, which may discard the verdict at the peer. So this shuts down
 * the sending side and waits a moment until the peers have closed. */
static void say_farewell(struct pollfd *polls, int n_polls) {
    int n_open = 0;
    int64_t limit_ns = lksi_running_ns() + FAREWELL_MS * INT64_C(1000000);
    for (int i = 0; i < n_polls; i++) n_open += polls[i].fd >= 0;
    for (int i = 0; i < n_polls; i++)
        if (polls[i].fd >= 0) (void)shutdown(polls[i].fd, SHUT_WR);
    while (n_open > 0 && lksi_running_ns() < limit_ns &&
           (lksi_poll(polls, (nfds_t)n_polls, POLL_MS) >= 0 || errno == EINTR))
        for (int i = 0; i < n_polls; i++) {
            char rest[512];
            ssize_t n = polls[i].fd >= 0 ? recv(polls[i].fd, rest, sizeof rest, MSG_DONTWAIT) : 1;
            if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) continue;
            polls[i].fd = -1;
            n_open--;
        }
}

static void close_all(store *s) {
    int size = s->environment->size, n = 0;
    for (int i = 0; i < s->n_refused; i++) s->polls[n++] = (struct pollfd){.fd = s->refused[i], .events = POLLIN};
    for (int rank = 1; rank < size; rank++)
        s->polls[n++] = (struct pollfd){.fd = s->connections[rank], .events = POLLIN};
    say_farewell(s->polls, n);
    for (int i = 0; i < s->n_refused; i++) close(s->refused[i]);
    for (int rank = 1; rank < size; rank++) {
        if (s->connections[rank] >= 0) close(s->connections[rank]);
        s->connections[rank] = -1;
    }
}

static lks_status allocate(store *s) {
    size_t size = (size_t)s->environment->size;
    s->n_read = lksi_alloc_array(size, sizeof *s->n_read);
    s->n_sent = lksi_alloc_array(size, sizeof *s->n_sent);
    s->polls = lksi_alloc_array(size + N_REFUSED, sizeof *s->polls);
    s->answer = lksi_alloc(sizeof(lksi_verdict) + size * sizeof(lksi_member));
    bool is_whole = s->n_read != NULL && s->n_sent != NULL && s->polls != NULL && s->answer != NULL;
    return is_whole ? LKS_OK : LKS_ERR_MEMORY;
}

lks_status lksi_store_serve(int listener, int key_listener, const lksi_environment *environment,
                            const unsigned char key[LKSI_KEY_NBYTES], lks_status before, int64_t deadline_ns,
                            lksi_member *members, int *connections) {
    store s = {.environment = environment,
               .members = members,
               .connections = connections,
               .began_ns = lksi_running_ns(),
               .n_arrived = 1};
    fail(&s, before);
    lks_status status = lksi_crossing_init(&s.crossing, environment, true);
    if (status == LKS_OK) status = allocate(&s);
    if (status == LKS_OK)
        status = lksi_acceptor_create(&s.acceptor, listener, key, sizeof(lksi_rendezvous_hello), arrive, &s);
    if (status == LKS_OK) {
        if (key_listener >= 0) lksi_acceptor_hand_out_key(s.acceptor, key_listener);
        gather(&s, deadline_ns);
        answer(&s, deadline_ns + LKSI_VERDICT_GRACE_NS);
        if (s.status != LKS_OK) close_all(&s);
        if (s.status != LKS_OK) status = lksi_error(s.status, "%s", s.text);
    }
    lksi_acceptor_destroy(s.acceptor);
    lksi_crossing_close(&s.crossing);
    lksi_free(s.n_read);
    lksi_free(s.n_sent);
    lksi_free(s.polls);
    lksi_free(s.answer);
    return status;
}
