/* Rank 0 of a meeting: listens until all other ranks have sent their hello.
 *
 * Anyone may connect. So the leader never blocks on a single connection, and ignores data until a whole hello has
 * arrived. A stranger is dropped. A silent connection occupies only one of a fixed number of places. The oldest one is
 * dropped for the next.
 */
#include "comm/bootstrap/crossing.h"
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/bootstrap/notice_board.h"
#include "comm/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_PENDING = 64, N_ACCEPTED_PER_STEP = 16, POLL_MS = 100, LATECOMERS_MS = 3000 };

typedef struct pending {
    int connection;
    size_t n_read;
    lksi_hello hello;
} pending;

typedef struct meeting {
    const lksi_environment *environment;
    lksi_meeting met;
    lksi_crossing crossing; /* for the world's meeting */
    int64_t began_ns;
    int listener;
    pending pending[N_PENDING]; /* oldest first */
    int n_pending;
    int *connections; /* by rank; -1: not arrived */
    lksi_identity *identities;
    int n_arrived, n_refused, n_dropped;
    lks_status is_over; /* why ranks are no longer accepted; LKS_OK: they are */
    struct pollfd *polls;
} meeting;

static void drop(meeting *m, int index) {
    close(m->pending[index].connection);
    m->n_pending--;
    memmove(&m->pending[index], &m->pending[index + 1], (size_t)(m->n_pending - index) * sizeof(pending));
}

/* Logs only the first line, because a stranger may connect again and again. */
static void say_dropped(meeting *m, const char *line) {
    if (m->n_dropped++ == 0) lksi_log(LKS_LOG_WARNING, "%s", line);
}

/* Accepts a limited number of connections. Another user may connect without end, and the deadline and the other
 * connections must still be served. */
static lks_status accept_some(meeting *m) {
    int connection = 0;
    for (int i = 0; i < N_ACCEPTED_PER_STEP; i++) {
        connection = lksi_local_accept(m->listener);
        if (connection < 0) break;
        if (!lksi_is_ours(connection)) {
            say_dropped(m, "a connection from a process of another user was dropped");
            close(connection);
            continue;
        }
        if (m->n_pending == N_PENDING) drop(m, 0);
        m->pending[m->n_pending++] = (pending){.connection = connection};
    }
    bool is_out = connection < 0 && (errno == EMFILE || errno == ENFILE); /* an error, because poll would report the
                                                                           * same connection for ever */
    return is_out ? lksi_error_errno("%s: cannot take a connection", m->met.call) : LKS_OK;
}

/* An arrived rank sends nothing before it is welcomed, so anything readable means that it has ended. */
static lks_status check_arrived(const meeting *m) {
    for (int rank = 1; rank < m->met.size; rank++) {
        char byte;
        if (m->connections[rank] < 0) continue;
        ssize_t n_read = recv(m->connections[rank], &byte, 1, MSG_PEEK);
        if (n_read < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        return lksi_error(LKS_ERR_PEER, "rank %d (host %s, pid %d) was lost; %s", lksi_meeting_name(&m->met, rank),
                          m->identities[rank].host, (int)m->identities[rank].pid, m->met.call);
    }
    return LKS_OK;
}

static lks_status check_number(const meeting *m, int rank) {
    if (m->connections[rank] < 0) return LKS_OK;
    LKS_TRY(check_arrived(m)); /* the first may have ended and been restarted */
    return lksi_error(LKS_ERR_MISMATCH,
                      "two processes say that they are rank %d of %d (or two jobs have one MASTER_PORT)",
                      lksi_meeting_name(&m->met, rank), m->environment->size);
}

/* The ranks must only agree on whether all are on one host. If a launcher divided them among several hosts that turn
 * out to be one machine, their local sizes may differ. */
static lks_status check_hello(const meeting *m, lksi_hello *hello) {
    int local_size = m->met.is_world ? m->environment->local_size : m->met.size, rank = hello->identity.rank;
    const bool agrees = (hello->local_size == hello->size) == (local_size == m->met.size);
    hello->identity.host[LKSI_HOST_NBYTES - 1] = '\0';
    LKS_TRY(lksi_build_check(&hello->build, rank, hello->identity.host, lksi_meeting_name(&m->met, 0)));
    if (m->met.is_world) LKS_TRY(lksi_crossing_check(m->environment, false, hello));
    if (hello->size == m->met.size && agrees) return check_number(m, rank);
    char theirs[LKSI_LOCAL_SIZE_NBYTES], mine[LKSI_LOCAL_SIZE_NBYTES];
    if (m->met.is_world)
        return lksi_error(LKS_ERR_MISMATCH, "rank %d has WORLD_SIZE %d and LOCAL_WORLD_SIZE %s, rank 0 has %d and %s",
                          rank, hello->size, lksi_local_size_text(hello->local_size, theirs), m->met.size,
                          lksi_local_size_text(local_size, mine));
    return lksi_error(LKS_ERR_MISMATCH, "%s: the rank in place %d counts %d ranks, rank %d counts %d", m->met.call,
                      rank, hello->size, lksi_meeting_name(&m->met, 0), m->met.size);
}

static lks_status arrive(meeting *m, int index) {
    lksi_hello *hello = &m->pending[index].hello;
    if (!lksi_hello_is_credible(hello, m->met.size)) {
        say_dropped(m, "a connection was dropped: it did not send the hello of a rank of this job");
        drop(m, index);
        return LKS_OK;
    }
    int rank = hello->identity.rank;
    lks_status status = m->is_over != LKS_OK ? m->is_over : check_hello(m, hello);
    if (status != LKS_OK) {
        lksi_turn_away(m->pending[index].connection, status);
        m->n_refused++;
        drop(m, index);
        return status;
    }
    if (lksi_hand_over(m->pending[index].connection, "!", 1, -1) != LKS_OK) {
        drop(m, index);
        return LKS_OK;
    }
    m->connections[rank] = m->pending[index].connection;
    m->identities[rank] = hello->identity;
    m->identities[rank].rank = lksi_meeting_name(&m->met, rank);
    m->n_arrived++;
    m->n_pending--;
    memmove(&m->pending[index], &m->pending[index + 1], (size_t)(m->n_pending - index) * sizeof(pending));
    return LKS_OK;
}

static lks_status listen_to_pending(meeting *m) {
    for (int i = m->n_pending - 1; i >= 0; i--) {
        pending *each = &m->pending[i];
        ssize_t n_read =
            recv(each->connection, (char *)&each->hello + each->n_read, sizeof each->hello - each->n_read, 0);
        if (n_read < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n_read <= 0) {
            drop(m, i);
            continue;
        }
        each->n_read += (size_t)n_read;
        if (each->n_read == sizeof each->hello) LKS_TRY(arrive(m, i));
    }
    return LKS_OK;
}

static void wait_for_news(meeting *m) {
    nfds_t n = 0;
    m->polls[n++] = (struct pollfd){.fd = m->listener, .events = POLLIN};
    for (int i = 0; i < m->n_pending; i++)
        m->polls[n++] = (struct pollfd){.fd = m->pending[i].connection, .events = POLLIN};
    for (int rank = 1; rank < m->met.size; rank++)
        if (m->connections[rank] >= 0) m->polls[n++] = (struct pollfd){.fd = m->connections[rank], .events = POLLIN};
    (void)lksi_poll(m->polls, n, POLL_MS);
}

static lks_status name_missing(const meeting *m) {
    char missing[256] = "", hint[LKSI_HINT_NBYTES];
    lksi_meeting_hint(m->environment, &m->met, hint);
    for (int rank = 1; rank < m->met.size; rank++)
        if (m->connections[rank] < 0) lksi_append_number(missing, sizeof missing, lksi_meeting_name(&m->met, rank));
    if (!m->met.is_world)
        return lksi_error(LKS_ERR_TIMEOUT, "%s: rank(s) %s did not arrive at their host's meeting", m->met.call,
                          missing);
    return lksi_error(LKS_ERR_TIMEOUT, "%s: rank(s) %s of %d did not arrive%s", m->met.call, missing, m->met.size,
                      hint);
}

/* Whether the meeting must end because another party knows that it cannot succeed. */
static lks_status check_others(const lksi_meeting *met) {
    LKS_TRY(lksi_meeting_check(met));
    return met->is_world ? lksi_notice_board_check() : LKS_OK;
}

static lks_status hold(meeting *m, int64_t deadline_ns) {
    bool is_told = false;
    while (m->n_arrived < m->met.size - 1) {
        if (lksi_running_ns() >= deadline_ns) return name_missing(m);
        if (lksi_meeting_is_slow(m->environment, &m->met, m->began_ns, &is_told)) {
            (void)name_missing(m);
            lksi_log(LKS_LOG_WARNING, "so far: %s", lksi_error_text());
        }
        LKS_TRY(check_others(&m->met));
        wait_for_news(m);
        LKS_TRY(accept_some(m));
        LKS_TRY(listen_to_pending(m));
        LKS_TRY(check_arrived(m));
        if (m->met.is_world) LKS_TRY(lksi_crossing_step(&m->crossing, LKS_OK));
    }
    return LKS_OK;
}

/* Ranks that start a little later than the leader would otherwise not learn of the error and wait until their
 * deadline. */
static void tell_latecomers(meeting *m, lks_status status) {
    char text[LKSI_ERROR_TEXT_NBYTES];
    int64_t limit_ns = m->began_ns + LATECOMERS_MS * INT64_C(1000000);
    lksi_error_keep(text);
    m->is_over = status;
    while (m->n_arrived + m->n_refused + m->crossing.n_refused < m->met.size - 1 && lksi_running_ns() < limit_ns) {
        wait_for_news(m);
        if (check_arrived(m) != LKS_OK || accept_some(m) != LKS_OK) break;
        lksi_error_restore(text);
        (void)listen_to_pending(m);
        (void)lksi_crossing_step(&m->crossing, status);
    }
    lksi_error_restore(text);
}

/* The name may still be held by the last generation of this job, or by another job that is still starting. */
static lks_status open_listener(const lksi_environment *environment, const lksi_meeting *met, int64_t deadline_ns,
                                int *listener) {
    char name[LKSI_SOCKET_NAME_NBYTES];
    LKS_TRY(lksi_socket_name(environment, met, name));
    while ((*listener = lksi_local_listen(name)) < 0) {
        if (errno != EADDRINUSE) return lksi_error_errno("cannot listen for the other ranks");
        if (lksi_running_ns() >= deadline_ns)
            return lksi_error(LKS_ERR_TIMEOUT, "%s: MASTER_ADDR %s and %s %d are in use by another job", met->call,
                              environment->master_address, lksi_environment_port_name(environment),
                              environment->master_port);
        LKS_TRY(check_others(met));
        lksi_doze(2000000);
    }
    return LKS_OK;
}

lks_status lksi_leader_meet(const lksi_environment *environment, const lksi_meeting *met, int64_t deadline_ns,
                            int *connections, lksi_identity *identities) {
    meeting *m = lksi_alloc(sizeof *m);
    if (m == NULL) return LKS_ERR_MEMORY;
    *m = (meeting){.environment = environment,
                   .met = lksi_meeting_or_world(environment, met),
                   .began_ns = lksi_running_ns(),
                   .connections = connections,
                   .identities = identities};
    m->polls = lksi_alloc_array(1 + N_PENDING + (size_t)m->met.size, sizeof *m->polls);
    lks_status status = m->polls == NULL ? LKS_ERR_MEMORY : lksi_crossing_init(&m->crossing, environment, false);
    if (status == LKS_OK) status = open_listener(environment, &m->met, deadline_ns, &m->listener);
    if (status == LKS_OK) {
        status = hold(m, deadline_ns);
        if (m->met.is_world && status == LKS_ERR_MISMATCH) tell_latecomers(m, status);
        close(m->listener);
        lksi_crossing_close(&m->crossing);
    }
    if (m->n_dropped > 1) lksi_log(LKS_LOG_WARNING, "%d more connections were dropped", m->n_dropped - 1);
    while (m->n_pending > 0) drop(m, m->n_pending - 1);
    lksi_free(m->polls);
    lksi_free(m);
    return status;
}
