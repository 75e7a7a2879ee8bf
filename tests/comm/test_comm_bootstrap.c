/* comm/: how ranks of several hosts find each other over TCP, and whom they do not let in. */
#include "test.h"

#include "comm/bootstrap/acceptor.h"
#include "comm/bootstrap/dial.h"
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/host.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/bootstrap/rendezvous.h"
#include "comm/bootstrap/star.h"
#include "comm/bootstrap/store.h"
#include "ranks.h"

#include <lockstep/launch.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define SECOND_NS (INT64_C(1000) * 1000 * 1000)

static const unsigned char key[LKSI_KEY_NBYTES] = "the key of this job", other_key[LKSI_KEY_NBYTES] = "another";

static int64_t soon_ns(void) { return lksi_now_ns() + 20 * SECOND_NS; }

/* --- the handshake --- */

typedef struct pair {
    int ends[2]; /* the dialler's, the acceptor's */
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

/* Nothing waits: four rounds are more than the messages there are. */
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
    assert_int_equal(write(p.ends[0], "rest", 5), 5); /* not a byte more than the handshake has been read, or is left */
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

/* Lets `from` and `to` talk, `to` being us, and keeps what `from` says. Returns how many bytes that was. */
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
    pair_open(&dialling, key, key); /* its acceptor, and the other's dialler, play no part */
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

/* Whoever gets his own words back hears the right key, and in the wrong role. The dialler's own greeting and proof are
 * too long by the hello; cut to what it awaits they are the closest that there is. */
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
    assert_ok(lksi_auth_begin(&auth, -1, false, key, NULL, sizeof(lksi_arrival)));
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
    greeting.hello_nbytes = sizeof(lksi_arrival);
    assert_int_equal(failure_of(&greeting, sizeof greeting), LKSI_AUTH_NO_FAILURE); /* waits for the proof */
    assert_int_equal(failure_of(noise, 20), LKSI_AUTH_NO_FAILURE);                  /* nothing is said yet */
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
    lksi_greeting answer; /* it has said which version it speaks */
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
    pair_open(&p, key, key);    /* and only its acceptor */
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
    assert_true(lksi_address_is_loopback(&address) && lksi_address_is_valid(&address));
    assert_ok(lksi_address_parse("X", "[::1]:65535", &address));
    lksi_address_text(&address, text);
    assert_string_equal(text, "[::1]:65535");
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

static void the_host_id_follows_its_variable(void **state) {
    (void)state;
    uint64_t real = lksi_host_id();
    assert_true(real == lksi_host_id());
    setenv("LOCKSTEP_HOST_ID", "a", 1);
    uint64_t a = lksi_host_id();
    setenv("LOCKSTEP_HOST_ID", "b", 1);
    assert_true(a != lksi_host_id() && a != real);
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
    int listener;
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

/* Serves until one more is let in. */
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

static void an_acceptor_without_descriptors_waits_for_some(void **state) {
    (void)state;
    host h;
    struct rlimit limit, none;
    struct pollfd ready;
    lksi_thread *thread;
    int connection;
    host_open(&h);
    int stranger = stranger_at(&h.at);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    lksi_acceptor_step(h.acceptor);
    ready = (struct pollfd){.fd = lksi_acceptor_descriptor(h.acceptor), .events = POLLIN};
    int n_ready_at_once = poll(&ready, 1, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(n_ready_at_once, 0); /* the queue is not empty, and yet nothing spins */
    assert_ok(lksi_thread_create(&thread, host_serve, &h, "host"));
    assert_ok(lksi_dial(&h.at, key, "hello", 6, soon_ns(), false, NULL, NULL, &connection));
    lksi_thread_join(thread);
    assert_int_equal(h.guests.n_let_in, 1);
    close(connection);
    close(stranger);
    host_close(&h);
}

static void host_serve_a_while(void *argument) {
    host *h = argument;
    for (int i = 0; i < 30; i++) {
        struct pollfd ready = {.fd = lksi_acceptor_descriptor(h->acceptor), .events = POLLIN};
        poll(&ready, 1, 10);
        lksi_acceptor_step(h->acceptor);
    }
}

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
    /* Nobody serves: the system answers, and nobody else. */
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

/* --- rendezvous --- */

/* Claims a port for MASTER_PORT as the launcher does: bound, so that it is nobody else's, and not listening. */
static int claim_master_port(void) {
    int claimed, one = 1;
    lksi_address at;
    char text[16];
    assert_ok(lksi_address_resolve("127.0.0.1", 0, &at));
    claimed = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(claimed >= 0);
    assert_int_equal(setsockopt(claimed, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    assert_int_equal(bind(claimed, (const struct sockaddr *)&at.storage, at.nbytes), 0);
    assert_ok(lksi_address_of_socket(claimed, &at));
    snprintf(text, sizeof text, "%d", lksi_address_port(&at));
    setenv("MASTER_ADDR", "127.0.0.1", 1), setenv("MASTER_PORT", text, 1);
    return claimed;
}

typedef struct visit {
    lksi_environment environment;
    lksi_job_secret job;
    lksi_member *members;
    int *connections;
    int data_listener;
} visit;

static lks_status visit_begin(visit *v, int64_t timeout_ms) {
    LKS_TRY(lksi_environment_read(&v->environment));
    LKS_TRY(lksi_job_secret_read(&v->environment, &v->job));
    v->members = lksi_alloc_array((size_t)v->environment.size, sizeof *v->members);
    v->connections = lksi_alloc_array((size_t)v->environment.size, sizeof *v->connections);
    v->data_listener = -1;
    lksi_member_fill(&v->members[v->environment.rank], &v->environment);
    return lksi_rendezvous(&v->environment, &v->job, lksi_now_ns() + timeout_ms * 1000000, v->members, v->connections,
                           &v->data_listener);
}

static void visit_end(visit *v) {
    for (int rank = 0; rank < v->environment.size; rank++)
        if (v->connections[rank] >= 0) close(v->connections[rank]);
    if (v->data_listener >= 0) close(v->data_listener);
    lksi_free(v->members);
    lksi_free(v->connections);
}

/* Rank 0 tells everyone something and hears something from everyone. */
static int talk(const visit *v) {
    int size = v->environment.size, rank = v->environment.rank;
    for (int other = 0; other < size; other++) {
        MUST((v->connections[other] >= 0) == (rank == 0 ? other != 0 : other == 0));
        if (v->connections[other] < 0) continue;
        lksi_star_record record = {.kind = LKSI_STAR_GOODBYE, .origin = rank, .group = 5}, heard;
        lksi_star_reader reader;
        lksi_star_event event;
        lksi_star_reader_init(&reader);
        MUST_OK(lksi_star_send(v->connections[other], &record));
        while ((event = lksi_star_reader_feed(&reader, v->connections[other], &heard)) == LKSI_STAR_NOTHING)
            lksi_sleep_ns(1000000);
        MUST(event == LKSI_STAR_RECORD && heard.origin == other && heard.group == 5);
    }
    return 0;
}

static int find_each_other(int rank, int size, void *argument) {
    (void)argument;
    visit v = {.data_listener = -1};
    MUST_OK(visit_begin(&v, 20000));
    for (int other = 0; other < size; other++) {
        MUST(v.members[other].identity.rank == other && v.members[other].size == size);
        MUST(v.members[other].host_id == lksi_host_id());
        MUST(lksi_address_is_valid(&v.members[other].address) && lksi_address_is_loopback(&v.members[other].address));
    }
    lksi_address mine;
    MUST_OK(lksi_address_of_socket(v.data_listener, &mine));
    MUST(lksi_address_port(&mine) == lksi_address_port(&v.members[rank].address));
    int line = talk(&v);
    visit_end(&v);
    return line;
}

static void ranks_find_each_other_among_strangers(void **state) {
    (void)state;
    enum { N_RANKS = 8, N_STRANGERS = 300 };
    static int strangers[N_STRANGERS];
    pid_t pids[N_RANKS] = {0};
    lksi_address master;
    int claimed = claim_master_port(), n = 0;
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    setenv("LOCKSTEP_LOG", "error", 1);
    assert_ok(lksi_address_of_socket(claimed, &master));
    for (int rank = 0; rank < N_RANKS - 1; rank++) pids[rank] = start_process(rank, N_RANKS, find_each_other, NULL);
    while (n < N_STRANGERS) {
        strangers[n] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(strangers[n], (const struct sockaddr *)&master.storage, master.nbytes) != 0) {
            close(strangers[n]); /* rank 0 is not there yet */
            lksi_sleep_ns(1000000);
            continue;
        }
        lksi_greeting greeting = {.magic = LKSI_AUTH_MAGIC, .version = LKSI_AUTH_VERSION, .hello_nbytes = 24};
        if (n % 4 == 1)
            (void)send(strangers[n], "\xff\xff\xff\xff garbage garbage garbage garbage garbage garbage", 50,
                       MSG_NOSIGNAL);
        if (n % 4 == 2) (void)send(strangers[n], &greeting, sizeof greeting, MSG_NOSIGNAL);
        n++;
    }
    pids[N_RANKS - 1] = start_process(N_RANKS - 1, N_RANKS, find_each_other, NULL);
    await_processes(pids, N_RANKS, -1);
    for (int i = 0; i < N_STRANGERS; i++) close(strangers[i]);
    close(claimed);
}

typedef struct expectation {
    lks_status status;
    int64_t timeout_ms;
    const char *says[2];
} expectation;

static int fails_as_expected(int rank, int size, void *argument) {
    (void)rank, (void)size;
    const expectation *expected = argument;
    visit v = {.data_listener = -1};
    lks_status status = visit_begin(&v, expected->timeout_ms);
    MUST(status == expected->status);
    for (int i = 0; i < 2 && expected->says[i] != NULL; i++) MUST_SAY(expected->says[i]);
    MUST(v.data_listener < 0);
    for (int other = 0; other < size; other++) MUST(v.connections[other] < 0);
    visit_end(&v);
    return 0;
}

static void ranks_missing_at_the_rendezvous_are_named(void **state) {
    (void)state;
    pid_t pids[4] = {0};
    expectation others = {LKS_ERR_TIMEOUT, 400, {"lks_init: rank(s) 2, 3 of 4 did not arrive"}};
    expectation first = {
        LKS_ERR_TIMEOUT, 300, {"rank 0 did not arrive (rank 1 of 2, MASTER_ADDR 127.0.0.1", "refused"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 4, fails_as_expected, &others);
    pids[1] = start_process(1, 4, fails_as_expected, &others);
    await_processes(pids, 4, -1);
    pids[0] = 0;
    pids[1] = start_process(1, 2, fails_as_expected, &first);
    await_processes(pids, 2, -1);
    close(claimed);
}

static void two_ranks_with_one_number_are_told(void **state) {
    (void)state;
    pid_t pids[3];
    expectation all = {LKS_ERR_MISMATCH, 20000, {"two processes say that they are rank 1 of 3"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 3, fails_as_expected, &all);
    pids[1] = start_process(1, 3, fails_as_expected, &all);
    pids[2] = start_process(1, 3, fails_as_expected, &all);
    await_processes(pids, 3, -1);
    close(claimed);
}

static void ranks_of_another_size_are_told(void **state) {
    (void)state;
    pid_t pids[3];
    expectation all = {LKS_ERR_MISMATCH, 20000, {"rank 1 has WORLD_SIZE 3, rank 0 has 2"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 2, fails_as_expected, &all);
    pids[1] = start_process(1, 3, fails_as_expected, &all);
    await_processes(pids, 2, -1);
    close(claimed);
}

static void a_rank_lost_at_the_rendezvous_is_named(void **state) {
    (void)state;
    pid_t pids[4] = {0};
    expectation survivor = {LKS_ERR_PEER, 20000, {"rank 1 (", "was lost"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 4, fails_as_expected, &survivor);
    pids[1] = start_process(1, 4, fails_as_expected, &survivor);
    pids[2] = start_process(2, 4, fails_as_expected, &survivor);
    lksi_sleep_ns(200000000); /* both have very likely arrived */
    kill(pids[1], SIGKILL);
    await_processes(pids, 4, 1);
    expectation leaderless = {LKS_ERR_PEER, 20000, {"rank 0 was lost"}};
    memset(pids, 0, sizeof pids);
    pids[0] = start_process(0, 3, find_each_other, NULL);
    pids[1] = start_process(1, 3, fails_as_expected, &leaderless);
    lksi_sleep_ns(300000000);
    kill(pids[0], SIGKILL);
    await_processes(pids, 3, 0);
    close(claimed);
}

static void hosts_need_a_key(void **state) {
    (void)state;
    lksi_environment environment = {.size = 2, .rank = 1, .master_address = "192.0.2.1", .master_port = 4};
    lksi_job_secret job, next;
    lksi_member members[2];
    int connections[2], data;
    unsetenv("LOCKSTEP_JOB_KEY");
    assert_ok(lksi_job_secret_read(&environment, &job));
    assert_false(job.has_key);
    assert_int_equal(lksi_rendezvous(&environment, &job, soon_ns(), members, connections, &data), LKS_ERR_ARGUMENT);
    assert_non_null(
        strstr(lks_error_text(), "a job across hosts needs LOCKSTEP_JOB_KEY, the same secret on all ranks"));
    environment.master_port = 5; /* at least jobs are kept apart */
    assert_ok(lksi_job_secret_read(&environment, &next));
    assert_memory_not_equal(job.key, next.key, sizeof job.key);
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    assert_ok(lksi_job_secret_read(&environment, &job));
    assert_true(job.has_key);
    setenv("LOCKSTEP_GENERATION", "1", 1);
    assert_ok(lksi_job_secret_read(&environment, &next));
    assert_memory_not_equal(job.key, next.key, sizeof job.key);
    unsetenv("LOCKSTEP_GENERATION");
    static char long_key[5000];
    memset(long_key, 'x', sizeof long_key - 1);
    setenv("LOCKSTEP_JOB_KEY", long_key, 1);
    assert_int_equal(lksi_job_secret_read(&environment, &next), LKS_ERR_ARGUMENT);
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
}

static int find_each_other_twice(void *argument) {
    int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
    const char *handed_over = getenv("LOCKSTEP_LISTENER_FD");
    int listener = handed_over != NULL ? atoi(handed_over) : -1;
    MUST((listener >= 0) == (rank == 0));
    for (int round = 0; round < 2; round++) {
        int line = find_each_other(rank, size, argument);
        if (line != 0) return line;
        if (rank != 0) continue;
        MUST(getenv("LOCKSTEP_LISTENER_FD") == NULL);
        MUST(fcntl(listener, F_GETFD) == FD_CLOEXEC);
        int connection = -1; /* between two of them nobody is left waiting in a queue */
        lksi_address master;
        MUST_OK(lksi_address_of_socket(listener, &master));
        MUST(lksi_dial(&master, key, "hello", 6, soon_ns(), false, NULL, NULL, &connection) == LKS_ERR_PEER);
        MUST_SAY("refused");
    }
    return 0;
}

static void the_launchers_socket_serves_every_rendezvous(void **state) {
    (void)state;
    assert_ok(lks_spawn(3, LKS_PROCESSES, find_each_other_twice, NULL));
}

static void a_descriptor_that_is_no_such_socket_is_not_taken(void **state) {
    (void)state;
    lksi_environment environment = {.size = 2, .master_address = "127.0.0.1", .master_port = 4};
    lksi_job_secret job;
    char text[16];
    host h;
    host_open(&h); /* a listener, but of another port */
    int file = open("/dev/null", O_RDONLY);
    snprintf(text, sizeof text, "%d", h.listener);
    char file_text[16];
    snprintf(file_text, sizeof file_text, "%d", file);
    const char *const values[] = {text, file_text, "9999", "-1", "three", "4294967299"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        setenv("LOCKSTEP_LISTENER_FD", values[i], 1);
        assert_ok(lksi_job_secret_read(&environment, &job));
        assert_int_equal(job.listener, -1);
        assert_null(getenv("LOCKSTEP_LISTENER_FD"));
    }
    assert_int_equal(fcntl(file, F_GETFD), 0); /* it is still there, and as it was */
    close(file);
    host_close(&h);
}

static int advertises(int rank, int size, void *argument) {
    (void)size, (void)argument;
    visit v = {.data_listener = -1};
    if (rank == 1) setenv("LOCKSTEP_ADVERTISE", "127.0.0.9:1234", 1);
    MUST_OK(visit_begin(&v, 20000));
    char text[LKSI_ADDRESS_TEXT_NBYTES];
    lksi_address_text(&v.members[1].address, text);
    MUST(strcmp(text, "127.0.0.9:1234") == 0);
    lksi_address bound;
    MUST_OK(lksi_address_of_socket(v.data_listener, &bound));
    lksi_address_text(&bound, text);
    MUST(strncmp(text, "127.0.0.1:", 10) == 0);
    visit_end(&v);
    return 0;
}

static void an_advertised_address_is_what_others_see(void **state) {
    (void)state;
    pid_t pids[2];
    int claimed = claim_master_port();
    for (int rank = 0; rank < 2; rank++) pids[rank] = start_process(rank, 2, advertises, NULL);
    await_processes(pids, 2, -1);
    close(claimed);
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
    memset(sent.text, 'x', sizeof sent.text); /* not terminated */
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
        {.kind = 5, .origin = 1},
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

/* What a rank that was stopped looks like to the others. */
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
    while (lksi_star_reader_feed(&reader, ends[1], &got) == LKSI_STAR_RECORD) continue; /* whole ones, or the end */
    close(ends[1]);
    assert_int_equal(lksi_star_send(ends[0], &record), LKS_ERR_PEER);
    close(ends[0]);
}

/* --- meetings of some of the ranks of one host --- */

typedef struct gathering {
    lksi_meeting meeting;
    int64_t timeout_ms;
    lks_status status;
    const char *says;
} gathering;

static int gather(int rank, int size, void *argument) {
    gathering g = *(const gathering *)argument;
    lksi_environment environment;
    int connections[MAX_TEST_RANKS];
    lksi_identity identities[MAX_TEST_RANKS] = {{0}};
    (void)size;
    for (int i = 0; i < MAX_TEST_RANKS; i++) connections[i] = -1;
    MUST_OK(lksi_environment_read(&environment));
    g.meeting.rank = rank;
    int64_t deadline_ns = lksi_now_ns() + g.timeout_ms * 1000000;
    lks_status status = rank == 0 ? lksi_leader_meet(&environment, &g.meeting, deadline_ns, connections, identities)
                                  : lksi_follower_meet(&environment, &g.meeting, deadline_ns, &connections[0]);
    MUST(status == g.status);
    if (g.says != NULL) MUST_SAY(g.says);
    for (int i = 1; rank == 0 && status == LKS_OK && i < g.meeting.size; i++) {
        MUST(identities[i].rank == g.meeting.names[i]);
        MUST_OK(lksi_hand_over(connections[i], "welcome", 8, -1));
    }
    /* A rank that goes before all have met would be lost to the leader. */
    char welcome[8];
    if (rank != 0 && status == LKS_OK)
        MUST_OK(lksi_take_over(connections[0], welcome, sizeof welcome, NULL, deadline_ns));
    return 0;
}

static void any_ranks_of_a_host_can_meet(void **state) {
    (void)state;
    static const int names[] = {4, 7, 9}, other_names[] = {1, 2, 3};
    pid_t pids[6] = {0};
    gathering one = {.meeting = {"lks_group_split", 1, 0, 3, names}, .timeout_ms = 20000};
    gathering other = {.meeting = {"lks_group_split", 2, 0, 3, other_names}, .timeout_ms = 20000};
    set_master_environment();
    for (int i = 0; i < 3; i++) {
        pids[i] = start_process(i, 10, gather, &one);
        pids[3 + i] = start_process(i, 10, gather, &other);
    }
    await_processes(pids, 6, -1);
}

static void ranks_missing_at_a_meeting_are_named(void **state) {
    (void)state;
    static const int names[] = {4, 7, 9};
    pid_t pids[3] = {0};
    gathering led = {.meeting = {"lks_group_split", 1, 0, 3, names},
                     .timeout_ms = 300,
                     .status = LKS_ERR_TIMEOUT,
                     .says = "lks_group_split: rank(s) 7, 9 of 3 did not arrive"};
    gathering followed = led;
    followed.says = "lks_group_split: rank 4 did not arrive (rank 9 of 3, MASTER_ADDR 127.0.0.1";
    set_master_environment();
    pids[0] = start_process(0, 10, gather, &led);
    await_processes(pids, 3, -1);
    pids[0] = 0;
    pids[2] = start_process(2, 10, gather, &followed);
    await_processes(pids, 3, -1);
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
        cmocka_unit_test(the_host_id_follows_its_variable),
        cmocka_unit_test(strangers_do_not_keep_the_acceptor),
        cmocka_unit_test(an_acceptor_without_descriptors_waits_for_some),
        cmocka_unit_test(a_dial_that_fails_says_why),
        cmocka_unit_test(ranks_find_each_other_among_strangers),
        cmocka_unit_test(ranks_missing_at_the_rendezvous_are_named),
        cmocka_unit_test(two_ranks_with_one_number_are_told),
        cmocka_unit_test(ranks_of_another_size_are_told),
        cmocka_unit_test(a_rank_lost_at_the_rendezvous_is_named),
        cmocka_unit_test(hosts_need_a_key),
        cmocka_unit_test(the_launchers_socket_serves_every_rendezvous),
        cmocka_unit_test(a_descriptor_that_is_no_such_socket_is_not_taken),
        cmocka_unit_test(an_advertised_address_is_what_others_see),
        cmocka_unit_test(star_records_may_come_byte_by_byte),
        cmocka_unit_test(what_is_no_star_record_ends_the_reading),
        cmocka_unit_test(a_star_record_is_not_waited_with_for_ever),
        cmocka_unit_test(any_ranks_of_a_host_can_meet),
        cmocka_unit_test(ranks_missing_at_a_meeting_are_named),
    };
    return run_group(tests);
}
