/* A row of numbered items that run in order.
 *
 *     caller    allow(2) ── allow(5) ── wait(3) ........ goes on
 *                  │            │          ▲
 *     thread       └> 0, 1 ─────┴> 2 ──────┴─ 3, 4 ── sleeps
 *
 * The thread sleeps on a condition variable while no item is allowed. The mutex protects all shared fields except the
 * atomic n_ended. It also makes the data of the items visible: allow happens-before the item, and the item
 * happens-before the return of wait. */
#include "parallel/progress.h"

#include "base/signals.h"
#include "base/timeline.h"
#include "comm/comm.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { TEXT_NBYTES = 1024, SPIN_NS = 5 * 1000 * 1000, SPINS_PER_LOOK = 32 };

struct lksi_progress_row {
    lks_status (*run)(void *context, size_t item);
    void *context;
    lksi_thread *thread; /* NULL: the caller runs the items */
    pthread_mutex_t mutex;
    pthread_cond_t allowed, finished;
    size_t n_allowed, n_finished;
    atomic_size_t n_ended; /* items that have ever run or failed; a spinning caller polls it without the mutex */
    bool may_spin, is_running, is_stopping;
    lks_status status; /* of the first item that failed */
    char text[TEXT_NBYTES];
};

lks_status lksi_progress_row_create(lksi_progress_row **progress, lks_status (*run)(void *context, size_t item),
                                    void *context, bool may_spin) {
    lksi_progress_row *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->run = run;
    created->context = context;
    created->may_spin = may_spin;
    pthread_mutex_init(&created->mutex, NULL);
    pthread_cond_init(&created->allowed, NULL);
    pthread_cond_init(&created->finished, NULL);
    *progress = created;
    return LKS_OK;
}

void lksi_progress_row_destroy(lksi_progress_row *progress) {
    if (progress == NULL) return;
    pthread_mutex_lock(&progress->mutex);
    progress->is_stopping = true;
    pthread_cond_signal(&progress->allowed);
    pthread_mutex_unlock(&progress->mutex);
    lksi_thread_join(progress->thread);
    pthread_cond_destroy(&progress->finished);
    pthread_cond_destroy(&progress->allowed);
    pthread_mutex_destroy(&progress->mutex);
    lksi_free(progress);
}

/* Called with the mutex held. Releases it while the item runs. */
static void run_next(lksi_progress_row *progress) {
    size_t item = progress->n_finished;
    progress->is_running = true;
    pthread_mutex_unlock(&progress->mutex);
    lks_status status = progress->run(progress->context, item);
    pthread_mutex_lock(&progress->mutex);
    progress->status = status;
    progress->is_running = false;
    if (status == LKS_OK)
        progress->n_finished++;
    else
        snprintf(progress->text, sizeof progress->text, "%s", lksi_error_text());
    atomic_fetch_add(&progress->n_ended, 1);
    pthread_cond_signal(&progress->finished);
}

static bool is_runnable(const lksi_progress_row *progress) {
    return progress->status == LKS_OK && progress->n_finished < progress->n_allowed;
}

static void run_all(void *opaque) {
    lksi_progress_row *progress = opaque;
    lksi_work_become_worker(true);
    pthread_mutex_lock(&progress->mutex);
    while (!progress->is_stopping) {
        if (is_runnable(progress))
            run_next(progress);
        else
            pthread_cond_wait(&progress->allowed, &progress->mutex);
    }
    pthread_mutex_unlock(&progress->mutex);
}

lks_status lksi_progress_row_start(lksi_progress_row *progress) {
    if (progress->thread != NULL) return LKS_OK;
    return lksi_thread_create(&progress->thread, run_all, progress, "lockstep-sync");
}

/* If the thread shares the caller's CPU, the caller yields to it. A mere wake-up often leaves the thread waiting for
 * the next scheduler tick, up to 5 ms. */
void lksi_progress_row_allow(lksi_progress_row *progress, size_t n) {
    pthread_mutex_lock(&progress->mutex);
    if (n > progress->n_allowed) progress->n_allowed = n;
    bool is_asleep = progress->thread != NULL && !progress->is_running && is_runnable(progress);
    pthread_cond_signal(&progress->allowed);
    pthread_mutex_unlock(&progress->mutex);
    if (is_asleep && !progress->may_spin) sched_yield();
}

/* Spins until the thread has ended an item. false: SPIN_NS was not enough, or other programs need the CPU. The thread
 * itself may wait for this CPU, although there are enough CPUs, so this yields. Called with the mutex held, which it
 * releases while it spins. */
static bool spin(lksi_progress_row *progress) {
    size_t n_seen = atomic_load(&progress->n_ended);
    int64_t limit_ns = lksi_now_ns() + SPIN_NS;
    pthread_mutex_unlock(&progress->mutex);
    for (int i = 1; atomic_load(&progress->n_ended) == n_seen; i++) {
        lksi_relax();
        if (i % SPINS_PER_LOOK == 0 && (lksi_now_ns() > limit_ns || !lksi_yield())) break;
    }
    pthread_mutex_lock(&progress->mutex);
    return atomic_load(&progress->n_ended) != n_seen;
}

/* Waits until the thread has ended an item, or a spurious wake-up. Called with the mutex held. */
static void wait_for_one(lksi_progress_row *progress) {
    if (!progress->may_spin || !spin(progress)) pthread_cond_wait(&progress->finished, &progress->mutex);
}

lks_status lksi_progress_row_wait(lksi_progress_row *progress, size_t n) {
    int64_t section_ns = lksi_timeline_begin();
    pthread_mutex_lock(&progress->mutex);
    while (progress->status == LKS_OK && progress->n_finished < n) {
        lksi_signals_let_in();
        if (progress->thread == NULL)
            run_next(progress);
        else
            wait_for_one(progress);
    }
    lks_status status = progress->n_finished >= n ? LKS_OK : progress->status;
    pthread_mutex_unlock(&progress->mutex);
    lksi_timeline_end(section_ns, "wait", "wait for buckets");
    return status == LKS_OK ? LKS_OK : lksi_error(status, "%s", progress->text);
}

size_t lksi_progress_row_hold(lksi_progress_row *progress) {
    pthread_mutex_lock(&progress->mutex);
    size_t n_begun = progress->n_finished + progress->is_running;
    progress->n_allowed = n_begun;
    pthread_mutex_unlock(&progress->mutex);
    return n_begun;
}

void lksi_progress_row_reset(lksi_progress_row *progress) {
    pthread_mutex_lock(&progress->mutex);
    if (progress->status == LKS_OK) progress->n_allowed = progress->n_finished = 0;
    pthread_mutex_unlock(&progress->mutex);
}
