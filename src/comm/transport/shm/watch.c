#define _GNU_SOURCE /* POLLRDHUP */
#include "comm/transport/shm/watch.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct lksi_watch {
    lksi_control *control;
    lksi_thread *thread;
    int stop; /* an eventfd */
    int n_polls;
    int *ranks; /* of the entries of polls; the first is `stop` */
    struct pollfd *polls;
};

/* Only the end of a connection is of interest: what comes over it is for the rank itself. */
static void run(void *opaque) {
    lksi_watch *watch = opaque;
    for (;;) {
        if (poll(watch->polls, (nfds_t)watch->n_polls, -1) < 0 && errno != EINTR) return;
        if (watch->polls[0].revents != 0) return;
        for (int i = 1; i < watch->n_polls; i++) {
            if ((watch->polls[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) continue;
            lksi_control_lost(watch->control, watch->ranks[i], "");
            watch->polls[i].fd = -1;
            watch->polls[i].revents = 0;
        }
    }
}

static void destroy_unstarted(lksi_watch *watch) {
    if (watch->stop >= 0) close(watch->stop);
    lksi_free(watch->ranks);
    lksi_free(watch->polls);
    lksi_free(watch);
}

lks_status lksi_watch_create(lksi_watch **watch, lksi_control *control, const int *connections) {
    size_t n_ranks = (size_t)control->n_ranks;
    lksi_watch *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->control = control;
    created->stop = eventfd(0, EFD_CLOEXEC);
    created->ranks = lksi_alloc_array(n_ranks + 1, sizeof *created->ranks);
    created->polls = lksi_alloc_array(n_ranks + 1, sizeof *created->polls);
    lks_status status = created->ranks == NULL || created->polls == NULL ? LKS_ERR_MEMORY : LKS_OK;
    if (created->stop < 0) status = lksi_error_errno("eventfd");
    if (status == LKS_OK) {
        created->polls[created->n_polls++] = (struct pollfd){.fd = created->stop, .events = POLLIN};
        for (int rank = 0; rank < control->n_ranks; rank++) {
            if (connections[rank] < 0) continue;
            created->ranks[created->n_polls] = rank;
            created->polls[created->n_polls++] = (struct pollfd){.fd = connections[rank], .events = POLLRDHUP};
        }
        status = lksi_thread_create(&created->thread, run, created, "lockstep-watch");
    }
    if (status != LKS_OK) {
        destroy_unstarted(created);
        return status;
    }
    *watch = created;
    return LKS_OK;
}

void lksi_watch_destroy(lksi_watch *watch) {
    if (watch == NULL) return;
    uint64_t one = 1;
    while (write(watch->stop, &one, sizeof one) < 0 && errno == EINTR) continue;
    lksi_thread_join(watch->thread);
    destroy_unstarted(watch);
}
