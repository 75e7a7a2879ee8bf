/* comm/: how ranks of several hosts find each other over TCP, and ranks of one host over local sockets. */
/* labels: no-tsan */
#include "test.h"

#include "comm/bootstrap/dial.h"
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/host.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/bootstrap/rendezvous.h"
#include "comm/bootstrap/star.h"
#include "comm/bootstrap/store.h"
#include "ranks.h"

#include <lockstep/launch.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND_NS (INT64_C(1000) * 1000 * 1000)

static int64_t soon_ns(void) { return lksi_now_ns() + 20 * SECOND_NS; }

/* --- rendezvous: over TCP --- */

/* Claims a port as the launcher does: bound, so that the port is taken, but not listening. */
static int claim_port(const char *host, int *port) {
    int claimed, one = 1;
    lksi_address at;
    assert_ok(lksi_address_resolve(host, 0, &at));
    claimed = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(claimed >= 0);
    assert_int_equal(setsockopt(claimed, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    assert_int_equal(bind(claimed, (const struct sockaddr *)&at.storage, at.nbytes), 0);
    assert_ok(lksi_address_of_socket(claimed, &at));
    *port = lksi_address_port(&at);
    return claimed;
}

static int claim_master_port(void) {
    int port, claimed = claim_port("127.0.0.1", &port);
    char text[16];
    snprintf(text, sizeof text, "%d", port);
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
    LKS_TRY(lksi_environment_read(0, &v->environment));
    snprintf(v->environment.transport, sizeof v->environment.transport, "auto");
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

/* Rank 0 exchanges a record with every other rank. */
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
        MUST(v.members[other].host_id == lksi_host_id(NULL));
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
            close(strangers[n]); /* rank 0 does not listen yet */
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

static void a_rank_that_waits_for_less_long_says_so(void **state) {
    (void)state;
    pid_t pids[3] = {0};
    expectation patient = {LKS_ERR_PEER, 20000, {"rank 1 (", "was lost"}};
    expectation impatient = {LKS_ERR_TIMEOUT, 300, {"rank 0 is there, but did not say in time that all are"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 3, fails_as_expected, &patient);
    pids[1] = start_process(1, 3, fails_as_expected, &impatient);
    await_processes(pids, 3, -1);
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

static int wants_another_transport(int rank, int size, void *argument) {
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
    const expectation *expected = argument;
    lks_group *world = NULL;
    if (rank == 0) unsetenv("LOCKSTEP_TRANSPORT");
    setenv("LOCKSTEP_HOST_ID", rank == 0 ? "a" : "b", 1);
    MUST(lks_init(&world, &(lks_init_options){.timeout_ms = expected->timeout_ms}) == expected->status);
    MUST_SAY(expected->says[0]);
    (void)size;
    return 0;
}

/* On several hosts, an exported variable may reach only some of them. */
static void ranks_of_another_transport_are_told(void **state) {
    (void)state;
    pid_t pids[3];
    expectation all = {LKS_ERR_MISMATCH, 20000, {" has transport 'tcp', rank 0 'auto': LOCKSTEP_TRANSPORT, or "}};
    int claimed = claim_master_port();
    for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, wants_another_transport, &all);
    await_processes(pids, 3, -1);
    close(claimed);
}

static int cannot_be_reached(int rank, int size, void *argument) {
    (void)size;
    lks_group *world = NULL;
    if (rank == 1) setenv("LOCKSTEP_ADVERTISE", "127.0.0.1:1", 1);
    setenv("LOCKSTEP_HOST_ID", rank == 0 ? "a" : "b", 1);
    const expectation *expected = argument;
    MUST(lks_init(&world, &(lks_init_options){.timeout_ms = expected->timeout_ms}) == expected->status);
    for (int i = 0; i < 2; i++) MUST_SAY(expected->says[i]);
    return 0;
}

static void a_rank_that_is_there_and_cannot_be_reached_is_not_lost(void **state) {
    (void)state;
    pid_t pids[2];
    expectation all = {
        LKS_ERR_PEER, 20000, {"rank 1 (host ", "cannot be reached: no connection to 127.0.0.1:1: Connection refused"}};
    int claimed = claim_master_port();
    for (int rank = 0; rank < 2; rank++) pids[rank] = start_process(rank, 2, cannot_be_reached, &all);
    await_processes(pids, 2, -1);
    close(claimed);
}

static int fails_as_expected_later(int rank, int size, void *argument) {
    lksi_sleep_ns((int64_t)(rank - 4) * 500 * 1000 * 1000);
    return fails_as_expected(rank, size, argument);
}

/* One of them causes the verdict, the other arrives after it. */
static void latecomers_for_whom_there_is_no_place_are_told(void **state) {
    (void)state;
    pid_t pids[7] = {0};
    expectation all = {LKS_ERR_MISMATCH, 20000, {" has WORLD_SIZE 8, rank 0 has 4"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 4, fails_as_expected, &all);
    pids[5] = start_process(5, 8, fails_as_expected_later, &all);
    pids[6] = start_process(6, 8, fails_as_expected_later, &all);
    await_processes(pids, 7, -1);
    close(claimed);
}

static int has_another_key(int rank, int size, void *argument) {
    setenv("LOCKSTEP_JOB_KEY", "mistyped", 1);
    return fails_as_expected(rank, size, argument);
}

/* Rank 0 also warns of somebody with another key, once. */
static int find_each_other_and_warn(int rank, int size, void *argument) {
    char log[8192];
    FILE *file = tmpfile();
    const int saved = dup(STDERR_FILENO);
    lks_log_set_level(LKS_LOG_WARNING);
    MUST(file != NULL && dup2(fileno(file), STDERR_FILENO) == STDERR_FILENO);
    int line = find_each_other(rank, size, argument);
    MUST(dup2(saved, STDERR_FILENO) == STDERR_FILENO);
    close(saved);
    rewind(file);
    log[fread(log, 1, sizeof log - 1, file)] = '\0';
    fclose(file);
    MUST(line == 0);
    const char *warned = strstr(log, "somebody at 127.0.0.1 insists with another LOCKSTEP_JOB_KEY; if it is a rank, ");
    MUST(warned != NULL && strstr(warned + 1, "somebody") == NULL);
    return 0;
}

/* The rank fails by itself, after 5 s. The others wait on: it might be a stranger. A rank with the right key that takes
 * its place finds them. */
static void another_key_ends_nobody_elses_start(void **state) {
    (void)state;
    pid_t pids[4];
    expectation told = {
        LKS_ERR_MISMATCH, 60000, {"rank 0 did not arrive", "the other side knows another LOCKSTEP_JOB_KEY"}};
    int claimed = claim_master_port();
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    pids[0] = start_process(0, 3, find_each_other_and_warn, NULL);
    pids[1] = start_process(1, 3, has_another_key, &told);
    pids[2] = start_process(2, 3, find_each_other, NULL);
    lksi_sleep_ns(7 * SECOND_NS + SECOND_NS / 2);
    pids[3] = start_process(1, 3, find_each_other, NULL);
    await_processes(pids, 4, -1);
    close(claimed);
}

/* The deadline comes before the rank has retried for long enough to be certain. */
static void at_a_short_deadline_another_key_is_still_told_of(void **state) {
    (void)state;
    pid_t pids[2];
    expectation told = {
        LKS_ERR_MISMATCH, 2000, {"rank 0 did not arrive", "the other side knows another LOCKSTEP_JOB_KEY"}};
    expectation others = {LKS_ERR_TIMEOUT,
                          2000,
                          {"rank(s) 1 of 2 did not arrive, and somebody at 127.0.0.1 tries with another "
                           "LOCKSTEP_JOB_KEY"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 2, fails_as_expected, &others);
    pids[1] = start_process(1, 2, has_another_key, &told);
    await_processes(pids, 2, -1);
    close(claimed);
}

/* A rank with another library build, up to the verdict: rank 0 hears it and sends the reason for its refusal. */
static int runs_another_build(int rank, int size, void *argument) {
    const lksi_build *build = argument;
    lksi_rendezvous_hello hello = {
        .magic = LKSI_RENDEZVOUS_MAGIC, .build = *build, .rank = rank, .size = size, .host = "elsewhere"};
    lksi_environment environment;
    lksi_job_secret job;
    lksi_address master;
    lksi_verdict verdict;
    int connection;
    MUST_OK(lksi_environment_read(0, &environment));
    MUST_OK(lksi_job_secret_read(&environment, &job));
    MUST_OK(lksi_address_resolve(environment.master_address, environment.master_port, &master));
    MUST_OK(lksi_dial(&master, job.key, &hello, sizeof hello, soon_ns(), true, NULL, NULL, &connection));
    MUST_OK(lksi_take_over(connection, &verdict, sizeof verdict, NULL, soon_ns()));
    close(connection);
    MUST(verdict.status == LKS_ERR_MISMATCH);
    MUST(strstr(verdict.text, "rank 1 on host elsewhere runs") != NULL);
    return 0;
}

static int comes_late(int rank, int size, void *argument) {
    lksi_sleep_ns(SECOND_NS / 2);
    return fails_as_expected(rank, size, argument);
}

static void ranks_of_another_version_are_told(void **state) {
    (void)state;
    char versions[128];
    lksi_build newer, other;
    lksi_build_fill(&newer);
    lksi_build_fill(&other);
    snprintf(newer.version, sizeof newer.version, "99.1.2");
    other.source++;
    snprintf(versions, sizeof versions, " %s", lks_version());
    expectation by_version = {
        LKS_ERR_MISMATCH, 60000, {"rank 1 on host elsewhere runs lockstep 99.1.2, rank 0 on host ", versions}};
    expectation by_source = {
        LKS_ERR_MISMATCH, 60000, {"rank 1 on host elsewhere runs another build of lockstep ", "than rank 0 on host "}};
    struct {
        lksi_build *build;
        expectation *all;
    } cases[] = {{&newer, &by_version}, {&other, &by_source}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pid_t pids[4];
        int claimed = claim_master_port();
        pids[0] = start_process(0, 4, fails_as_expected, cases[i].all);
        pids[1] = start_process(1, 4, runs_another_build, cases[i].build);
        pids[2] = start_process(2, 4, fails_as_expected, cases[i].all);
        pids[3] = start_process(3, 4, comes_late, cases[i].all);
        await_processes(pids, 4, -1);
        close(claimed);
    }
}

static void a_rank_lost_at_the_rendezvous_is_named(void **state) {
    (void)state;
    pid_t pids[4] = {0};
    expectation survivor = {LKS_ERR_PEER, 20000, {"rank 1 (", "was lost"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 4, fails_as_expected, &survivor);
    pids[1] = start_process(1, 4, fails_as_expected, &survivor);
    pids[2] = start_process(2, 4, fails_as_expected, &survivor);
    lksi_sleep_ns(SECOND_NS); /* both have very probably arrived */
    kill(pids[1], SIGKILL);
    lksi_sleep_ns(100000000);
    pids[3] = start_process(3, 4, fails_as_expected, &survivor); /* arrives after the others have been informed */
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

/* Rank 2 never comes. After a mismatch, rank 0 would wait for it until 3 s after its own start. */
static void who_is_lost_at_the_rendezvous_holds_nobody_up(void **state) {
    (void)state;
    pid_t pids[2];
    expectation survivor = {LKS_ERR_PEER, 20000, {"rank 1 (", "was lost"}};
    int claimed = claim_master_port();
    pids[0] = start_process(0, 3, fails_as_expected, &survivor);
    pids[1] = start_process(1, 3, fails_as_expected, &survivor);
    lksi_sleep_ns(400000000);
    int64_t killed_ns = lksi_now_ns();
    kill(pids[1], SIGKILL);
    await_processes(pids, 2, 1);
    assert_true(lksi_now_ns() - killed_ns < 2 * SECOND_NS); /* half a second, and as much as a busy machine takes */
    close(claimed);
}

static int listens_where_it_cannot(int rank, int size, void *argument) {
    if (rank == 0) setenv("LOCKSTEP_LISTEN", "192.0.2.1:4", 1);
    return fails_as_expected(rank, size, argument);
}

static void what_rank_0_cannot_do_is_told_to_all(void **state) {
    (void)state;
    expectation all = {LKS_ERR_SYSTEM, 20000, {"LOCKSTEP_LISTEN: cannot listen on 192.0.2.1:4: "}};
    int claimed = claim_master_port();
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    pid_t pids[2];
    for (int rank = 0; rank < 2; rank++) pids[rank] = start_process(rank, 2, listens_where_it_cannot, &all);
    await_processes(pids, 2, -1);
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
    /* Every process draws a key of its own. */
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
        int connection = -1; /* between two rendezvous, no connection is left waiting in the queue */
        lksi_address master;
        MUST_OK(lksi_address_of_socket(listener, &master));
        MUST(lksi_dial(&master, (const unsigned char[LKSI_KEY_NBYTES]){0}, "hello", 6, soon_ns(), false, NULL, NULL,
                       &connection) == LKS_ERR_PEER);
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
    lksi_address at;
    int listener; /* at another port */
    assert_ok(lksi_address_resolve("127.0.0.1", 0, &at));
    assert_ok(lksi_listen(&at, &listener, NULL));
    int file = open("/dev/null", O_RDONLY);
    snprintf(text, sizeof text, "%d", listener);
    char file_text[16];
    snprintf(file_text, sizeof file_text, "%d", file);
    const char *const values[] = {text, file_text, "9999", "-1", "three", "4294967299"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        setenv("LOCKSTEP_LISTENER_FD", values[i], 1);
        assert_ok(lksi_job_secret_read(&environment, &job));
        assert_int_equal(job.listener, -1);
        assert_null(getenv("LOCKSTEP_LISTENER_FD"));
    }
    assert_int_equal(fcntl(file, F_GETFD), 0); /* still open, and unchanged */
    close(file);
    close(listener);
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

static int listens_everywhere(int rank, int size, void *argument) {
    visit v = {.data_listener = -1};
    lksi_address bound;
    char text[32];
    (void)size;
    snprintf(text, sizeof text, "0.0.0.0:%d", ((const int *)argument)[rank]);
    setenv("LOCKSTEP_LISTEN", text, 1);
    MUST_OK(visit_begin(&v, 20000));
    MUST_OK(lksi_address_of_socket(v.data_listener, &bound));
    MUST(lksi_address_is_unspecified(&bound));
    for (int other = 0; other < 2; other++) MUST(lksi_address_is_loopback(&v.members[other].address));
    MUST(lksi_address_port(&v.members[rank].address) == lksi_address_port(&bound));
    visit_end(&v);
    return 0;
}

/* Others would look for 0.0.0.0 on their own hosts. */
static void an_unspecified_address_is_not_what_others_see(void **state) {
    (void)state;
    pid_t pids[2];
    int ports[2], listeners[2], claimed = claim_master_port();
    for (int rank = 0; rank < 2; rank++) listeners[rank] = claim_port("0.0.0.0", &ports[rank]);
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    for (int i = 0; i < 2; i++) {
        if (i == 1) setenv("MASTER_ADDR", "0.0.0.0", 1); /* works on one host */
        for (int rank = 0; rank < 2; rank++) pids[rank] = start_process(rank, 2, listens_everywhere, ports);
        await_processes(pids, 2, -1);
    }
    for (int rank = 0; rank < 2; rank++) close(listeners[rank]);
    close(claimed);
}

static int has_an_unspecified_address(int rank, int size, void *argument) {
    const char *const *variable = argument;
    if (rank == 1) setenv(variable[0], variable[1], 1);
    const expectation expected = {LKS_ERR_ARGUMENT, 20000, {variable[2], variable[3]}};
    return fails_as_expected(rank, size, (void *)(uintptr_t)&expected);
}

static void an_address_that_every_host_takes_for_itself_is_refused(void **state) {
    (void)state;
    static const char *const cases[][4] = {
        {"LOCKSTEP_LISTEN", "[::]:4", "LOCKSTEP_LISTEN is [::]:4, which every", "LOCKSTEP_ADVERTISE must say where"},
        {"LOCKSTEP_ADVERTISE", "0.0.0.0:4", "LOCKSTEP_ADVERTISE is 0.0.0.0:4, which every host takes for itself",
         "an address that all hosts reach is needed"}};
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pid_t pids[2] = {0};
        const expectation first = {LKS_ERR_PEER, 20000, {"rank 1 (", "was lost"}};
        int claimed = claim_master_port();
        pids[0] = start_process(0, 2, fails_as_expected, (void *)(uintptr_t)&first);
        pids[1] = start_process(1, 2, has_an_unspecified_address, (void *)(uintptr_t)cases[i]);
        await_processes(pids, 2, -1);
        close(claimed);
    }
    static const char *const masters[] = {"0.0.0.0", "::", "::ffff:0.0.0.0"};
    for (size_t i = 0; i < sizeof masters / sizeof masters[0]; i++) {
        lksi_environment environment = {.size = 2, .local_size = 1, .master_port = 4};
        lksi_job_secret job;
        lksi_member members[2];
        int connections[2], data;
        snprintf(environment.master_address, sizeof environment.master_address, "%s", masters[i]);
        assert_ok(lksi_job_secret_read(&environment, &job));
        assert_int_equal(lksi_rendezvous(&environment, &job, soon_ns(), members, connections, &data), LKS_ERR_ARGUMENT);
        assert_non_null(strstr(lks_error_text(), "MASTER_ADDR is "));
        assert_non_null(strstr(lks_error_text(), "which every host takes for itself: an address that all hosts reach"));
    }
}

static int meet_elsewhere(void *argument) {
    setenv("MASTER_ADDR", "127.0.0.2", 1); /* as a script between the launcher and the program may do */
    return find_each_other(atoi(getenv("RANK")), atoi(getenv("WORLD_SIZE")), argument);
}

static void a_socket_at_another_address_is_not_used(void **state) {
    (void)state;
    assert_ok(lks_spawn(2, LKS_PROCESSES, meet_elsewhere, NULL));
}

static void a_port_in_use_is_named(void **state) {
    (void)state;
    pid_t pids[1];
    expectation named = {LKS_ERR_TIMEOUT, 200, {"rank 0 cannot listen on 127.0.0.1:", "another program does"}};
    int claimed = claim_master_port();
    assert_int_equal(listen(claimed, 1), 0);
    pids[0] = start_process(0, 2, fails_as_expected, &named);
    await_processes(pids, 1, -1);
    close(claimed);
}

static void so_is_the_port_next_to_torchruns(void **state) {
    (void)state;
    pid_t pids[1];
    expectation named = {
        LKS_ERR_TIMEOUT, 200, {"rank 0 cannot listen on 127.0.0.1:", "torchrun has MASTER_PORT itself"}};
    int claimed = claim_master_port();
    char text[16];
    snprintf(text, sizeof text, "%d", atoi(getenv("MASTER_PORT")) - 1);
    setenv("MASTER_PORT", text, 1), setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    assert_int_equal(listen(claimed, 1), 0);
    pids[0] = start_process(0, 2, fails_as_expected, &named);
    await_processes(pids, 1, -1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    close(claimed);
}

/* --- meetings of some ranks of one host --- */

/* Of three ranks on two hosts, rank 1 comes to the rendezvous but not to the meeting of its host. */
static int misses_rank_1(int rank, int size, void *argument) {
    (void)size, (void)argument;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    if (rank == 1) {
        visit v = {.data_listener = -1};
        char end;
        MUST_OK(visit_begin(&v, 20000));
        while (lksi_take_over(v.connections[0], &end, 1, NULL, soon_ns()) == LKS_OK) continue; /* why rank 0 gives up */
        visit_end(&v);
        return 0;
    }
    lks_group *world;
    MUST(lks_init(&world, &(lks_init_options){.timeout_ms = rank == 0 ? 500 : 20000}) == LKS_ERR_TIMEOUT);
    MUST_SAY("lks_init: rank(s) 1 did not arrive at their host's meeting");
    return 0;
}

static void a_rank_missing_on_one_of_several_hosts_is_named(void **state) {
    (void)state;
    run_processes(3, misses_rank_1, NULL);
}

/* Of the ranks on two hosts, one comes to the rendezvous and ends before the meeting of its host. */
static int loses_a_rank(int rank, int size, void *lost) {
    setenv("LOCKSTEP_HOST_ID", rank < size / 2 ? "a" : "b", 1);
    if (rank == *(const int *)lost) {
        visit v = {.data_listener = -1};
        MUST_OK(visit_begin(&v, 20000));
        visit_end(&v);
        return 0;
    }
    char named[32];
    snprintf(named, sizeof named, "rank %d (host ", *(const int *)lost);
    lks_group *world;
    MUST(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}) == LKS_ERR_PEER);
    MUST_SAY(named);
    MUST_SAY("was lost");
    MUST_SAY("; lks_init");
    return 0;
}

static void a_rank_lost_before_its_hosts_meeting_is_named(void **state) {
    (void)state;
    for (int lost = 1; lost < 6; lost++) run_processes(6, loses_a_rank, &lost);
}

/* Rank 1 does not come to the meeting of its host. Rank 2, on another host, fails before rank 0 gives up. */
static int fails_by_itself(int rank, int size, void *argument) {
    (void)size, (void)argument;
    setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
    lks_group *world;
    if (rank == 0) {
        MUST(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 2 gave up: ");
        MUST_SAY("the deadline of rank 2");
        return 0;
    }
    visit v = {.data_listener = -1};
    MUST_OK(visit_begin(&v, 20000));
    const lksi_star_record record = {.kind = LKSI_STAR_ABORT,
                                     .status = LKS_ERR_TIMEOUT,
                                     .origin = 2,
                                     .text = "rank 2 gave up: the deadline of rank 2"};
    char end[sizeof record];
    if (rank == 2) MUST_OK(lksi_star_send(v.connections[0], &record));
    if (rank == 1)
        MUST_OK(lksi_take_over(v.connections[0], end, sizeof end, NULL, soon_ns())); /* rank 0 passes it on */
    visit_end(&v);
    return 0;
}

static void why_a_rank_of_another_host_gave_up_is_told(void **state) {
    (void)state;
    run_processes(3, fails_by_itself, NULL);
}

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
    MUST_OK(lksi_environment_read(0, &environment));
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
    /* A rank that left before all have met would be lost to the leader. */
    char welcome[8];
    if (rank != 0 && status == LKS_OK)
        MUST_OK(lksi_take_over(connections[0], welcome, sizeof welcome, NULL, deadline_ns));
    return 0;
}

static void any_ranks_of_a_host_can_meet(void **state) {
    (void)state;
    static const int names[] = {4, 7, 9}, other_names[] = {1, 2, 3};
    pid_t pids[6] = {0};
    gathering one = {.meeting = {.call = "group_split", .id = 1, .rank = 0, .size = 3, .names = names},
                     .timeout_ms = 20000};
    gathering other = {.meeting = {.call = "group_split", .id = 2, .rank = 0, .size = 3, .names = other_names},
                       .timeout_ms = 20000};
    set_master_environment();
    for (int i = 0; i < 3; i++) {
        pids[i] = start_process(i, 10, gather, &one);
        pids[3 + i] = start_process(i, 10, gather, &other);
    }
    await_processes(pids, 6, -1);
}

static lks_status give_up(void *unused) {
    (void)unused;
    return lksi_error(LKS_ERR_PEER, "given up");
}

/* Another socket has the name of the meeting, and the meeting is given up. */
static int give_up_a_meeting(int rank, int size, void *argument) {
    static const int names[] = {4, 7};
    lksi_environment environment;
    lksi_meeting meeting = {.call = "group_split", .id = 1, .rank = rank, .size = 2, .names = names, .check = give_up};
    lksi_identity identities[2] = {{0}};
    int connections[2] = {-1, -1};
    char name[LKSI_SOCKET_NAME_NBYTES];
    (void)size, (void)argument;
    MUST_OK(lksi_environment_read(0, &environment));
    MUST_OK(lksi_socket_name(&environment, &meeting, name));
    int taken = lksi_local_listen(name);
    MUST(taken >= 0);
    int64_t deadline_ns = lksi_now_ns() + SECOND_NS;
    MUST(lksi_leader_meet(&environment, &meeting, deadline_ns, connections, identities) == LKS_ERR_PEER);
    MUST_SAY("given up");
    close(taken);
    return 0;
}

static void a_meeting_is_given_up_though_its_name_is_taken(void **state) {
    (void)state;
    run_processes(1, give_up_a_meeting, NULL);
}

static void ranks_missing_at_a_meeting_are_named(void **state) {
    (void)state;
    static const int names[] = {4, 7, 9};
    pid_t pids[3] = {0};
    gathering led = {.meeting = {.call = "group_split", .id = 1, .rank = 0, .size = 3, .names = names},
                     .timeout_ms = 300,
                     .status = LKS_ERR_TIMEOUT,
                     .says = "group_split: rank(s) 7, 9 did not arrive"};
    gathering followed = led;
    followed.says = "group_split: rank 4 did not arrive at its host's meeting (rank 9 waited)";
    set_master_environment();
    pids[0] = start_process(0, 10, gather, &led);
    await_processes(pids, 3, -1);
    pids[0] = 0;
    pids[2] = start_process(2, 10, gather, &followed);
    await_processes(pids, 3, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_find_each_other_among_strangers),
        cmocka_unit_test(ranks_missing_at_the_rendezvous_are_named),
        cmocka_unit_test(a_rank_that_waits_for_less_long_says_so),
        cmocka_unit_test(two_ranks_with_one_number_are_told),
        cmocka_unit_test(ranks_of_another_size_are_told),
        cmocka_unit_test(ranks_of_another_transport_are_told),
        cmocka_unit_test(a_rank_that_is_there_and_cannot_be_reached_is_not_lost),
        cmocka_unit_test(latecomers_for_whom_there_is_no_place_are_told),
        cmocka_unit_test(a_rank_lost_at_the_rendezvous_is_named),
        cmocka_unit_test(who_is_lost_at_the_rendezvous_holds_nobody_up),
        cmocka_unit_test(another_key_ends_nobody_elses_start),
        cmocka_unit_test(at_a_short_deadline_another_key_is_still_told_of),
        cmocka_unit_test(ranks_of_another_version_are_told),
        cmocka_unit_test(what_rank_0_cannot_do_is_told_to_all),
        cmocka_unit_test(hosts_need_a_key),
        cmocka_unit_test(the_launchers_socket_serves_every_rendezvous),
        cmocka_unit_test(a_descriptor_that_is_no_such_socket_is_not_taken),
        cmocka_unit_test(a_socket_at_another_address_is_not_used),
        cmocka_unit_test(a_port_in_use_is_named),
        cmocka_unit_test(so_is_the_port_next_to_torchruns),
        cmocka_unit_test(an_advertised_address_is_what_others_see),
        cmocka_unit_test(an_unspecified_address_is_not_what_others_see),
        cmocka_unit_test(an_address_that_every_host_takes_for_itself_is_refused),
        cmocka_unit_test(a_rank_missing_on_one_of_several_hosts_is_named),
        cmocka_unit_test(a_rank_lost_before_its_hosts_meeting_is_named),
        cmocka_unit_test(why_a_rank_of_another_host_gave_up_is_told),
        cmocka_unit_test(any_ranks_of_a_host_can_meet),
        cmocka_unit_test(a_meeting_is_given_up_though_its_name_is_taken),
        cmocka_unit_test(ranks_missing_at_a_meeting_are_named),
    };
    return run_group(tests);
}
