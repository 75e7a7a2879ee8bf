#define _GNU_SOURCE /* accept4 */
#include "comm/bootstrap/acceptor.h"

#include "comm/bootstrap/local_key.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    N_PLACES = 64,
    N_ACCEPTED_PER_STEP = 16, /* then the connections in progress are served */
    TICK_MS = 250,
    N_LINES_PER_SECOND = 5,
};
#define HANDSHAKE_LIMIT_NS (INT64_C(10) * 1000 * 1000 * 1000)
/* A dialler with another key gives up after five seconds. So a peer may be a rank with a wrong key if it has tried for
 * four seconds. */
#define INSISTENCE_NS (INT64_C(4) * 1000 * 1000 * 1000)
#define SECOND_NS (INT64_C(1000) * 1000 * 1000)
/* Another part of the process may have used up the descriptors for a moment. */
#define OUT_LIMIT_NS SECOND_NS

/* data.u32 of an epoll event: the index of a place, or one of these. */
enum { ABOUT_LISTENER = N_PLACES, ABOUT_CLOCK, ABOUT_KEY };

typedef struct place {
    bool is_taken, is_writing;
    int64_t since_ns;
    uint64_t number; /* order of arrival */
    lksi_address peer;
    lksi_auth auth;
} place;

struct lksi_acceptor {
    int listener, key_listener, epoll, clock; /* key_listener -1: the key is not handed out */
    unsigned char key[LKSI_KEY_NBYTES];
    size_t hello_nbytes;
    lksi_accepted accepted;
    void *argument;
    bool is_listener_paused;      /* the process was out of descriptors; the next tick retries */
    bool has_warned;              /* that the process was out of descriptors */
    _Atomic int64_t out_since_ns; /* since when a connection waits while no unproven one holds a descriptor; 0: none */
    atomic_int out_error;
    int n_taken;
    uint64_t n_accepted;
    int64_t second_ns; /* the current second, lines logged in it and lines left out */
    int n_lines, n_unsaid;
    char other_key_peer[LKSI_ADDRESS_TEXT_NBYTES]; /* who tried with another key (without port), and when */
    int64_t other_key_first_ns, other_key_last_ns;
    char last_said[160]; /* the last line logged (without port); it is not repeated */
    place places[N_PLACES];
};

static void watch(lksi_acceptor *acceptor, int operation, int descriptor, uint32_t events, uint32_t about) {
    struct epoll_event event = {.events = events, .data.u32 = about};
    (void)epoll_ctl(acceptor->epoll, operation, descriptor, &event);
}

/* The clock ticks only while a timeout is pending, so that an idle acceptor causes no wakeups. */
static void set_clock(lksi_acceptor *acceptor) {
    bool must_tick = acceptor->n_taken > 0 || acceptor->is_listener_paused || acceptor->n_unsaid > 0;
    long tick_ns = must_tick ? TICK_MS * 1000000L : 0;
    struct itimerspec times = {.it_value.tv_nsec = tick_ns, .it_interval.tv_nsec = tick_ns}, old;
    if (timerfd_gettime(acceptor->clock, &old) == 0 && (old.it_interval.tv_nsec != 0) == must_tick) return;
    (void)timerfd_settime(acceptor->clock, 0, &times, NULL);
}

/* --- strangers --- */

static void begin_second(lksi_acceptor *acceptor) {
    int64_t now = lksi_now_ns();
    if (now - acceptor->second_ns < SECOND_NS) return;
    if (acceptor->n_unsaid > 0)
        lksi_log(LKS_LOG_WARNING, "%d more connections were dropped before they were let in", acceptor->n_unsaid);
    acceptor->second_ns = now;
    acceptor->n_lines = acceptor->n_unsaid = 0;
}

static void say_dropped(lksi_acceptor *acceptor, const lksi_address *peer, const char *why) {
    char address[LKSI_ADDRESS_TEXT_NBYTES], host[LKSI_ADDRESS_TEXT_NBYTES], said[sizeof acceptor->last_said];
    begin_second(acceptor);
    lksi_address_text(peer, address);
    lksi_address_host_text(peer, host);
    snprintf(said, sizeof said, "%s %s", host, why);
    if (acceptor->n_lines == N_LINES_PER_SECOND || strcmp(said, acceptor->last_said) == 0) {
        acceptor->n_unsaid++;
        return;
    }
    acceptor->n_lines++;
    memcpy(acceptor->last_said, said, sizeof said);
    lksi_log(LKS_LOG_WARNING, "a connection from %s was dropped: it %s", address, why);
}

/* The time of insistence starts anew for another peer, and for a peer that returns after two seconds. */
static void note_other_key(lksi_acceptor *acceptor, const lksi_address *peer) {
    char host[LKSI_ADDRESS_TEXT_NBYTES];
    int64_t now = lksi_now_ns();
    lksi_address_host_text(peer, host);
    bool is_known = strcmp(host, acceptor->other_key_peer) == 0;
    bool is_recent = now - acceptor->other_key_last_ns < 2 * SECOND_NS;
    if (!is_known && is_recent) return;
    if (!is_known || !is_recent) acceptor->other_key_first_ns = now;
    acceptor->other_key_last_ns = now;
    memcpy(acceptor->other_key_peer, host, sizeof host);
}

bool lksi_acceptor_hears_other_key(const lksi_acceptor *acceptor, char peer[LKSI_ADDRESS_TEXT_NBYTES]) {
    memcpy(peer, acceptor->other_key_peer, sizeof acceptor->other_key_peer);
    return acceptor->other_key_last_ns - acceptor->other_key_first_ns >= INSISTENCE_NS;
}

/* The descriptor must be removed from the epoll explicitly. Closing it does not remove it if a forked child holds a
 * copy. */
static void vacate(lksi_acceptor *acceptor, place *left) {
    watch(acceptor, EPOLL_CTL_DEL, left->auth.descriptor, 0, 0);
    left->is_taken = false;
    acceptor->n_taken--;
}

static void drop(lksi_acceptor *acceptor, place *dropped, const char *why) {
    say_dropped(acceptor, &dropped->peer, why);
    vacate(acceptor, dropped);
    close(dropped->auth.descriptor);
}

/* --- handshakes --- */

static void serve(lksi_acceptor *acceptor, place *served) {
    char why[96];
    lksi_auth_result result = lksi_auth_step(&served->auth);
    int connection = served->auth.descriptor;
    if (result == LKSI_AUTH_FAILED) {
        lksi_auth_describe_failure(&served->auth, why, sizeof why);
        if (served->auth.failure == LKSI_AUTH_OTHER_KEY) note_other_key(acceptor, &served->peer);
        drop(acceptor, served, why);
    } else if (result == LKSI_AUTH_DONE) {
        vacate(acceptor, served);
        acceptor->accepted(acceptor->argument, connection, served->auth.hello);
    } else if (served->is_writing != (result == LKSI_AUTH_WANTS_WRITE)) {
        served->is_writing = !served->is_writing;
        watch(acceptor, EPOLL_CTL_MOD, connection, served->is_writing ? EPOLLOUT : EPOLLIN,
              (uint32_t)(served - acceptor->places));
    }
}

static bool goes_before(const place *a, const place *b) {
    bool a_is_silent = a->auth.stage == LKSI_AUTH_STAGE_GREETING,
         b_is_silent = b->auth.stage == LKSI_AUTH_STAGE_GREETING;
    return a_is_silent != b_is_silent ? a_is_silent : a->number < b->number;
}

/* Returns a free place. If there is none, drops the oldest silent connection, or the oldest connection if none is
 * silent. */
static place *make_room(lksi_acceptor *acceptor) {
    place *oldest = &acceptor->places[0];
    for (int i = 0; i < N_PLACES; i++) {
        place *each = &acceptor->places[i];
        if (!each->is_taken) return each;
        if (goes_before(each, oldest)) oldest = each;
    }
    drop(acceptor, oldest, "made room for the next before it had said who it is");
    return oldest;
}

static void admit(lksi_acceptor *acceptor, int connection, const lksi_address *peer) {
    int one = 1;
    (void)setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    place *taken = make_room(acceptor);
    lks_status status = lksi_auth_begin(&taken->auth, connection, false, acceptor->key, NULL, acceptor->hello_nbytes);
    if (status != LKS_OK) {
        close(connection);
        return;
    }
    taken->is_taken = true, taken->is_writing = false;
    taken->since_ns = lksi_now_ns();
    taken->number = acceptor->n_accepted++;
    taken->peer = *peer;
    acceptor->n_taken++;
    watch(acceptor, EPOLL_CTL_ADD, connection, EPOLLIN, (uint32_t)(taken - acceptor->places));
    serve(acceptor, taken);
}

static void pause_listener(lksi_acceptor *acceptor, bool is_paused) {
    if (acceptor->is_listener_paused == is_paused) return;
    acceptor->is_listener_paused = is_paused;
    watch(acceptor, EPOLL_CTL_MOD, acceptor->listener, is_paused ? 0 : EPOLLIN, ABOUT_LISTENER);
}

/* Without free descriptors accept fails even if no connection waits, so the queue is polled first. A waiting connection
 * stays in the queue and would keep the listener readable, so the listener is not watched until the next tick. */
static void run_out(lksi_acceptor *acceptor, int error) {
    char why[LKSI_ERRNO_TEXT_NBYTES];
    struct pollfd queue = {.fd = acceptor->listener, .events = POLLIN};
    if (poll(&queue, 1, 0) <= 0) return;
    pause_listener(acceptor, true);
    if (acceptor->n_taken == 0 && atomic_load(&acceptor->out_since_ns) == 0) {
        atomic_store(&acceptor->out_error, error);
        atomic_store(&acceptor->out_since_ns, lksi_now_ns());
    }
    lksi_errno_describe(error, why);
    if (!acceptor->has_warned) lksi_log(LKS_LOG_WARNING, "a connection waits to be let in: %s", why);
    acceptor->has_warned = true;
}

lks_status lksi_acceptor_check(const lksi_acceptor *acceptor) {
    char why[LKSI_ERRNO_TEXT_NBYTES];
    const int64_t since_ns = atomic_load(&acceptor->out_since_ns);
    if (since_ns == 0 || lksi_now_ns() - since_ns < OUT_LIMIT_NS) return LKS_OK;
    lksi_errno_describe(atomic_load(&acceptor->out_error), why);
    return lksi_error(LKS_ERR_SYSTEM, "a connection cannot be let in: %s", why);
}

/* Accepts waiting connections. A connection that ended while it waited is not an error. */
static void accept_some(lksi_acceptor *acceptor) {
    for (int i = 0; i < N_ACCEPTED_PER_STEP; i++) {
        lksi_address peer = {.nbytes = sizeof peer.storage};
        int connection =
            accept4(acceptor->listener, (struct sockaddr *)&peer.storage, &peer.nbytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (connection >= 0) {
            atomic_store(&acceptor->out_since_ns, 0);
            admit(acceptor, connection, &peer);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            run_out(acceptor, errno);
            return;
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return;
        }
    }
}

static void tick(lksi_acceptor *acceptor) {
    uint64_t n_ticks;
    if (read(acceptor->clock, &n_ticks, sizeof n_ticks) != sizeof n_ticks) return;
    int64_t now = lksi_now_ns();
    for (int i = 0; i < N_PLACES; i++) {
        place *each = &acceptor->places[i];
        if (each->is_taken && now - each->since_ns > HANDSHAKE_LIMIT_NS)
            drop(acceptor, each, "had not said who it is after 10 seconds");
    }
    begin_second(acceptor);
    pause_listener(acceptor, false);
}

/* Edge-triggered, because without free descriptors a waiting connection would wake this thread for ever. Its peer tries
 * again, which is another edge. */
static void watch_for_key(lksi_acceptor *acceptor, int operation) {
    watch(acceptor, operation, acceptor->key_listener, EPOLLIN | EPOLLET, ABOUT_KEY);
}

void lksi_acceptor_hand_out_key(lksi_acceptor *acceptor, int listener) {
    acceptor->key_listener = listener;
    watch_for_key(acceptor, EPOLL_CTL_ADD);
}

/* A place may have been reused since its event was reported. Then there is nothing to read yet, and serve does
 * nothing. */
void lksi_acceptor_step(lksi_acceptor *acceptor) {
    struct epoll_event events[N_PLACES + 3];
    int n_events = epoll_wait(acceptor->epoll, events, N_PLACES + 3, 0);
    for (int i = 0; i < n_events; i++) {
        uint32_t about = events[i].data.u32;
        if (about == ABOUT_CLOCK)
            tick(acceptor);
        else if (about == ABOUT_LISTENER)
            accept_some(acceptor);
        else if (about == ABOUT_KEY) {
            if (!lksi_local_key_hand_out(acceptor->key_listener, acceptor->key)) watch_for_key(acceptor, EPOLL_CTL_MOD);
        } else if (acceptor->places[about].is_taken)
            serve(acceptor, &acceptor->places[about]);
    }
    set_clock(acceptor);
}

int lksi_acceptor_descriptor(const lksi_acceptor *acceptor) { return acceptor->epoll; }

lks_status lksi_acceptor_create(lksi_acceptor **acceptor, int listener, const unsigned char key[LKSI_KEY_NBYTES],
                                size_t hello_nbytes, lksi_accepted accepted, void *argument) {
    lksi_acceptor *created = lksi_alloc(sizeof *created);
    if (created == NULL) return LKS_ERR_MEMORY;
    created->listener = listener, created->key_listener = -1;
    created->hello_nbytes = hello_nbytes;
    created->accepted = accepted, created->argument = argument;
    memcpy(created->key, key, sizeof created->key);
    created->epoll = epoll_create1(EPOLL_CLOEXEC);
    created->clock = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = ABOUT_LISTENER};
    int flags = fcntl(listener, F_GETFL);
    if (created->epoll < 0 || created->clock < 0 || flags < 0 || fcntl(listener, F_SETFL, flags | O_NONBLOCK) < 0 ||
        epoll_ctl(created->epoll, EPOLL_CTL_ADD, listener, &event) != 0) {
        lks_status status = lksi_error_errno("cannot serve a listening socket");
        lksi_acceptor_destroy(created);
        return status;
    }
    watch(created, EPOLL_CTL_ADD, created->clock, EPOLLIN, ABOUT_CLOCK);
    *acceptor = created;
    return LKS_OK;
}

void lksi_acceptor_destroy(lksi_acceptor *acceptor) {
    if (acceptor == NULL) return;
    for (int i = 0; i < N_PLACES; i++)
        if (acceptor->places[i].is_taken) close(acceptor->places[i].auth.descriptor);
    if (acceptor->epoll >= 0) watch(acceptor, EPOLL_CTL_DEL, acceptor->listener, 0, 0);
    if (acceptor->epoll >= 0) watch(acceptor, EPOLL_CTL_DEL, acceptor->key_listener, 0, 0);
    if (acceptor->clock >= 0) close(acceptor->clock);
    if (acceptor->epoll >= 0) close(acceptor->epoll);
    lksi_free(acceptor);
}

void lksi_acceptor_forget(lksi_acceptor *acceptor) { lksi_free(acceptor); }
