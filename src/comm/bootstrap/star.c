#include "comm/bootstrap/star.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#define SEND_LIMIT_NS (INT64_C(100) * 1000 * 1000)

/* A lock keeps the records of two threads from interleaving. Connections are spread over several locks, so that one
 * that is stuck delays few others. */
enum { N_LOCKS = 16 };
#define LOCK PTHREAD_MUTEX_INITIALIZER
static pthread_mutex_t locks[N_LOCKS] = {LOCK, LOCK, LOCK, LOCK, LOCK, LOCK, LOCK, LOCK,
                                         LOCK, LOCK, LOCK, LOCK, LOCK, LOCK, LOCK, LOCK};

_Static_assert(sizeof(lksi_star_record) == 24 + LKSI_ABORT_TEXT_NBYTES, "no padding goes over the wire");

/* pthread_mutex_timedlock uses the wall clock, which may be set. */
static bool lock_in_time(pthread_mutex_t *lock, int64_t deadline_ns) {
    enum { PAUSE_NS = 1000 * 1000 };
    while (pthread_mutex_trylock(lock) != 0) {
        if (lksi_now_ns() >= deadline_ns) return false;
        lksi_sleep_ns(PAUSE_NS);
    }
    return true;
}

static void wait_writable(int connection, int64_t deadline_ns) {
    struct pollfd ready = {.fd = connection, .events = POLLOUT};
    int64_t left_ns = deadline_ns - lksi_now_ns();
    if (left_ns > 0) poll(&ready, 1, (int)(left_ns / 1000000) + 1);
}

static lks_status send_whole(int connection, const lksi_star_record *record, int64_t deadline_ns) {
    size_t n_sent = 0;
    int failed = 0;
    while (n_sent < sizeof *record && failed == 0) {
        ssize_t n =
            send(connection, (const char *)record + n_sent, sizeof *record - n_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            n_sent += (size_t)n;
        else if (errno == EAGAIN && lksi_now_ns() < deadline_ns)
            wait_writable(connection, deadline_ns);
        else if (errno != EINTR)
            failed = errno;
    }
    if (failed == 0) return LKS_OK;
    if (n_sent > 0) (void)shutdown(connection, SHUT_WR);
    return failed == EAGAIN ? lksi_error(LKS_ERR_TIMEOUT, "a rank takes nothing from its control connection")
                            : lksi_error(LKS_ERR_PEER, "a rank's control connection has ended");
}

lks_status lksi_star_send(int connection, const lksi_star_record *record) {
    int64_t deadline_ns = lksi_now_ns() + SEND_LIMIT_NS;
    pthread_mutex_t *lock = &locks[connection % N_LOCKS];
    if (!lock_in_time(lock, deadline_ns))
        return lksi_error(LKS_ERR_TIMEOUT, "a rank takes nothing from its control connection");
    lks_status status = send_whole(connection, record, deadline_ns);
    pthread_mutex_unlock(lock);
    return status;
}

void lksi_star_reader_init(lksi_star_reader *reader) { *reader = (lksi_star_reader){.n_read = 0}; }

bool lksi_star_is_record(const lksi_star_record *record) {
    if (record->kind < LKSI_STAR_ABORT || record->kind > LKSI_STAR_WELCOME) return false;
    if (record->status < LKS_OK || record->status > LKS_ERR_NUMERIC) return false;
    return record->origin >= 0 && record->origin < LKSI_MAX_RANKS;
}

lksi_star_event lksi_star_reader_feed(lksi_star_reader *reader, int connection, lksi_star_record *record) {
    while (reader->n_read < sizeof reader->record) {
        ssize_t n = recv(connection, (char *)&reader->record + reader->n_read, sizeof reader->record - reader->n_read,
                         MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return LKSI_STAR_NOTHING;
        if (n <= 0) return LKSI_STAR_ENDED;
        reader->n_read += (size_t)n;
    }
    if (!lksi_star_is_record(&reader->record)) return LKSI_STAR_ENDED;
    *record = reader->record;
    record->text[sizeof record->text - 1] = '\0';
    lksi_star_reader_init(reader);
    return LKSI_STAR_RECORD;
}
