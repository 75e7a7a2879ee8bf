/* comm/: who is let in over TCP and who is not: handshake, acceptor, dialler, and the records of the star on a
 * connection. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "test.h"

#include "comm/bootstrap/acceptor.h"
#include "comm/bootstrap/dial.h"
#include "comm/bootstrap/host.h"
#include "comm/bootstrap/local_key.h"
#include "comm/bootstrap/star.h"
#include "comm/bootstrap/store.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND_NS (INT64_C(1000) * 1000 * 1000)

static const unsigned char key[LKSI_KEY_NBYTES] = "the key of this job", other_key[LKSI_KEY_NBYTES] = "another";

static int64_t soon_ns(void) { return lksi_now_ns() + 20 * SECOND_NS; }

/* --- the handshake --- */

typedef struct pair {
    int ends[2]; /* [0] is the dialler's, [1] the acceptor's */
    lksi_auth dialler, acceptor;
} pair;

static void pair_open(pair *p, const unsigned char *dialler_key, const unsigned char *acceptor_key) {
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, p->ends), 0);
    assert_ok(lksi_auth_begin(&p->dialler, p->ends[0], true, dialler_key, "hello", 6));
    assert_ok(lksi_auth_begin(&p->acceptor, p->ends[1], false, acceptor_key, NULL, 6));
}

static void pair_close(const pair *p) {
    close(p->ends[0]);
    close(p->ends[1]);
}

/* Both sides are non-blocking. Four rounds are more than the handshake has messages. */
static void pair_run(pair *p, lksi_auth_result *dialler, lksi_auth_result *acceptor) {
    for (int round = 0; round < 4; round++) {
        *dialler = lksi_auth_step(&p->dialler);
        *acceptor = lksi_auth_step(&p->acceptor);
    }
}

static void both_sides_prove_the_key(void **state) {
    (void)state;
    pair p;
    lksi_auth_result dialler, acceptor;
    char rest[16];
    pair_open(&p, key, key);
    pair_run(&p, &dialler, &acceptor);
    assert_int_equal(dialler, LKSI_AUTH_DONE);
    assert_int_equal(acceptor, LKSI_AUTH_DONE);
    assert_string_equal((const char *)p.acceptor.hello, "hello");
    assert_int_equal(write(p.ends[0], "rest", 5), 5); /* the handshake reads not a byte beyond its end */
    assert_int_equal(lksi_auth_step(&p.acceptor), LKSI_AUTH_DONE);
    assert_int_equal(read(p.ends[1], rest, sizeof rest), 5);
    assert_string_equal(rest, "rest");
    assert_int_equal(read(p.ends[0], rest, sizeof rest), -1);
    pair_close(&p);
}

static void another_key_is_refused_on_both_sides(void **state) {
    (void)state;
    pair p;
    lksi_auth_result dialler, acceptor;
    char text[96];
    pair_open(&p, key, other_key);
    pair_run(&p, &dialler, &acceptor);
    assert_int_equal(dialler, LKSI_AUTH_FAILED);
    assert_int_equal(acceptor, LKSI_AUTH_FAILED);
    assert_int_equal(p.acceptor.failure, LKSI_AUTH_OTHER_KEY);
    lksi_auth_describe_failure(&p.dialler, text, sizeof text);
    assert_string_equal(text, "knows another LOCKSTEP_JOB_KEY");
    pair_close(&p);
}

/* Relays bytes from `from` to `to`, as a man in the middle, and appends them to `said`. Returns their new number. */
static size_t overhear(int from, int to, unsigned char *said, size_t n_said) {
    ssize_t n = read(from, said + n_said, 512);
    if (n <= 0) return n_said;
    assert_int_equal(write(to, said + n_said, (size_t)n), n);
    return n_said + (size_t)n;
}

static void a_replayed_handshake_is_refused(void **state) {
    (void)state;
    pair dialling, accepting, fresh;
    unsigned char of_dialler[1024], of_acceptor[1024];
    size_t n_dialler = 0, n_acceptor = 0;
    pair_open(&dialling, key, key); /* only the dialler of this pair and the acceptor of the other one are used */
    pair_open(&accepting, key, key);
    for (int round = 0; round < 4; round++) {
        (void)lksi_auth_step(&dialling.dialler);
        n_dialler = overhear(dialling.ends[1], accepting.ends[0], of_dialler, n_dialler);
        (void)lksi_auth_step(&accepting.acceptor);
        n_acceptor = overhear(accepting.ends[0], dialling.ends[1], of_acceptor, n_acceptor);
    }
    assert_int_equal(lksi_auth_step(&dialling.dialler), LKSI_AUTH_DONE);
    assert_int_equal(lksi_auth_step(&accepting.acceptor), LKSI_AUTH_DONE);
    pair_open(&fresh, key, key);
    assert_int_equal(write(fresh.ends[0], of_dialler, n_dialler), (ssize_t)n_dialler);
    assert_int_equal(lksi_auth_step(&fresh.acceptor), LKSI_AUTH_FAILED);
    assert_int_equal(fresh.acceptor.failure, LKSI_AUTH_OTHER_KEY);
    pair_close(&fresh);
    pair_open(&fresh, key, key);
    assert_int_equal(write(fresh.ends[1], of_acceptor, n_acceptor), (ssize_t)n_acceptor);
    assert_int_equal(lksi_auth_step(&fresh.dialler), LKSI_AUTH_FAILED);
    assert_int_equal(fresh.dialler.failure, LKSI_AUTH_OTHER_KEY);
    pair_close(&fresh);
    pair_close(&dialling);
    pair_close(&accepting);
}

/* A side that gets its own messages back sees a proof with the right key, but of the wrong role. This dialler sends an
 * empty hello: its messages then have the lengths that it expects, which is the best that a reflection can do. */
static void a_reflected_handshake_is_refused(void **state) {
    (void)state;
    int ends[2];
    unsigned char said[512];
    lksi_auth auth;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    assert_ok(lksi_auth_begin(&auth, ends[0], true, key, NULL, 0));
    for (int round = 0; round < 2; round++) {
        assert_int_equal(lksi_auth_step(&auth), LKSI_AUTH_WANTS_READ);
        ssize_t n = read(ends[1], said, sizeof said);
        assert_true(n > 0);
        assert_int_equal(write(ends[1], said, (size_t)n), n);
    }
    assert_int_equal(lksi_auth_step(&auth), LKSI_AUTH_FAILED);
    assert_int_equal(auth.failure, LKSI_AUTH_OTHER_KEY);
    close(ends[0]);
    close(ends[1]);
}

static lksi_auth_failure failure_of(const void *bytes, size_t nbytes) {
    lksi_auth auth;
    size_t n_taken = 0, n;
    assert_ok(lksi_auth_begin(&auth, -1, false, key, NULL, sizeof(lksi_rendezvous_hello)));
    while ((n = lksi_auth_take(&auth, (const char *)bytes + n_taken, nbytes - n_taken)) > 0) n_taken += n;
    assert_true(auth.stage == LKSI_AUTH_STAGE_FAILED || n_taken == nbytes);
    return auth.failure;
}

static void garbage_and_lengths_are_refused(void **state) {
    (void)state;
    unsigned char noise[600];
    memset(noise, 0xff, sizeof noise);
    assert_int_equal(failure_of(noise, sizeof noise), LKSI_AUTH_GARBAGE);
    memcpy(noise, "GET / HTTP/1.1\r\n\r\n", 18);
    assert_int_equal(failure_of(noise, sizeof noise), LKSI_AUTH_GARBAGE);
    lksi_greeting greeting = {
        .magic = LKSI_AUTH_MAGIC, .version = LKSI_AUTH_VERSION, .hello_nbytes = 0xffffffffu /* 4 GiB */};
    assert_int_equal(failure_of(&greeting, sizeof greeting), LKSI_AUTH_OTHER_VERSION);
    greeting.hello_nbytes = sizeof(lksi_rendezvous_hello);
    assert_int_equal(failure_of(&greeting, sizeof greeting), LKSI_AUTH_NO_FAILURE); /* it waits for the proof */
    assert_int_equal(failure_of(noise, 20), LKSI_AUTH_NO_FAILURE);                  /* the greeting is incomplete */
}

static void another_version_is_named_on_both_sides(void **state) {
    (void)state;
    pair p;
    lksi_auth_result dialler, acceptor;
    char text[96];
    pair_open(&p, key, key);
    lksi_greeting newer = {.magic = LKSI_AUTH_MAGIC, .version = 7, .hello_nbytes = 6};
    memcpy(p.dialler.out, &newer, sizeof newer);
    pair_run(&p, &dialler, &acceptor);
    assert_int_equal(acceptor, LKSI_AUTH_FAILED);
    lksi_auth_describe_failure(&p.acceptor, text, sizeof text);
    assert_string_equal(text, "speaks version 7 of the handshake, this one version 1");
    lksi_greeting answer; /* the acceptor has sent its own version */
    pair_close(&p);
    pair_open(&p, key, key);
    assert_int_equal(write(p.ends[0], &newer, sizeof newer), (ssize_t)sizeof newer);
    assert_int_equal(lksi_auth_step(&p.acceptor), LKSI_AUTH_FAILED);
    assert_int_equal(read(p.ends[0], &answer, sizeof answer), (ssize_t)sizeof answer);
    assert_int_equal(answer.version, LKSI_AUTH_VERSION);
    pair_close(&p);
}

static void a_handshake_may_come_byte_by_byte(void **state) {
    (void)state;
    pair slow, p;
    unsigned char byte;
    pair_open(&slow, key, key); /* only its dialler is used */
    pair_open(&p, key, key);    /* only its acceptor is used */
    lksi_auth_result dialler = LKSI_AUTH_WANTS_READ, acceptor = LKSI_AUTH_WANTS_READ;
    for (int i = 0; i < 1000 && (dialler != LKSI_AUTH_DONE || acceptor != LKSI_AUTH_DONE); i++) {
        dialler = lksi_auth_step(&slow.dialler);
        if (read(slow.ends[1], &byte, 1) == 1) assert_int_equal(write(p.ends[0], &byte, 1), 1);
        acceptor = lksi_auth_step(&p.acceptor);
        if (read(p.ends[0], &byte, 1) == 1) assert_int_equal(write(slow.ends[1], &byte, 1), 1);
    }
    assert_int_equal(dialler, LKSI_AUTH_DONE);
    assert_int_equal(acceptor, LKSI_AUTH_DONE);
    pair_close(&slow);
    pair_close(&p);
}

/* --- addresses --- */

static void addresses_are_read_and_written(void **state) {
    (void)state;
    lksi_address address;
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    assert_ok(lksi_address_parse("X", "127.0.0.2:80", &address));
    lksi_address_text(&address, text);
    assert_string_equal(text, "127.0.0.2:80");
    lksi_address_host_text(&address, text);
    assert_string_equal(text, "127.0.0.2");
    assert_true(lksi_address_is_loopback(&address) && lksi_address_is_valid(&address));
    assert_ok(lksi_address_parse("X", "[::1]:65535", &address));
    lksi_address_text(&address, text);
    assert_string_equal(text, "[::1]:65535");
    lksi_address_host_text(&address, text);
    assert_string_equal(text, "::1");
    lksi_address same = address;
    assert_true(lksi_address_is_same(&address, &same));
    lksi_address_set_port(&same, 65534);
    assert_false(lksi_address_is_same(&address, &same));
    assert_true(lksi_address_is_loopback(&address) && lksi_address_is_valid(&address));
    assert_ok(lksi_address_resolve("[fe80::1]", 1, &address));
    assert_false(lksi_address_is_loopback(&address));
    assert_ok(lksi_address_resolve("10.1.2.3", 1, &address));
    assert_false(lksi_address_is_loopback(&address));
    assert_ok(lksi_address_resolve("localhost", 1, &address));
    assert_true(lksi_address_is_loopback(&address));
    address.nbytes = 4000;
    assert_false(lksi_address_is_valid(&address));
    static const char *const wrong[] = {"", ":1", "host", "host:", "host:0", "host:65536", "::1:80", "[::1]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(lksi_address_parse("LOCKSTEP_ADVERTISE", wrong[i], &address), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), "LOCKSTEP_ADVERTISE is '"));
    }
    assert_int_equal(lksi_address_resolve("", 1, &address), LKS_ERR_ARGUMENT);
}

/* The first requests for a name fail, as if no name server answered yet. */
static atomic_int n_unanswered;

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (atomic_load(&n_unanswered) > 0 && atomic_fetch_sub(&n_unanswered, 1) > 0) return EAI_AGAIN;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(host, service, hints, found);
}

static bool give_up(void *n_calls) { return ++*(int *)n_calls == 2; }

static void a_host_is_asked_for_again_while_no_name_server_answers(void **state) {
    (void)state;
    lksi_address address;
    n_unanswered = 1;
    assert_int_equal(lksi_address_resolve("127.0.0.1", 1, &address), LKS_ERR_TIMEOUT);
    assert_non_null(strstr(lks_error_text(), "cannot find the host '127.0.0.1': "));
    assert_ok(lksi_address_resolve("127.0.0.1", 1, &address));
    n_unanswered = 2;
    assert_ok(lksi_address_await("127.0.0.1", 80, soon_ns(), NULL, NULL, &address));
    assert_int_equal(lksi_address_port(&address), 80);
    n_unanswered = 1;
    assert_int_equal(lksi_address_await("127.0.0.1", 80, lksi_now_ns(), NULL, NULL, &address), LKS_ERR_TIMEOUT);
    int n_calls = 0;
    n_unanswered = 100;
    assert_int_equal(lksi_address_await("127.0.0.1", 80, soon_ns(), give_up, &n_calls, &address), LKS_ERR_TIMEOUT);
    assert_int_equal(n_calls, 2);
    n_unanswered = 0;
    assert_int_equal(lksi_address_await("", 80, soon_ns(), NULL, NULL, &address), LKS_ERR_ARGUMENT);
}

static void the_host_id_follows_its_variable(void **state) {
    (void)state;
    uint64_t real = lksi_host_id(NULL);
    assert_true(real == lksi_host_id(NULL));
    assert_true(lksi_host_id("n1") != real && lksi_host_id("n1") != lksi_host_id("n2"));
    setenv("LOCKSTEP_HOST_ID", "a", 1);
    uint64_t a = lksi_host_id(NULL);
    setenv("LOCKSTEP_HOST_ID", "b", 1);
    assert_true(a != lksi_host_id(NULL) && a != real);
    assert_true(lksi_host_id("n1") == lksi_host_id("n2"));
    unsetenv("LOCKSTEP_HOST_ID");
}

/* --- acceptor and dialler --- */

typedef struct guests {
    int n_let_in, connections[16];
    char hello[16];
} guests;

static void let_in(void *argument, int connection, const void *hello) {
    guests *g = argument;
    memcpy(g->hello, hello, 6);
    g->connections[g->n_let_in++] = connection;
}

typedef struct host {
    lksi_acceptor *acceptor;
    lksi_address at;
    int listener, key_listener;
    guests guests;
} host;

static void host_open(host *h) {
    *h = (host){.listener = -1};
    assert_ok(lksi_address_resolve("127.0.0.1", 0, &h->at));
    assert_ok(lksi_listen(&h->at, &h->listener, &h->at));
    assert_ok(lksi_acceptor_create(&h->acceptor, h->listener, key, 6, let_in, &h->guests));
}

static void host_close(host *h) {
    lksi_acceptor_destroy(h->acceptor);
    close(h->listener);
    for (int i = 0; i < h->guests.n_let_in; i++) close(h->guests.connections[i]);
}

/* Serves until one more peer is let in. */
static void host_serve(void *argument) {
    host *h = argument;
    int n_before = h->guests.n_let_in;
    for (int64_t deadline_ns = soon_ns(); h->guests.n_let_in == n_before && lksi_now_ns() < deadline_ns;) {
        struct pollfd ready = {.fd = lksi_acceptor_descriptor(h->acceptor), .events = POLLIN};
        poll(&ready, 1, 100);
        lksi_acceptor_step(h->acceptor);
    }
}

static int stranger_at(const lksi_address *at) {
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(connection >= 0);
    assert_int_equal(connect(connection, (const struct sockaddr *)&at->storage, at->nbytes), 0);
    return connection;
}

static void strangers_do_not_keep_the_acceptor(void **state) {
    (void)state;
    enum { N_STRANGERS = 200 };
    host h;
    int strangers[N_STRANGERS], connection;
    lksi_thread *thread;
    host_open(&h);
    for (int i = 0; i < N_STRANGERS; i++) {
        strangers[i] = stranger_at(&h.at);
        if (i % 3 == 1)
            assert_int_equal(send(strangers[i], "GET / HTTP/1.1\r\n\r\n" /* garbage */, 18, MSG_NOSIGNAL), 18);
        lksi_acceptor_step(h.acceptor);
    }
    assert_ok(lksi_thread_create(&thread, host_serve, &h, "host"));
    assert_ok(lksi_dial(&h.at, key, "hello", 6, soon_ns(), true, NULL, NULL, &connection));
    lksi_thread_join(thread);
    assert_int_equal(h.guests.n_let_in, 1);
    assert_string_equal(h.guests.hello, "hello");
    int flags = fcntl(h.guests.connections[0], F_GETFL);
    assert_true((flags & O_NONBLOCK) != 0);
    assert_int_equal(fcntl(h.guests.connections[0], F_GETFD), FD_CLOEXEC);
    close(connection);
    for (int i = 0; i < N_STRANGERS; i++) close(strangers[i]);
    host_close(&h);
}

typedef struct slow_dial {
    const host *host;
    atomic_bool may_go_on;
    int connection;
    lks_status status;
} slow_dial;

/* Holds the dialler up after it has connected. */
static bool waits_to_go_on(void *argument) {
    slow_dial *s = argument;
    while (!atomic_load(&s->may_go_on)) lksi_sleep_ns(100000);
    return false;
}

static void dial_slowly(void *argument) {
    slow_dial *s = argument;
    s->status = lksi_dial(&s->host->at, key, "hello", 6, soon_ns(), false, waits_to_go_on, s, &s->connection);
}

/* Strangers take all places while a dialler is in the middle of its handshake, so it loses its place. */
static void who_had_to_make_room_comes_again(void **state) {
    (void)state;
    enum { N_OTHERS = 64 };
    const lksi_greeting greeting = {.magic = LKSI_AUTH_MAGIC, .version = LKSI_AUTH_VERSION, .hello_nbytes = 6};
    host h;
    int others[N_OTHERS];
    lksi_thread *dialler, *server;
    host_open(&h);
    slow_dial s = {.host = &h, .connection = -1};
    assert_ok(lksi_thread_create(&dialler, dial_slowly, &s, "dialler"));
    struct pollfd arrival = {.fd = h.listener, .events = POLLIN};
    assert_int_equal(poll(&arrival, 1, 10000), 1);
    lksi_acceptor_step(h.acceptor);
    for (int i = 0; i < N_OTHERS; i++) {
        others[i] = stranger_at(&h.at);
        assert_int_equal(send(others[i], &greeting, sizeof greeting, MSG_NOSIGNAL), sizeof greeting);
        lksi_acceptor_step(h.acceptor);
    }
    atomic_store(&s.may_go_on, true);
    assert_ok(lksi_thread_create(&server, host_serve, &h, "host"));
    lksi_thread_join(dialler);
    lksi_thread_join(server);
    assert_int_equal(s.status, LKS_OK);
    assert_int_equal(h.guests.n_let_in, 1);
    close(s.connection);
    for (int i = 0; i < N_OTHERS; i++) close(others[i]);
    host_close(&h);
}

static struct rlimit take_descriptors(void) {
    struct rlimit limit, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    return limit;
}

static void host_serve_for(host *h, int64_t duration_ns) {
    for (int64_t until_ns = lksi_now_ns() + duration_ns; lksi_now_ns() < until_ns;) {
        struct pollfd ready = {.fd = lksi_acceptor_descriptor(h->acceptor), .events = POLLIN};
        poll(&ready, 1, 10);
        lksi_acceptor_step(h->acceptor);
    }
}

static void an_acceptor_without_descriptors_waits_for_some(void **state) {
    (void)state;
    host h;
    struct pollfd ready;
    lksi_thread *thread;
    int connection;
    host_open(&h);
    int stranger = stranger_at(&h.at);
    const struct rlimit limit = take_descriptors();
    lksi_acceptor_step(h.acceptor);
    ready = (struct pollfd){.fd = lksi_acceptor_descriptor(h.acceptor), .events = POLLIN};
    int n_ready_at_once = poll(&ready, 1, 0);
    lks_status at_once = lksi_acceptor_check(h.acceptor);
    host_serve_for(&h, INT64_C(1500) * 1000 * 1000);
    lks_status later = lksi_acceptor_check(h.acceptor);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(n_ready_at_once, 0); /* the listen queue is not empty, but the acceptor does not spin */
    assert_int_equal(at_once, LKS_OK);
    assert_int_equal(later, LKS_ERR_SYSTEM);
    assert_non_null(strstr(lks_error_text(), "too many open files here: the limit is 3, and ulimit -n raises it"));
    assert_ok(lksi_thread_create(&thread, host_serve, &h, "host"));
    assert_ok(lksi_dial(&h.at, key, "hello", 6, soon_ns(), false, NULL, NULL, &connection));
    lksi_thread_join(thread);
    assert_int_equal(h.guests.n_let_in, 1);
    assert_ok(lksi_acceptor_check(h.acceptor));
    close(connection);
    close(stranger);
    host_close(&h);
}

/* Handshakes of strangers end within ten seconds and then release their descriptors. */
static void descriptors_that_strangers_hold_are_no_error(void **state) {
    (void)state;
    host h;
    host_open(&h);
    int inside = stranger_at(&h.at);
    host_serve_for(&h, 1000 * 1000);
    int outside = stranger_at(&h.at);
    const struct rlimit limit = take_descriptors();
    host_serve_for(&h, INT64_C(1500) * 1000 * 1000);
    lks_status status = lksi_acceptor_check(h.acceptor);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(status, LKS_OK);
    close(inside);
    close(outside);
    host_close(&h);
}

static void host_serve_a_while(void *argument) { host_serve_for(argument, 300 * 1000 * 1000); }

static bool gives_up(void *argument) { return ++*(int *)argument > 3; }

static void a_dial_that_fails_says_why(void **state) {
    (void)state;
    host h;
    lksi_thread *thread;
    int connection = -1, n_asked = 0;
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    host_open(&h);
    lksi_address_text(&h.at, text);
    assert_ok(lksi_thread_create(&thread, host_serve_a_while, &h, "host"));
    assert_int_equal(lksi_dial(&h.at, other_key, "hello", 6, soon_ns(), false, NULL, NULL, &connection),
                     LKS_ERR_MISMATCH);
    assert_non_null(strstr(lks_error_text(), "the other side knows another LOCKSTEP_JOB_KEY"));
    assert_non_null(strstr(lks_error_text(), text));
    lksi_thread_join(thread);
    /* The host answers, with another key, and then stops answering. */
    assert_ok(lksi_thread_create(&thread, host_serve_a_while, &h, "host"));
    assert_int_equal(lksi_dial(&h.at, other_key, "hello", 6, lksi_now_ns() + SECOND_NS, true, NULL, NULL, &connection),
                     LKS_ERR_TIMEOUT);
    assert_non_null(strstr(lks_error_text(), "the other side knows another LOCKSTEP_JOB_KEY"));
    lksi_thread_join(thread);
    /* Nobody accepts: the kernel completes the connection, but no handshake follows. */
    assert_int_equal(lksi_dial(&h.at, key, "hello", 6, lksi_now_ns() + SECOND_NS / 5, true, NULL, NULL, &connection),
                     LKS_ERR_TIMEOUT);
    assert_non_null(strstr(lks_error_text(), "it does not answer"));
    assert_int_equal(lksi_dial(&h.at, key, "hello", 6, soon_ns(), true, gives_up, &n_asked, &connection), LKS_ERR_PEER);
    assert_non_null(strstr(lks_error_text(), "given up"));
    lksi_address gone = h.at;
    host_close(&h);
    assert_int_equal(lksi_dial(&gone, key, "hello", 6, soon_ns(), false, NULL, NULL, &connection), LKS_ERR_PEER);
    assert_non_null(strstr(lks_error_text(), "Connection refused"));
    assert_int_equal(lksi_dial(&gone, key, "hello", 6, lksi_now_ns() + SECOND_NS / 5, true, NULL, NULL, &connection),
                     LKS_ERR_TIMEOUT);
    assert_non_null(strstr(lks_error_text(), "Connection refused"));
    assert_int_equal(connection, -1);
}

/* Another process was about to end, and had handed out its own key. */
static void host_takes_the_place_of_another(void *argument) {
    host *h = argument;
    for (int64_t until_ns = lksi_now_ns() + SECOND_NS / 3; lksi_now_ns() < until_ns; lksi_sleep_ns(1000000)) {
        (void)lksi_local_key_hand_out(h->key_listener, other_key);
        lksi_acceptor_step(h->acceptor);
    }
    lksi_acceptor_hand_out_key(h->acceptor, h->key_listener);
    host_serve(h);
}

static void a_dialler_without_a_key_has_that_of_who_is_there(void **state) {
    (void)state;
    host h;
    lksi_thread *thread;
    lksi_job_secret job = {.has_key = false};
    int connection;
    host_open(&h);
    assert_ok(lksi_local_key_listen(&h.at, &h.key_listener));
    assert_ok(lksi_thread_create(&thread, host_takes_the_place_of_another, &h, "host"));
    assert_ok(lksi_local_key_dial(&h.at, &job, "hello", 6, soon_ns(), NULL, NULL, &connection));
    lksi_thread_join(thread);
    assert_memory_equal(job.key, key, sizeof key);
    assert_int_equal(h.guests.n_let_in, 1);
    close(connection), close(h.key_listener);
    host_close(&h);
}

/* --- the star --- */

static void star_records_may_come_byte_by_byte(void **state) {
    (void)state;
    int ends[2], star[2];
    unsigned char byte;
    lksi_star_record sent = {.kind = LKSI_STAR_ABORT, .status = LKS_ERR_TIMEOUT, .origin = 3, .group = 7}, record;
    lksi_star_reader reader;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, star), 0);
    memset(sent.text, 'x', sizeof sent.text); /* not NUL-terminated */
    lksi_star_reader_init(&reader);
    for (int i = 0; i < 2; i++) assert_ok(lksi_star_send(ends[0], &sent));
    for (size_t i = 0; i < 2 * sizeof record; i++) {
        assert_int_equal(lksi_star_reader_feed(&reader, star[1], &record), LKSI_STAR_NOTHING);
        assert_int_equal(read(ends[1], &byte, 1), 1);
        assert_int_equal(write(star[0], &byte, 1), 1);
        if ((i + 1) % sizeof record != 0) continue;
        assert_int_equal(lksi_star_reader_feed(&reader, star[1], &record), LKSI_STAR_RECORD);
        assert_int_equal(record.status, LKS_ERR_TIMEOUT);
        assert_int_equal(record.origin, 3);
        assert_int_equal(strlen(record.text), sizeof record.text - 1);
    }
    close(star[0]);
    assert_int_equal(lksi_star_reader_feed(&reader, star[1], &record), LKSI_STAR_ENDED);
    close(star[1]);
    close(ends[0]);
    close(ends[1]);
}

static void what_is_no_star_record_ends_the_reading(void **state) {
    (void)state;
    static const lksi_star_record wrong[] = {
        {.kind = 0, .origin = 1},
        {.kind = LKSI_STAR_WELCOME + 1, .origin = 1},
        {.kind = LKSI_STAR_ABORT, .status = -1},
        {.kind = LKSI_STAR_ABORT, .status = 1000},
        {.kind = LKSI_STAR_ABORT, .origin = -1},
        {.kind = LKSI_STAR_ABORT, .origin = LKSI_MAX_RANKS},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int ends[2];
        lksi_star_record record;
        lksi_star_reader reader;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
        lksi_star_reader_init(&reader);
        assert_int_equal(write(ends[0], &wrong[i], sizeof wrong[i]), (ssize_t)sizeof wrong[i]);
        assert_int_equal(lksi_star_reader_feed(&reader, ends[1], &record), LKSI_STAR_ENDED);
        assert_int_equal(lksi_star_reader_feed(&reader, ends[1], &record), LKSI_STAR_ENDED);
        close(ends[0]);
        close(ends[1]);
    }
}

/* The receiver does not read, like a stopped rank. */
static void a_star_record_is_not_waited_with_for_ever(void **state) {
    (void)state;
    int ends[2];
    lksi_star_record record = {.kind = LKSI_STAR_ABORT}, got;
    lksi_star_reader reader;
    lks_status status = LKS_OK;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    for (int i = 0; i < 100000 && status == LKS_OK; i++) status = lksi_star_send(ends[0], &record);
    assert_int_equal(status, LKS_ERR_TIMEOUT);
    lksi_star_reader_init(&reader);
    while (lksi_star_reader_feed(&reader, ends[1], &got) == LKSI_STAR_RECORD) continue; /* takes all complete records */
    close(ends[1]);
    assert_int_equal(lksi_star_send(ends[0], &record), LKS_ERR_PEER);
    close(ends[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_prove_the_key),
        cmocka_unit_test(another_key_is_refused_on_both_sides),
        cmocka_unit_test(a_replayed_handshake_is_refused),
        cmocka_unit_test(a_reflected_handshake_is_refused),
        cmocka_unit_test(garbage_and_lengths_are_refused),
        cmocka_unit_test(another_version_is_named_on_both_sides),
        cmocka_unit_test(a_handshake_may_come_byte_by_byte),
        cmocka_unit_test(addresses_are_read_and_written),
        cmocka_unit_test(a_host_is_asked_for_again_while_no_name_server_answers),
        cmocka_unit_test(the_host_id_follows_its_variable),
        cmocka_unit_test(strangers_do_not_keep_the_acceptor),
        cmocka_unit_test(who_had_to_make_room_comes_again),
        cmocka_unit_test(an_acceptor_without_descriptors_waits_for_some),
        cmocka_unit_test(descriptors_that_strangers_hold_are_no_error),
        cmocka_unit_test(a_dial_that_fails_says_why),
        cmocka_unit_test(a_dialler_without_a_key_has_that_of_who_is_there),
        cmocka_unit_test(star_records_may_come_byte_by_byte),
        cmocka_unit_test(what_is_no_star_record_ends_the_reading),
        cmocka_unit_test(a_star_record_is_not_waited_with_for_ever),
    };
    return run_group(tests);
}
