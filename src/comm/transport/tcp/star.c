/* The control connections of a group that spans hosts: a star around its first rank.
 *
 *     rank 1 ──┐
 *     rank 2 ──┼── rank 0      a connection that ends without a goodbye means a lost rank;
 *     rank 3 ──┘               every rank that gives up sends the reason; rank 0 forwards the first to all others
 *
 * When rank 0 itself has left, ranks visit the ranks that they wait for (visit.c). The world's watch thread reads the
 * connections, so a rank learns of an abort whatever it is doing. The reason goes into the abort record of the host's
 * control segment, which every wait checks.
 */
#define _GNU_SOURCE /* POLLRDHUP */
#include "comm/bootstrap/dial.h"
#include "comm/transport/tcp/tcp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FAREWELL_MS = 500 };

/* --- called by the watch thread --- */

void lksi_star_tell_one(const lksi_line *to, const lksi_star_record *record) {
    if (to->descriptor < 0 || atomic_load(&to->has_left)) return;
    (void)lksi_star_send(to->descriptor, record); /* on failure that rank detects the lost connection itself */
}

void lksi_star_tell(const lks_group *group, const lksi_star_record *record, int except) {
    const lksi_star *star = lksi_star_of(group);
    if (star == NULL) return;
    for (int rank = 0; rank < group->size; rank++) {
        const lksi_line *line = &star->lines[rank];
        if (rank == group->rank || rank == except) continue;
        if (group->rank == 0 || rank == 0) lksi_star_tell_one(line, record);
        if (line->visitor >= 0) (void)lksi_star_send(line->visitor, record);
    }
}

static lksi_star_record record_of(const lks_group *group, lksi_star_kind kind, const lksi_reason *reason) {
    lksi_star_record record = {
        .kind = kind, .status = reason->status, .origin = group->rank, .about = reason->lost, .group = group->id};
    snprintf(record.text, sizeof record.text, "%s", reason->text);
    return record;
}

static lksi_reason reason_of(const lksi_star_record *record) {
    lksi_reason reason = {.status = record->status, .lost = record->about};
    snprintf(reason.text, sizeof reason.text, "%s", record->text);
    return reason;
}

/* The text names both ends: if the network was cut, the reporting rank may be the one that is cut off. */
static lksi_reason loss_of(const lks_group *group, int rank) {
    lksi_reason reason = {.status = LKS_ERR_PEER, .lost = lksi_world_rank(group, rank) + 1};
    snprintf(reason.text, sizeof reason.text, "%s was lost: its connection to %s ended",
             lksi_rank_describe(group, rank).text, lksi_rank_describe(group, group->rank).text);
    return reason;
}

/* An abort is sent once, and the flag set afterwards: whoever finds it set may end the process. */
static void tell_once(lks_group *group, const lksi_star_record *record, int except) {
    lksi_star *star = lksi_star_of(group);
    if (star == NULL || atomic_load(&star->is_abort_told)) return;
    lksi_star_tell(group, record, except);
    atomic_store(&star->is_abort_told, true);
}

static void lose(lksi_line *lost) {
    lks_group *group = lost->group;
    lksi_reason reason = loss_of(group, lost->rank);
    lksi_control_abort_for(group->control, &reason);
    lksi_star_record record = record_of(group, LKSI_STAR_ABORT, &reason);
    if (group->rank == 0) tell_once(group, &record, lost->rank);
}

static void hear_goodbye(lksi_line *from, const lksi_star_record *record) {
    lks_group *group = from->group;
    if (record->origin >= group->size) return;
    lksi_line *line = &lksi_star_of(group)->lines[record->origin];
    if (!atomic_load(&line->has_left)) line->farewell = reason_of(record);
    atomic_store(&line->has_left, true);
    if (group->rank == 0) lksi_star_tell(group, record, from->rank);
    if (record->origin == from->rank) (void)shutdown(from->descriptor, SHUT_RDWR); /* await_end waits for this */
}

static void hear(lksi_line *from, const lksi_star_record *record) {
    lks_group *group = from->group;
    lksi_reason reason = reason_of(record);
    switch (record->kind) {
    case LKSI_STAR_ABORT:
        lksi_control_abort_for(group->control, &reason);
        if (group->rank == 0) tell_once(group, record, from->rank);
        break;
    case LKSI_STAR_GOODBYE:
        hear_goodbye(from, record);
        break;
    case LKSI_STAR_WELCOME:
        atomic_store(&from->is_welcome, true);
        break;
    default:
        lksi_roll_call_hear(group, record);
    }
}

static void hear_end(lksi_line *of) {
    if (atomic_load(&of->has_left)) return;
    if (atomic_load(&of->is_visited) && !atomic_load(&of->is_welcome))
        lksi_tcp_find_gone(of);
    else
        lose(of);
}

bool lksi_star_notice(void *opaque, int descriptor) {
    lksi_line *from = opaque;
    for (;;) {
        lksi_star_record record;
        switch (lksi_star_reader_feed(&from->reader, descriptor, &record)) {
        case LKSI_STAR_RECORD:
            hear(from, &record);
            continue;
        case LKSI_STAR_NOTHING:
            return true;
        case LKSI_STAR_ENDED:
            hear_end(from);
            return false;
        }
    }
}

/* --- before it is made --- */

/* Leaves what it finds to the star, which is made if this rank goes on. An abort may come behind other records. */
static bool is_told(int connection, lksi_reason *reason) {
    enum { MOST = 8 };
    lksi_star_record records[MOST];
    ssize_t nbytes = recv(connection, records, sizeof records, MSG_PEEK | MSG_DONTWAIT);
    for (int i = 0; (ssize_t)((size_t)(i + 1) * sizeof records[0]) <= nbytes; i++) {
        if (!lksi_star_is_record(&records[i]) || records[i].kind != LKSI_STAR_ABORT) continue;
        records[i].text[sizeof records[i].text - 1] = '\0';
        *reason = reason_of(&records[i]);
        return true;
    }
    return false;
}

/* Whether the connection to `rank`, at which `events` were seen, says that the world cannot come about. */
static bool is_over(const lks_group *group, int rank, int connection, int events, lksi_reason *reason) {
    if (events == 0) return false;
    if (is_told(connection, reason)) return true;
    if (events == POLLIN) return false;
    *reason = loss_of(group, rank);
    return true;
}

lks_status lksi_tcp_look_out(const lks_group *group, const int *connections) {
    enum { AT_ONCE = 64 };
    struct pollfd polled[AT_ONCE];
    lksi_reason reason;
    for (int first = 0; first < group->size; first += AT_ONCE) {
        int count = group->size - first < AT_ONCE ? group->size - first : AT_ONCE;
        for (int i = 0; i < count; i++)
            polled[i] = (struct pollfd){.fd = connections[first + i], .events = POLLIN | POLLRDHUP};
        if (poll(polled, (nfds_t)count, 0) <= 0) continue;
        for (int i = 0; i < count; i++) {
            if (!is_over(group, first + i, polled[i].fd, polled[i].revents, &reason)) continue;
            if (group->rank == 0) lksi_tcp_tell_early(group, connections, &reason, first + i);
            return lksi_reason_error(&reason, group->progress.name);
        }
    }
    return LKS_OK;
}

void lksi_tcp_tell_early(const lks_group *group, const int *connections, const lksi_reason *reason, int except) {
    const lksi_star_record record = record_of(group, LKSI_STAR_ABORT, reason);
    for (int rank = 0; rank < group->size; rank++)
        if (rank != except && connections[rank] >= 0) (void)lksi_star_send(connections[rank], &record);
}

/* --- making it --- */

/* The error if a group's parent has died while the group was made. */
static lks_status refuse_parent(const lks_group *group) {
    return lksi_control_abort_error(group->parent->control, "making a group out of it");
}

static lks_status dial_first(lks_group *group, int64_t deadline_ns) {
    lksi_door_hello hello = {.group_id = group->id, .purpose = LKSI_DOOR_CONTROL, .from = group->rank};
    int descriptor = -1;
    lks_status status = lksi_dial(&group->members[0].address, group->world->secret.key, &hello, sizeof hello,
                                  deadline_ns, false, lksi_tcp_is_over, group->parent, &descriptor);
    lksi_star_of(group)->lines[0].descriptor = descriptor;
    if (status == LKS_OK) return LKS_OK;
    char why[LKSI_ERROR_TEXT_NBYTES];
    lksi_error_keep(why);
    if (lksi_tcp_is_over(group->parent)) return refuse_parent(group);
    return lksi_error(status, "%s cannot be reached: %s; %s", lksi_rank_describe(group, 0).text, why,
                      group->progress.name);
}

static lks_status await_one(lks_group *group, int rank, int64_t deadline_ns) {
    enum { SLICE_NS = 20 * 1000 * 1000 };
    lksi_star *star = lksi_star_of(group);
    lks_status status = LKS_OK;
    bool is_there = false;
    while (!is_there && status == LKS_OK && lksi_running_ns() < deadline_ns && !lksi_tcp_is_over(group->parent)) {
        int64_t since_ns = lksi_now_ns();
        pthread_mutex_lock(&star->mutex);
        if (star->lines[rank].descriptor < 0) lksi_cond_wait_until(&star->arrived, &star->mutex, since_ns + SLICE_NS);
        is_there = star->lines[rank].descriptor >= 0;
        pthread_mutex_unlock(&star->mutex);
        lksi_forgive_stop(since_ns, lksi_now_ns());
        if (!is_there) status = lksi_acceptor_check(group->world->acceptor);
    }
    if (is_there) return LKS_OK;
    char awaited[512] = "";
    if (status == LKS_OK) lksi_describe_awaited(group, true, &rank, 1, awaited, sizeof awaited);
    if (lksi_tcp_is_over(group->parent)) return refuse_parent(group);
    if (status != LKS_OK)
        return lksi_error(status, "%s did not connect to the new group: %s", lksi_rank_describe(group, rank).text,
                          lksi_error_text());
    return lksi_error(LKS_ERR_TIMEOUT, "rank %d waited %lld ms for the connection of %s; %s",
                      lksi_world_rank(group, group->rank), (long long)group->timeout_ms, awaited, group->progress.name);
}

static lks_status watch_lines(lks_group *group) {
    lksi_star *star = lksi_star_of(group);
    for (int rank = 0; rank < group->size; rank++)
        if (star->lines[rank].descriptor >= 0)
            LKS_TRY(lksi_watch_add(group->world->watch, star->lines[rank].descriptor, LKSI_WATCH_INPUT,
                                   lksi_star_notice, &star->lines[rank]));
    return LKS_OK;
}

lks_status lksi_tcp_star_join(lks_group *group, int *connections) {
    int64_t deadline_ns = lksi_deadline_ns(group, LKSI_CONTEXT_COLLECTIVE);
    lksi_star *star = lksi_alloc(sizeof *star + (size_t)group->size * sizeof star->lines[0]);
    if (star == NULL) return LKS_ERR_MEMORY;
    pthread_mutex_init(&star->mutex, NULL);
    pthread_cond_init(&star->arrived, NULL);
    pthread_cond_init(&star->answered, NULL);
    for (int rank = 0; rank < group->size; rank++) {
        lksi_line *each = &star->lines[rank];
        each->group = group, each->rank = rank;
        atomic_init(&each->descriptor, connections == NULL ? -1 : connections[rank]);
        atomic_init(&each->visitor, -1);
        lksi_star_reader_init(&each->reader);
        if (connections != NULL) connections[rank] = -1;
    }
    ((lksi_tcp *)group->remote_state)->star = star;
    lksi_world_enter(group->world, group);
    if (connections == NULL && group->rank > 0) LKS_TRY(dial_first(group, deadline_ns));
    for (int rank = 1; rank < group->size && group->rank == 0; rank++) LKS_TRY(await_one(group, rank, deadline_ns));
    return watch_lines(group);
}

void lksi_tcp_star_take(lks_group *group, int from, int descriptor) {
    lksi_star *star = lksi_star_of(group);
    pthread_mutex_lock(&star->mutex);
    bool is_wanted = group->rank == 0 && star->lines[from].descriptor < 0;
    if (is_wanted) star->lines[from].descriptor = descriptor;
    pthread_cond_signal(&star->arrived);
    pthread_mutex_unlock(&star->mutex);
    if (!is_wanted) close(descriptor);
}

bool lksi_tcp_star_has_left(const lks_group *group, int rank) {
    const lksi_star *star = lksi_star_of(group);
    return star != NULL && atomic_load(&star->lines[rank].has_left);
}

/* --- announcing and leaving --- */

void lksi_tcp_announce(lks_group *group, const lksi_reason *reason) {
    lksi_star_record record = record_of(group, LKSI_STAR_ABORT, reason);
    tell_once(group, &record, -1);
}

/* Waits until the peer ends the connection. Closing a connection with unread incoming data resets it, which may destroy
 * the goodbye that was sent. So rank 0 or the visitor ends the connection after it has read the goodbye. */
static void await_end(int descriptor, int64_t deadline_ns) {
    for (int64_t left_ns; (left_ns = deadline_ns - lksi_now_ns()) > 0;) {
        char unread[1024];
        struct pollfd ready = {.fd = descriptor, .events = POLLIN};
        if (poll(&ready, 1, (int)(left_ns / 1000000) + 1) <= 0) continue;
        ssize_t n = recv(descriptor, unread, sizeof unread, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    }
}

/* Reads what has arrived, so that closing does not reset the connection and destroy rank 0's own goodbye. */
static void drain(int descriptor) {
    char unread[1024];
    while (recv(descriptor, unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
}

static void close_line(atomic_int *descriptor) {
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}

/* Rank 0 may know of an abort from the control segment of its host only. It must forward it before it leaves, because
 * no other rank will. */
static void pass_on_abort(lks_group *group) {
    const lksi_reason *reason = lksi_abort_read(&group->control->abort);
    if (group->rank == 0 && reason != NULL) lksi_tcp_announce(group, reason);
}

void lksi_tcp_star_close(lks_group *group) {
    lksi_tcp *tcp = group->remote_state;
    lksi_star *star = tcp->star;
    if (star == NULL) return;
    /* Stop watching first: rank 0 ends the connection in answer to the goodbye, and that is not a loss. */
    for (int rank = 0; rank < group->size; rank++) {
        const lksi_line *line = &star->lines[rank];
        if (line->descriptor >= 0) lksi_watch_remove(group->world->watch, line->descriptor);
        if (line->visitor >= 0) lksi_watch_remove(group->world->watch, line->visitor);
    }
    pass_on_abort(group);
    lksi_star_record goodbye = record_of(group, LKSI_STAR_GOODBYE, &group->own_seat->farewell);
    lksi_star_tell(group, &goodbye, -1);
    int64_t deadline_ns = lksi_now_ns() + INT64_C(1000000) * FAREWELL_MS;
    /* Close our own visits first. A visited rank waits for that, and it may be visiting this rank: otherwise both would
     * wait. */
    for (int rank = 1; rank < group->size && group->rank != 0; rank++) close_line(&star->lines[rank].descriptor);
    for (int rank = 0; rank < group->size; rank++) {
        lksi_line *line = &star->lines[rank];
        if (line->descriptor >= 0)
            group->rank == 0 ? drain(line->descriptor) : await_end(line->descriptor, deadline_ns);
        if (line->visitor >= 0) await_end(line->visitor, deadline_ns);
        close_line(&line->descriptor);
        close_line(&line->visitor);
    }
    pthread_cond_destroy(&star->arrived);
    pthread_cond_destroy(&star->answered);
    pthread_mutex_destroy(&star->mutex);
    lksi_free(star);
    tcp->star = NULL;
}
