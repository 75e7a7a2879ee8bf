/* Byte streams between two ranks over TCP: one connection per group, context, pair and direction. The sender connects
 * when it first has data to send.
 *
 *     rank 0 ══ collective ══> rank 1        data flows one way only, so ranks need not agree on who connects, and
 *     rank 0 <══ collective ══ rank 1        a group's two contexts, used by two threads, share nothing
 *     rank 0 ══ user ════════> rank 1
 *
 * Only the first write waits: it connects. The watch thread of the other rank accepts, whatever that rank itself is
 * doing. Payloads are written from and read into the caller's memory. A read takes up to 16 KiB beyond what was asked
 * for, so that a short message costs one system call instead of two.
 */
#define _GNU_SOURCE /* epoll_pwait2 */
#include "comm/bootstrap/dial.h"
#include "comm/copy.h"
#include "comm/transport/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static lksi_tcp *tcp_of(const lks_group *group) { return group->remote_state; }

/* --- ends --- */

/* Waits until the reason for the end of a stream is known. It comes over the control connections, from the rank that
 * detected it, and may arrive after the end of the stream. False: no reason came. Once rank 0 has left, no rank
 * forwards reasons, but rank 0 may have left one. */
static bool hears_of_end(lks_group *group, int rank) {
    enum { PATIENCE_MS = 500 };
    lksi_tcp_attend(group, rank); /* if rank 0 has left, a visit is needed to learn the reason */
    for (int i = 0; i < PATIENCE_MS; i++) {
        if (lksi_control_is_aborted(group->control) || lksi_tcp_is_gone(group, rank)) return true;
        lksi_sleep_ns(1000000);
    }
    return false;
}

static lks_status ended(lks_group *group, lksi_context context, int rank) {
    (void)hears_of_end(group, rank);
    return lksi_tcp_refuse_gone(group, context, rank);
}

/* EFAULT: the caller's buffer is not memory of this process, or is read-only. No other rank is at fault. The group
 * dies, so this is not LKS_ERR_ARGUMENT. */
static lks_status refuse_buffer(lks_group *group, lksi_context context, const char *what) {
    char doing[160];
    lksi_progress_describe(group, context, doing, sizeof doing);
    return lksi_error(LKS_ERR_SYSTEM, "rank %d's own buffer cannot be %s: %s; %s", lksi_world_rank(group, group->rank),
                      what, strerror(EFAULT), doing);
}

static bool is_again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/* --- out --- */

static lks_status watch_stream(const lks_group *group, lksi_context context, int descriptor, uint32_t events,
                               int rank) {
    struct epoll_event wanted = {.events = events | EPOLLET, .data.u32 = (uint32_t)rank};
    if (epoll_ctl(tcp_of(group)->epoll[context], EPOLL_CTL_ADD, descriptor, &wanted) == 0) return LKS_OK;
    return lksi_error_errno("cannot watch the connection of rank %d", lksi_world_rank(group, rank));
}

/* The connection failed. Either the rank is gone, or it is there but cannot be reached (a firewall, no route). */
static lks_status unreachable(lks_group *group, lksi_context context, int to, lks_status status) {
    char doing[160], why[256];
    snprintf(why, sizeof why, "%s", lksi_error_text());
    bool is_over = status == LKS_ERR_PEER ? hears_of_end(group, to) : lksi_control_is_aborted(group->control);
    if (is_over) return lksi_tcp_refuse_gone(group, context, to);
    lksi_progress_describe(group, context, doing, sizeof doing);
    return lksi_error(status, "%s cannot be reached: %s; %s", lksi_rank_describe(group, to).text, why, doing);
}

static lks_status connect_to(lks_group *group, lksi_context context, int to) {
    lksi_door_hello hello = {.group_id = group->id, .purpose = (int32_t)context, .from = group->rank};
    int descriptor = -1;
    lks_status status = lksi_dial(&group->members[to].address, group->world->secret.key, &hello, sizeof hello,
                                  lksi_deadline_ns(group, context), false, lksi_tcp_is_over, group, &descriptor);
    if (status == LKS_OK) status = watch_stream(group, context, descriptor, EPOLLOUT, to);
    if (status == LKS_OK) {
        tcp_of(group)->out[context][to] = descriptor;
        return LKS_OK;
    }
    if (descriptor >= 0) close(descriptor);
    return unreachable(group, context, to, status);
}

static lks_status write_some(lks_group *group, lksi_context context, int to, const struct iovec *parts, int n_parts,
                             size_t *n_written) {
    int *descriptor = &tcp_of(group)->out[context][to];
    if (*descriptor < 0) LKS_TRY(connect_to(group, context, to));
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)n_parts};
    ssize_t n = sendmsg(*descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    *n_written = n > 0 ? (size_t)n : 0;
    bool is_full = n < 0 && is_again(errno);
    /* A forked child may keep the connection of a rank open that is gone. */
    if (is_full && lksi_tcp_is_gone(group, to)) return ended(group, context, to);
    if (n >= 0 || is_full) return LKS_OK;
    return errno == EFAULT ? refuse_buffer(group, context, "read") : ended(group, context, to);
}

/* --- in --- */

static size_t take_ahead(lksi_tcp_in *in, void *data, size_t nbytes) {
    size_t n = in->end - in->begin < nbytes ? in->end - in->begin : nbytes;
    lksi_copy(data, in->ahead + in->begin, n);
    in->begin += n;
    return n;
}

/* Without a stream, only a goodbye or a failed visit shows that nothing will come. Our watch thread learns of that
 * after it has accepted all streams that the rank had opened before. So is_gone is read first, then `descriptor`. */
static lks_status read_nothing(lks_group *group, lksi_context context, int from) {
    const lksi_tcp_in *in = &tcp_of(group)->in[context][from];
    bool is_gone = lksi_tcp_is_gone(group, from);
    return is_gone && atomic_load(&in->descriptor) < 0 ? ended(group, context, from) : LKS_OK;
}

static lks_status read_some(lks_group *group, lksi_context context, int from, void *data, size_t nbytes,
                            size_t *n_read) {
    lksi_tcp_in *in = &tcp_of(group)->in[context][from];
    int descriptor = atomic_load_explicit(&in->descriptor, memory_order_acquire);
    *n_read = take_ahead(in, data, nbytes);
    if (*n_read > 0 || nbytes == 0) return LKS_OK;
    if (descriptor < 0) return read_nothing(group, context, from);
    if (in->ahead == NULL) in->ahead = lksi_alloc(LKSI_TCP_READ_AHEAD_NBYTES);
    if (in->ahead == NULL) return LKS_ERR_MEMORY;
    struct iovec parts[] = {{data, nbytes}, {in->ahead, LKSI_TCP_READ_AHEAD_NBYTES}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = nbytes < LKSI_TCP_READ_AHEAD_NBYTES ? 2 : 1};
    ssize_t n = recvmsg(descriptor, &message, MSG_DONTWAIT);
    if (n < 0 && is_again(errno)) return LKS_OK;
    if (n < 0 && errno == EFAULT) return refuse_buffer(group, context, "written");
    if (n <= 0) return ended(group, context, from);
    *n_read = (size_t)n < nbytes ? (size_t)n : nbytes;
    in->begin = 0, in->end = (size_t)n - *n_read;
    return LKS_OK;
}

/* Fails if an awaited rank has no stream yet and this process cannot accept one. It is called for awaited ranks only: a
 * failure to accept others is no error. */
static lks_status attend(lks_group *group, lksi_context context, int rank) {
    lksi_tcp_attend(group, rank);
    if (atomic_load(&tcp_of(group)->in[context][rank].descriptor) >= 0) return LKS_OK;
    lks_status status = lksi_acceptor_check(group->world->acceptor);
    return status == LKS_OK ? LKS_OK : unreachable(group, context, rank, status);
}

/* The epoll is edge-triggered, so that unwanted data on a stream does not wake the thread again and again. The caller
 * has tried its streams before and found nothing, so later data is a new edge. */
static void sleep_on_streams(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                             int64_t limit_ns) {
    (void)interests, (void)n_interests;
    struct epoll_event events[16];
    struct timespec limit = {.tv_sec = (time_t)(limit_ns / 1000000000), .tv_nsec = (long)(limit_ns % 1000000000)};
    int n = epoll_pwait2(tcp_of(group)->epoll[context], events, 16, &limit, NULL);
    if (n < 0 && errno != EINTR) /* Linux before 5.11, or a container that forbids epoll_pwait2 */
        epoll_wait(tcp_of(group)->epoll[context], events, 16, (int)((limit_ns + 999999) / 1000000));
}

/* --- the group's life --- */

static void close_one(int descriptor) {
    if (descriptor >= 0) close(descriptor);
}

/* A forked child may hold a copy of the descriptor. The shutdown ends the stream nevertheless. */
static void end_stream(int descriptor) {
    if (descriptor >= 0) (void)shutdown(descriptor, SHUT_WR);
    close_one(descriptor);
}

static void tcp_close(lks_group *group) {
    lksi_tcp *tcp = group->remote_state;
    lksi_tcp_star_close(group);
    for (int context = 0; context < LKSI_N_CONTEXTS; context++) {
        for (int rank = 0; rank < group->size; rank++) {
            if (tcp->out[context] != NULL) end_stream(tcp->out[context][rank]);
            if (tcp->in[context] == NULL) continue;
            close_one(atomic_load(&tcp->in[context][rank].descriptor));
            lksi_free(tcp->in[context][rank].ahead);
        }
        close_one(tcp->epoll[context]);
        lksi_free(tcp->out[context]);
        lksi_free(tcp->in[context]);
    }
    lksi_free(tcp);
}

static const lksi_remote tcp_remote = {.name = "tcp",
                                       .write_some = write_some,
                                       .read_some = read_some,
                                       .sleep = sleep_on_streams,
                                       .announce = lksi_tcp_announce,
                                       .has_left = lksi_tcp_star_has_left,
                                       .attend = attend,
                                       .roll_call = lksi_tcp_roll_call,
                                       .close = tcp_close};

static lks_status create_streams(const lks_group *group, lksi_tcp *tcp) {
    size_t n = (size_t)group->size;
    for (int context = 0; context < LKSI_N_CONTEXTS; context++) {
        tcp->out[context] = lksi_alloc_array(n, sizeof(int));
        if (tcp->out[context] == NULL) return LKS_ERR_MEMORY;
        for (size_t rank = 0; rank < n; rank++) tcp->out[context][rank] = -1;
        tcp->in[context] = lksi_alloc_array(n, sizeof(lksi_tcp_in));
        if (tcp->in[context] == NULL) return LKS_ERR_MEMORY;
        for (size_t rank = 0; rank < n; rank++) atomic_init(&tcp->in[context][rank].descriptor, -1);
        tcp->epoll[context] = epoll_create1(EPOLL_CLOEXEC);
        if (tcp->epoll[context] < 0) return lksi_error_errno("epoll_create1");
    }
    return LKS_OK;
}

/* A second stream for the same purpose cannot come from a rank of this group. It is dropped, and the first one stays.
 */
void lksi_tcp_take(lks_group *group, const lksi_door_hello *hello, int descriptor) {
    lksi_tcp *tcp = group->remote_state;
    bool is_known = hello->from >= 0 && hello->from < group->size && hello->from != group->rank;
    if (is_known && hello->purpose == LKSI_DOOR_CONTROL) {
        lksi_tcp_star_take(group, hello->from, descriptor);
        return;
    }
    if (is_known && hello->purpose == LKSI_DOOR_VISIT) {
        lksi_tcp_welcome(group, hello->from, descriptor);
        return;
    }
    if (is_known && hello->purpose >= 0 && hello->purpose < LKSI_N_CONTEXTS) {
        lksi_tcp_in *in = &tcp->in[hello->purpose][hello->from];
        int none = -1;
        if (atomic_compare_exchange_strong(&in->descriptor, &none, descriptor)) {
            (void)watch_stream(group, (lksi_context)hello->purpose, descriptor, EPOLLIN | EPOLLRDHUP, hello->from);
            return;
        }
    }
    lksi_log(LKS_LOG_WARNING, "a connection that claims to be rank %d was dropped", (int)hello->from);
    close(descriptor);
}

lks_status lksi_tcp_join(lks_group *group, int *connections) {
    lksi_tcp *tcp = lksi_alloc(sizeof *tcp);
    if (tcp == NULL) return LKS_ERR_MEMORY;
    tcp->epoll[0] = tcp->epoll[1] = -1;
    group->remote = &tcp_remote;
    group->remote_state = tcp;
    LKS_TRY(create_streams(group, tcp));
    return lksi_tcp_star_join(group, connections);
}
