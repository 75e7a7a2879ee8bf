/* The thread that progresses MPI while no other thread calls it. It makes a few thousand calls per second while
 * messages are in progress and for one second after, and none otherwise. (After, because MPI may complete an operation
 * for its caller while its data is still leaving this process.) */
#include "comm/transport/mpi/mpi.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PAUSE_NS = 300 * 1000 };
static const int64_t afterwards_ns = INT64_C(1000) * 1000 * 1000;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards is_stopping */
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static lksi_thread *thread;
static bool is_stopping;
static atomic_bool has_news, is_asleep;

void lksi_mpi_progress_wake(void) {
    atomic_store(&has_news, true);
    if (!atomic_load(&is_asleep)) return;
    pthread_mutex_lock(&mutex);
    pthread_cond_signal(&woken);
    pthread_mutex_unlock(&mutex);
}

/* An error of MPI is ignored here: the next caller of MPI gets it. */
static bool is_pending(void) {
    bool is_some = true;
    const lksi_mpi_module *mpi = lksi_mpi_enter();
    if (mpi == NULL) return true;
    if (mpi->progress(&is_some) != 0) is_some = false;
    lksi_mpi_leave_silently();
    return is_some;
}

/* False: the thread must end. */
static bool sleep_until_woken(void) {
    pthread_mutex_lock(&mutex);
    atomic_store(&is_asleep, true);
    while (!is_stopping && !atomic_load(&has_news)) pthread_cond_wait(&woken, &mutex);
    atomic_store(&is_asleep, false);
    bool goes_on = !is_stopping;
    pthread_mutex_unlock(&mutex);
    return goes_on;
}

static bool must_stop(void) {
    pthread_mutex_lock(&mutex);
    bool must = is_stopping;
    pthread_mutex_unlock(&mutex);
    return must;
}

static void run(void *unused) {
    (void)unused;
    while (sleep_until_woken()) {
        int64_t until_ns = 0;
        do {
            if (atomic_exchange(&has_news, false)) until_ns = lksi_now_ns() + afterwards_ns;
            lksi_sleep_ns(PAUSE_NS);
        } while (!must_stop() && (is_pending() || lksi_now_ns() < until_ns));
    }
}

lks_status lksi_mpi_progress_start(void) {
    is_stopping = false;
    atomic_store(&has_news, true); /* the bootstrap has just used MPI */
    return lksi_thread_create(&thread, run, NULL, "lockstep-mpi");
}

void lksi_mpi_progress_stop(void) {
    if (thread == NULL) return;
    pthread_mutex_lock(&mutex);
    is_stopping = true;
    pthread_cond_signal(&woken);
    pthread_mutex_unlock(&mutex);
    lksi_thread_join(thread);
    thread = NULL;
}
