/* The clock of deadlines, which does not advance while the process is stopped. */
#include "comm/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static const int64_t stopped_ns = INT64_C(2) * 1000 * 1000 * 1000; /* a slice that took so long was a stop */

static _Atomic int64_t forgiven_ns;

int64_t lksi_running_ns(void) { return lksi_now_ns() - atomic_load(&forgiven_ns); }

/* All sleeping threads observe the same stop. Only the part that no thread has counted before is added. The lock
 * ensures that a thread that finds the stop counted also sees it in forgiven_ns. */
void lksi_forgive_stop(int64_t since_ns, int64_t until_ns) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int64_t seen_until_ns;
    if (until_ns - since_ns < stopped_ns) return;
    pthread_mutex_lock(&mutex);
    if (since_ns < seen_until_ns) since_ns = seen_until_ns;
    if (since_ns < until_ns) {
        atomic_fetch_add(&forgiven_ns, until_ns - since_ns);
        seen_until_ns = until_ns;
    }
    pthread_mutex_unlock(&mutex);
}

void lksi_doze(int64_t duration_ns) {
    int64_t since_ns = lksi_now_ns();
    lksi_sleep_ns(duration_ns);
    lksi_forgive_stop(since_ns, lksi_now_ns());
}

int lksi_poll(struct pollfd *polls, nfds_t n_polls, int timeout_ms) {
    int64_t since_ns = lksi_now_ns();
    int n_ready = poll(polls, n_polls, timeout_ms), failed = errno;
    lksi_forgive_stop(since_ns, lksi_now_ns());
    errno = failed;
    return n_ready;
}
