/* The watch thread and its table of descriptors. */
#define _GNU_SOURCE /* EPOLLRDHUP */
#include "comm/watch.h"

#include "comm/clock.h"
#include "comm/forks.h"

#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Epoll events carry the number of an entry, not the descriptor: the descriptor may be closed and its number reused
 * before the event is handled. */
typedef struct entry {
    struct entry *next;
    uint64_t number;
    int descriptor;
    lksi_watch_notice notice;
    void *argument;
} entry;

struct lksi_watch {
    lksi_watch *next;
    lksi_thread *thread;
    int epoll;
    int stop;              /* an eventfd */
    pthread_mutex_t mutex; /* guards the entries; also held while a notice runs */
    entry *entries;
    uint64_t n_added;
};

enum { NUMBER_OF_STOP = 0 }; /* entries count from 1 */
enum { TICK_MS = 1000 };

/* --- forked children ---
 * A child has copies of all descriptors. A connection does not end while a copy is open, so the child closes them. Lock
 * order: watches_mutex, then the mutex of each watch. The fork handlers (forks.c) hold all of them. */

static pthread_mutex_t watches_mutex = PTHREAD_MUTEX_INITIALIZER;
static lksi_watch *watches;

void lksi_watches_hold(void) {
    pthread_mutex_lock(&watches_mutex);
    for (lksi_watch *each = watches; each != NULL; each = each->next) pthread_mutex_lock(&each->mutex);
}

void lksi_watches_let_go(void) {
    for (lksi_watch *each = watches; each != NULL; each = each->next) pthread_mutex_unlock(&each->mutex);
    pthread_mutex_unlock(&watches_mutex);
}

void lksi_watches_close_copies(void) {
    for (const lksi_watch *each = watches; each != NULL; each = each->next)
        for (const entry *watched = each->entries; watched != NULL; watched = watched->next) close(watched->descriptor);
    lksi_watches_let_go();
    watches = NULL;
}

static void link_in(lksi_watch *watch) {
    lksi_prepare_for_forks();
    pthread_mutex_lock(&watches_mutex);
    watch->next = watches;
    watches = watch;
    pthread_mutex_unlock(&watches_mutex);
}

static void link_out(const lksi_watch *watch) {
    pthread_mutex_lock(&watches_mutex);
    lksi_watch **link = &watches;
    while (*link != NULL && *link != watch) link = &(*link)->next;
    if (*link != NULL) *link = watch->next;
    pthread_mutex_unlock(&watches_mutex);
}

/* --- what is watched --- */

static entry **find(lksi_watch *watch, int descriptor) {
    entry **link = &watch->entries;
    while (*link != NULL && (*link)->descriptor != descriptor) link = &(*link)->next;
    return link;
}

static void forget(lksi_watch *watch, entry **link) {
    entry *gone = *link;
    if (gone == NULL) return;
    epoll_ctl(watch->epoll, EPOLL_CTL_DEL, gone->descriptor, NULL);
    *link = gone->next;
    lksi_free(gone);
}

static entry **find_number(lksi_watch *watch, uint64_t number) {
    entry **link = &watch->entries;
    while (*link != NULL && (*link)->number != number) link = &(*link)->next;
    return link;
}

/* The entry is searched again after the notice, because the notice may have added entries. */
static void tell(lksi_watch *watch, uint64_t number) {
    pthread_mutex_lock(&watch->mutex);
    const entry *told = *find_number(watch, number);
    if (told != NULL && !told->notice(told->argument, told->descriptor)) forget(watch, find_number(watch, number));
    pthread_mutex_unlock(&watch->mutex);
}

/* Wakes every TICK_MS to detect that the process was stopped: the other threads may compute and not sleep. */
static void run(void *opaque) {
    lksi_watch *watch = opaque;
    for (;;) {
        struct epoll_event events[16];
        int64_t since_ns = lksi_now_ns();
        int n = epoll_wait(watch->epoll, events, 16, TICK_MS);
        lksi_forgive_stop(since_ns, lksi_now_ns());
        if (n < 0 && errno != EINTR) return;
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == NUMBER_OF_STOP) return;
            tell(watch, events[i].data.u64);
        }
    }
}

static void destroy_unstarted(lksi_watch *watch) {
    while (watch->entries != NULL) forget(watch, &watch->entries);
    if (watch->stop >= 0) close(watch->stop);
    if (watch->epoll >= 0) close(watch->epoll);
    pthread_mutex_destroy(&watch->mutex);
    lksi_free(watch);
}

lks_status lksi_watch_create(lksi_watch **watch) {
    lksi_watch *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    pthread_mutex_init(&created->mutex, NULL);
    created->epoll = epoll_create1(EPOLL_CLOEXEC);
    created->stop = eventfd(0, EFD_CLOEXEC);
    struct epoll_event stop = {.events = EPOLLIN, .data.u64 = NUMBER_OF_STOP};
    lks_status status = LKS_OK;
    if (created->epoll < 0 || created->stop < 0 || epoll_ctl(created->epoll, EPOLL_CTL_ADD, created->stop, &stop) != 0)
        status = lksi_error_errno("cannot watch connections");
    if (status == LKS_OK) status = lksi_thread_create(&created->thread, run, created, "lockstep-watch");
    if (status != LKS_OK) {
        destroy_unstarted(created);
        return status;
    }
    link_in(created);
    *watch = created;
    return LKS_OK;
}

void lksi_watch_destroy(lksi_watch *watch) {
    if (watch == NULL) return;
    link_out(watch);
    uint64_t one = 1;
    while (write(watch->stop, &one, sizeof one) < 0 && errno == EINTR) continue;
    lksi_thread_join(watch->thread);
    destroy_unstarted(watch);
}

void lksi_watch_forget(lksi_watch *watch) {
    if (watch == NULL) return;
    while (watch->entries != NULL) {
        entry *gone = watch->entries;
        watch->entries = gone->next;
        lksi_free(gone);
    }
    lksi_free(watch->thread);
    lksi_free(watch);
}

/* Takes no lock: the watch holds it while a notice runs. */
lks_status lksi_watch_add_in_notice(lksi_watch *watch, int descriptor, lksi_watch_event event, lksi_watch_notice notice,
                                    void *argument) {
    entry *added = lksi_alloc(sizeof *added);
    if (added == NULL) return LKS_ERR_MEMORY;
    *added = (entry){watch->entries, ++watch->n_added, descriptor, notice, argument};
    struct epoll_event wanted = {.events = event == LKSI_WATCH_INPUT ? EPOLLIN | EPOLLRDHUP : EPOLLRDHUP,
                                 .data.u64 = added->number};
    watch->entries = added;
    if (event == LKSI_WATCH_NOTHING || epoll_ctl(watch->epoll, EPOLL_CTL_ADD, descriptor, &wanted) == 0) return LKS_OK;
    lks_status status = lksi_error_errno("cannot watch a connection");
    watch->entries = added->next;
    lksi_free(added);
    return status;
}

lks_status lksi_watch_add(lksi_watch *watch, int descriptor, lksi_watch_event event, lksi_watch_notice notice,
                          void *argument) {
    pthread_mutex_lock(&watch->mutex);
    lks_status status = lksi_watch_add_in_notice(watch, descriptor, event, notice, argument);
    pthread_mutex_unlock(&watch->mutex);
    return status;
}

void lksi_watch_remove(lksi_watch *watch, int descriptor) {
    pthread_mutex_lock(&watch->mutex);
    forget(watch, find(watch, descriptor));
    pthread_mutex_unlock(&watch->mutex);
}
