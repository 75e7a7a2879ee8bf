/* comm/: what lks_init reads, which ranks it waits for, and whom it rejects. */
#include "test.h"

#include "comm/bootstrap/build.h"
#include "comm/bootstrap/crossing.h"
#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/handshake.h"
#include "comm/bootstrap/local_socket.h"
#include "comm/comm_internal.h"
#include "ranks.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "LOCKSTEP_TRANSPORT",
                                        "LOCKSTEP_TIMEOUT_MS",
                                        "LOCKSTEP_GENERATION",
                                        "LOCKSTEP_ISA",
                                        "LOCKSTEP_ALGORITHM"};

static void clear_environment(void) {
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) unsetenv(variables[i]);
}

static void set_whole_environment(void) {
    clear_environment();
    set_rank_environment(1, 3);
    set_master_environment();
}

static void refused(lks_status expected, const char *says) {
    lks_group *world = NULL;
    assert_int_equal(lks_init(&world, NULL), expected);
    assert_null(world);
    if (strstr(lks_error_text(), says) == NULL) fail_msg("'%s' does not say '%s'", lks_error_text(), says);
}

static void the_environment_is_read_as_torchrun_sets_it(void **state) {
    (void)state;
    lksi_environment environment;
    set_whole_environment();
    assert_ok(lksi_environment_read(0, &environment));
    assert_int_equal(environment.rank, 1);
    assert_int_equal(environment.size, 3);
    assert_int_equal(environment.local_rank, 1);
    assert_int_equal(environment.local_size, 3);
    assert_string_equal(environment.master_address, "127.0.0.1");
    clear_environment();
    assert_ok(lksi_environment_read(0, &environment));
    assert_int_equal(environment.size, 1);
    set_whole_environment(); /* without the local variables, the local size depends on where the ranks meet */
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    assert_ok(lksi_environment_read(0, &environment));
    assert_int_equal(environment.local_rank, 1);
    assert_int_equal(environment.local_size, 3);
    setenv("MASTER_ADDR", "10.77.0.1", 1);
    assert_ok(lksi_environment_read(0, &environment));
    assert_int_equal(environment.local_size, 0);
    setenv("LOCAL_RANK", "0", 1);
    assert_ok(lksi_environment_read(0, &environment));
    assert_int_equal(environment.local_size, 0);
    clear_environment();
    setenv("LOCAL_RANK", "5", 1); /* has no meaning alone */
    assert_ok(lksi_environment_read(0, &environment));
    assert_int_equal(environment.size, 1);
}

static void bad_variables_are_named_with_their_values(void **state) {
    (void)state;
    static const struct {
        const char *name, *value, *says;
        lks_status status;
    } cases[] = {
        {"RANK", "one", "RANK is 'one'", LKS_ERR_ARGUMENT},
        {"RANK", "3", "RANK is '3', which is not a number from 0 to 2", LKS_ERR_ARGUMENT},
        {"RANK", "", "RANK is not set", LKS_ERR_ARGUMENT},
        {"WORLD_SIZE", "0", "WORLD_SIZE is '0'", LKS_ERR_ARGUMENT},
        {"WORLD_SIZE", "", "WORLD_SIZE is not set", LKS_ERR_ARGUMENT},
        {"LOCAL_RANK", "-1", "LOCAL_RANK is '-1'", LKS_ERR_ARGUMENT},
        {"LOCAL_WORLD_SIZE", "4", "LOCAL_WORLD_SIZE is '4'", LKS_ERR_ARGUMENT},
        {"MASTER_ADDR", "", "MASTER_ADDR is not set", LKS_ERR_ARGUMENT},
        {"MASTER_PORT", "", "MASTER_PORT is not set", LKS_ERR_ARGUMENT},
        {"MASTER_PORT", "65536", "MASTER_PORT is '65536'", LKS_ERR_ARGUMENT},
        {"LOCKSTEP_TRANSPORT", "pigeon", "LOCKSTEP_TRANSPORT 'pigeon' is not one of", LKS_ERR_ARGUMENT},
        {"LOCKSTEP_TRANSPORT", "thread", "the ranks are processes", LKS_ERR_ARGUMENT},
        {"LOCKSTEP_TIMEOUT_MS", "soon", "LOCKSTEP_TIMEOUT_MS is 'soon'", LKS_ERR_ARGUMENT},
        {"LOCKSTEP_ISA", "widest", "LOCKSTEP_ISA 'widest' is not one of base, avx2, avx512", LKS_ERR_ARGUMENT},
        {"LOCKSTEP_ALGORITHM", "rong", "LOCKSTEP_ALGORITHM: no operation has an algorithm 'rong'", LKS_ERR_ARGUMENT},
        {"LOCKSTEP_GENERATION", "x", "LOCKSTEP_GENERATION is 'x'", LKS_ERR_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_whole_environment();
        setenv(cases[i].name, cases[i].value, 1);
        refused(cases[i].status, cases[i].says);
    }
    clear_environment();
    lks_group *world;
    assert_int_equal(lks_init(&world, &(lks_init_options){.timeout_ms = -1}), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_init(&world, &(lks_init_options){.transport = "pigeon"}), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_init(NULL, NULL), LKS_ERR_ARGUMENT);
}

static int joins_as_a_thread(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    lks_group_destroy(world);
    return 0;
}

/* A program under lockstep run --threads that does not call lks_main would be a world of one rank. */
static void a_thread_that_is_no_rank_is_refused(void **state) {
    (void)state;
    clear_environment();
    setenv("LOCKSTEP_THREADS", "2", 1);
    refused(LKS_ERR_STATE, "call lks_main");
    run_threads(2, joins_as_a_thread, NULL);
    unsetenv("LOCKSTEP_THREADS");
}

/* The limit on the size of files applies to shared memory, too. */
static int may_write_small_files_alone(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    struct rlimit limit = {64 << 10, 64 << 10};
    if (rank == 0) MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    MUST(lks_init(&world, NULL) == LKS_ERR_MEMORY);
    MUST_SAY("shared bytes were asked for, the limit on the size of files (ulimit -f) is 65536");
    return 0;
}

static void a_limit_on_files_is_named(void **state) {
    (void)state;
    run_processes(2, may_write_small_files_alone, NULL);
}

/* --- ranks that are missing, or of another world --- */

typedef struct lateness {
    _Atomic bool has_begun;    /* shared, like the next field */
    _Atomic int64_t second_ns; /* when rank 1 started */
} lateness;

/* One deadline covers the whole start. Rank 0 waits for rank 1 twice: before the segment exists or at the rendezvous,
 * then in the segment. */
static int starts_earlier(int rank, int size, void *argument) {
    (void)size;
    lateness *l = argument;
    lks_group *world;
    if (rank == 0) l->has_begun = true;
    while (!l->has_begun) lksi_sleep_ns(1000000);
    if (rank == 1) lksi_sleep_ns(100000000);
    if (rank == 1) l->second_ns = lksi_now_ns();
    MUST_OK(lks_init(&world, NULL));
    MUST(rank == 1 || (world->progress.started_ns > 0 && world->progress.started_ns < l->second_ns));
    lks_group_destroy(world);
    return 0;
}

static void one_deadline_is_over_all_of_the_start(void **state) {
    (void)state;
    lateness *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run_processes(2, starts_earlier, l);
    *l = (lateness){.has_begun = false};
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
    run_processes(2, starts_earlier, l);
    unsetenv("LOCKSTEP_TRANSPORT");
    munmap(l, sizeof *l);
}

static int waits_in_vain(int rank, int size, void *argument) {
    (void)rank, (void)size;
    lks_group *world;
    MUST(lks_init(&world, &(lks_init_options){.timeout_ms = 300}) == LKS_ERR_TIMEOUT);
    MUST_SAY((const char *)argument);
    return 0;
}

static void missing_ranks_are_named(void **state) {
    (void)state;
    pid_t pids[4] = {0};
    set_master_environment();
    pids[0] = start_process(0, 4, waits_in_vain, "rank(s) 2, 3 of 4 did not arrive");
    pids[1] = start_process(1, 4, waits_in_vain, "rank(s) 2, 3 of 4 did not arrive");
    await_processes(pids, 4, -1);
    set_master_environment();
    memset(pids, 0, sizeof pids);
    pids[1] = start_process(1, 2, waits_in_vain, "rank 0 did not arrive (rank 1 of 2, MASTER_ADDR 127.0.0.1");
    await_processes(pids, 4, -1);
}

/* --- MASTER_ADDR --- */

typedef struct loopback_case {
    const char *transport, *local_size; /* NULL: unset */
    const char *address;
    bool is_suspicious;
} loopback_case;

static size_t count(const char *text, const char *part) {
    size_t n = 0;
    for (; (text = strstr(text, part)) != NULL; text++) n++;
    return n;
}

static int waits_at_a_loopback_address(int rank, int size, void *argument) {
    (void)rank, (void)size;
    const loopback_case *c = argument;
    lks_group *world;
    char log[4096], says[160];
    const char *found = strcmp(c->address, "0.0.0.0") == 0 ? c->address : "127.0.1.1";
    snprintf(says, sizeof says, "; MASTER_ADDR %s is %s on this host, which other hosts cannot reach", c->address,
             found);
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    FILE *file = tmpfile();
    const int saved = dup(STDERR_FILENO);
    setenv("MASTER_ADDR", c->address, 1);
    unsetenv("LOCAL_RANK"), unsetenv("LOCAL_WORLD_SIZE");
    if (c->local_size != NULL) setenv("LOCAL_RANK", "0", 1), setenv("LOCAL_WORLD_SIZE", c->local_size, 1);
    if (c->transport != NULL) setenv("LOCKSTEP_TRANSPORT", c->transport, 1);
    MUST(file != NULL && dup2(fileno(file), STDERR_FILENO) == STDERR_FILENO);
    lks_status status = lks_init(&world, &(lks_init_options){.timeout_ms = 3000});
    MUST(dup2(saved, STDERR_FILENO) == STDERR_FILENO);
    close(saved);
    rewind(file);
    log[fread(log, 1, sizeof log - 1, file)] = '\0';
    fclose(file);
    MUST(status == LKS_ERR_TIMEOUT);
    MUST_SAY("rank(s) 1 of 2 did not arrive");
    MUST((strstr(lks_error_text(), says) != NULL) == c->is_suspicious);
    MUST(count(log, "warning: ") == c->is_suspicious && count(log, says) == c->is_suspicious);
    MUST(count(log, "rank(s) 1 of 2 did not arrive") == c->is_suspicious);
    MUST(count(log, "loopback") == 0); /* what the address must be is said once */
    return 0;
}

/* The C library reads 0x7f000101 as an address, as it reads a host's own name in Debian's /etc/hosts. */
static void a_name_that_other_hosts_cannot_reach_is_told(void **state) {
    (void)state;
    static loopback_case cases[] = {
        {NULL, NULL, "0x7f000101", true}, {"tcp", NULL, "0x7f000101", true}, {NULL, "1", "0x7f000101", true},
        {NULL, NULL, "127.0.1.1", false}, {"tcp", NULL, "localhost", false}, {NULL, NULL, "LocalHost", false},
        {NULL, "2", "0x7f000101", false}, {"tcp", "2", "0x7f000101", false}, {NULL, NULL, "0.0.0.0", true}};
    enum { N_CASES = sizeof cases / sizeof cases[0] };
    pid_t pids[N_CASES];
    for (int i = 0; i < N_CASES; i++) {
        set_master_environment();
        pids[i] = start_process(0, 2, waits_at_a_loopback_address, &cases[i]);
    }
    await_processes(pids, N_CASES, -1);
}

/* Two ranks whose launcher has told rank 0 alone that both are on one host. */
static int has_other_local_numbers(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    setenv("MASTER_ADDR", "192.0.2.1", 1); /* an address of nobody (RFC 5737) */
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    if (rank == 1) unsetenv("LOCAL_RANK"), unsetenv("LOCAL_WORLD_SIZE");
    MUST(lks_init(&world, NULL) == LKS_ERR_MISMATCH);
    MUST_SAY("rank 1 meets the others over TCP (transport 'auto', WORLD_SIZE 2, LOCAL_WORLD_SIZE unset), rank 0 at a "
             "local socket ('auto', 2, 2)");
    return 0;
}

static void local_numbers_that_are_unset_are_said_to_be(void **state) {
    (void)state;
    run_processes(2, has_other_local_numbers, NULL);
}

static const int64_t PATIENCE_NS = INT64_C(20000000000);

/* Accepts rank 1, and then is silent until rank 1 has given up. */
static int keeps_rank_1_waiting(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lksi_environment environment;
    lksi_identity identities[2];
    int connections[2] = {-1, -1};
    char end;
    MUST_OK(lksi_environment_read(0, &environment));
    MUST_OK(lksi_leader_meet(&environment, NULL, lksi_now_ns() + PATIENCE_NS, connections, identities));
    MUST(lksi_take_over(connections[1], &end, 1, NULL, lksi_now_ns() + PATIENCE_NS) == LKS_ERR_PEER);
    close(connections[1]);
    return 0;
}

static void a_first_rank_that_stops_during_the_start_is_not_called_lost(void **state) {
    (void)state;
    pid_t pids[2];
    set_master_environment();
    pids[0] = start_process(0, 2, keeps_rank_1_waiting, NULL);
    pids[1] = start_process(1, 2, waits_in_vain, "lks_init: rank 0 is there, but did not say in time");
    await_processes(pids, 2, -1);
}

static void wait_alone(void *opaque) {
    int *result = opaque;
    lksi_thread_world *world;
    if (lksi_thread_world_create(&world, 3) != LKS_OK) return;
    lksi_thread_world_enter(world, 1);
    *result = waits_in_vain(1, 3, "rank(s) 0, 2 of 3 did not arrive");
    lksi_thread_world_leave(world, 0);
    lksi_thread_world_destroy(world);
}

static void missing_threads_are_named(void **state) {
    (void)state;
    int result = -1;
    lksi_thread *thread;
    assert_ok(lksi_thread_create(&thread, wait_alone, &result, "rank"));
    lksi_thread_join(thread);
    assert_int_equal(result, 0);
}

static int finds_another_world(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *world;
    MUST(lks_init(&world, NULL) == LKS_ERR_MISMATCH);
    MUST_SAY("rank 1 has WORLD_SIZE 3");
    MUST_SAY("rank 0 has 2");
    return 0;
}

static void ranks_with_another_world_size_are_told(void **state) {
    (void)state;
    pid_t pids[2];
    set_master_environment();
    pids[0] = start_process(0, 2, finds_another_world, NULL);
    pids[1] = start_process(1, 3, finds_another_world, NULL);
    await_processes(pids, 2, -1);
}

typedef struct crossing_case {
    const char *transports[3], *host_ids[3], *keys[3]; /* by rank; NULL: unset */
    const char *says[2];
} crossing_case;

static int meets_the_other_way(int rank, int size, void *argument) {
    (void)size;
    const crossing_case *c = argument;
    lks_group *world;
    int64_t began_ns = lksi_now_ns();
    if (c->transports[rank] != NULL) setenv("LOCKSTEP_TRANSPORT", c->transports[rank], 1);
    if (c->host_ids[rank] != NULL) setenv("LOCKSTEP_HOST_ID", c->host_ids[rank], 1);
    if (c->keys[rank] != NULL) setenv("LOCKSTEP_JOB_KEY", c->keys[rank], 1);
    MUST(lks_init(&world, NULL) == LKS_ERR_MISMATCH);
    MUST(lksi_now_ns() - began_ns < INT64_C(20000000000));
    MUST_SAY(c->says[0]);
    MUST_SAY(c->says[1]);
    return 0;
}

static void ranks_that_meet_in_two_places_are_told(void **state) {
    (void)state;
    static crossing_case cases[] = {
        {{NULL, "tcp", NULL},
         {NULL},
         {NULL},
         {"rank 1 meets the others over TCP (transport 'tcp', ", "local socket ('auto'"}},
        {{"shm", "shm", "tcp"},
         {NULL},
         {NULL},
         {"rank 2 meets the others over TCP (transport 'tcp', ", "local socket ('shm'"}},
        {{"tcp", "tcp", NULL},
         {NULL},
         {NULL},
         {"rank 2 meets the others at a local socket (transport 'auto'", "TCP ('tcp'"}},
        {{NULL},
         {"a", NULL, "a"},
         {NULL},
         {"rank 1 meets the others at a local socket", "LOCKSTEP_HOST_ID must be set on all"}},
        {{NULL}, {NULL}, {NULL, NULL, "k"}, {"rank 2 has another LOCKSTEP_JOB_KEY", "than rank 0"}},
        {{NULL, "tcp", NULL}, {NULL}, {"k", NULL, "k"}, {"rank 1 meets the others over TCP", "socket ('auto'"}},
        {{NULL},
         {NULL, NULL, "a"},
         {NULL},
         {"rank 2 meets the others over TCP", "LOCKSTEP_HOST_ID must be set on all ranks or on none"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pid_t pids[3];
        set_master_environment();
        for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, meets_the_other_way, &cases[i]);
        await_processes(pids, 3, -1);
    }
}

static int finds_its_number_taken(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *world;
    int64_t began_ns = lksi_now_ns();
    MUST(lks_init(&world, NULL) == LKS_ERR_MISMATCH);
    MUST(lksi_now_ns() - began_ns < INT64_C(20000000000));
    MUST_SAY("two processes say that they are rank 1 of 3");
    return 0;
}

static void two_ranks_with_one_number_are_told(void **state) {
    (void)state;
    pid_t pids[3];
    set_master_environment();
    pids[0] = start_process(0, 3, finds_its_number_taken, NULL);
    pids[1] = start_process(1, 3, finds_its_number_taken, NULL);
    pids[2] = start_process(1, 3, finds_its_number_taken, NULL);
    await_processes(pids, 3, -1);
}

static int finds_another_version(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    if (rank == 2) lksi_sleep_ns(500000000); /* is informed even when it is late */
    MUST(lks_init(&world, NULL) == LKS_ERR_MISMATCH);
    MUST_SAY("rank 1 on host ");
    MUST_SAY(" runs lockstep 99.1.2, rank 0 on host ");
    return 0;
}

/* Sends rank 0 the hello of lks_init, as a rank of `version` (NULL: this one), and waits until rank 0 has read it. */
static int arrive(int rank, int size, const char *version, int *connection) {
    char name[LKSI_SOCKET_NAME_NBYTES], heard;
    lksi_environment environment;
    lksi_hello hello = {.magic = LKSI_HELLO_MAGIC, .size = size, .local_size = size};
    lksi_build_fill(&hello.build);
    if (version != NULL) snprintf(hello.build.version, sizeof hello.build.version, "%s", version);
    lksi_identity_fill(&hello.identity, rank);
    MUST_OK(lksi_environment_read(0, &environment));
    MUST_OK(lksi_socket_name(&environment, NULL, name));
    while ((*connection = lksi_local_connect(name)) < 0) lksi_sleep_ns(1000000);
    MUST_OK(lksi_hand_over(*connection, &hello, sizeof hello, -1));
    MUST_OK(lksi_take_over(*connection, &heard, 1, NULL, lksi_now_ns() + PATIENCE_NS));
    return 0;
}

/* A rank with another library version, up to its refusal. */
static int runs_another_version(int rank, int size, void *argument) {
    (void)argument;
    lksi_welcome welcome;
    int connection, descriptor;
    MUST(arrive(rank, size, "99.1.2", &connection) == 0);
    MUST_OK(lksi_take_over(connection, &welcome, sizeof welcome, &descriptor, lksi_now_ns() + PATIENCE_NS));
    close(connection);
    MUST(welcome.status == LKS_ERR_MISMATCH && descriptor < 0);
    MUST(strstr(welcome.text, "runs lockstep 99.1.2") != NULL);
    return 0;
}

static void ranks_of_another_version_are_told(void **state) {
    (void)state;
    pid_t pids[4];
    set_master_environment();
    pids[0] = start_process(0, 4, finds_another_version, NULL);
    pids[1] = start_process(1, 4, runs_another_version, NULL);
    pids[2] = start_process(2, 4, finds_another_version, NULL);
    pids[3] = start_process(3, 4, finds_another_version, NULL);
    await_processes(pids, 4, -1);
}

static int loses_rank_1(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    int connection;
    if (rank == 1) { /* dies once rank 0 has read its hello: before, rank 0 cannot know which rank it lost */
        MUST(arrive(rank, size, NULL, &connection) == 0);
        raise(SIGKILL);
    }
    MUST(lks_init(&world, NULL) == LKS_ERR_PEER);
    MUST_SAY("rank 1 (host");
    return 0;
}

static void a_rank_that_dies_during_the_start_is_named(void **state) {
    (void)state;
    pid_t pids[3] = {0};
    set_master_environment();
    pids[0] = start_process(0, 3, loses_rank_1, NULL);
    pids[1] = start_process(1, 3, loses_rank_1, NULL);
    await_processes(pids, 3, 1);
}

/* --- strangers --- */

static int join_world(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

/* Strangers of the same user that know the socket's name: they are silent, send garbage or other messages, or claim to
 * be an invalid rank. */
static void strangers_do_not_disturb_the_start(void **state) {
    (void)state;
    enum { N_STRANGERS = 150 };
    static int strangers[N_STRANGERS];
    char name[LKSI_SOCKET_NAME_NBYTES], garbage[600];
    lksi_environment environment;
    pid_t pids[3];
    memset(garbage, 0x5a, sizeof garbage);
    set_master_environment();
    set_rank_environment(0, 3);
    assert_ok(lksi_environment_read(0, &environment));
    assert_ok(lksi_socket_name(&environment, NULL, name));
    setenv("LOCKSTEP_LOG", "error", 1);
    pids[0] = start_process(0, 3, join_world, NULL);
    pids[1] = start_process(1, 3, join_world, NULL);
    for (int i = 0; i < N_STRANGERS; i++) {
        while ((strangers[i] = lksi_local_connect(name)) < 0) lksi_sleep_ns(1000000);
        lksi_hello hello = {.magic = LKSI_HELLO_MAGIC + (i % 2 == 0), .size = 3, .local_size = 3};
        lksi_build_fill(&hello.build);
        lksi_identity_fill(&hello.identity, i % 4 == 1 ? 99 : 1);
        if (i % 3 == 1) assert_true(send(strangers[i], garbage, sizeof garbage, MSG_NOSIGNAL) > 0);
        if (i % 3 == 2 && (i % 2 == 0 || i % 4 == 1))
            assert_true(send(strangers[i], &hello, sizeof hello, MSG_NOSIGNAL) > 0);
    }
    pids[2] = start_process(2, 3, join_world, NULL);
    await_processes(pids, 3, -1);
    for (int i = 0; i < N_STRANGERS; i++) close(strangers[i]);
    clear_environment();
}

/* A step of rank 0, which looks for ranks that meet the other way, is over soon although silent strangers wait. */
static void silent_strangers_do_not_keep_rank_0(void **state) {
    (void)state;
    enum { N_STRANGERS = 40 };
    int strangers[N_STRANGERS];
    lksi_environment environment;
    lksi_crossing crossing;
    set_master_environment();
    set_rank_environment(0, 2);
    assert_ok(lksi_environment_read(0, &environment));
    assert_ok(lksi_crossing_init(&crossing, &environment, true));
    assert_ok(lksi_crossing_step(&crossing, LKS_OK));
    for (int i = 0; i < N_STRANGERS; i++) {
        strangers[i] = lksi_local_connect(crossing.places[LKSI_CROSSING_JOB].name);
        assert_true(strangers[i] >= 0);
    }
    int64_t began_ns = lksi_now_ns();
    assert_ok(lksi_crossing_step(&crossing, LKS_OK));
    assert_true(lksi_now_ns() - began_ns < INT64_C(1000000000)); /* each is heard for 50 ms */
    for (int i = 0; i < N_STRANGERS; i++) close(strangers[i]);
    lksi_crossing_close(&crossing);
    clear_environment();
}

static void the_name_depends_on_the_key(void **state) {
    (void)state;
    lksi_environment environment = {.master_address = "a", .master_port = 1};
    char plain[LKSI_SOCKET_NAME_NBYTES], keyed[LKSI_SOCKET_NAME_NBYTES], next[LKSI_SOCKET_NAME_NBYTES];
    assert_ok(lksi_socket_name(&environment, NULL, plain));
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    assert_ok(lksi_socket_name(&environment, NULL, keyed));
    setenv("LOCKSTEP_GENERATION", "1", 1);
    assert_ok(lksi_socket_name(&environment, NULL, next));
    unsetenv("LOCKSTEP_JOB_KEY");
    unsetenv("LOCKSTEP_GENERATION");
    assert_string_not_equal(plain, keyed);
    assert_string_not_equal(keyed, next);
    assert_null(strstr(keyed, "secret"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_is_read_as_torchrun_sets_it),
        cmocka_unit_test(bad_variables_are_named_with_their_values),
        cmocka_unit_test(a_thread_that_is_no_rank_is_refused),
        cmocka_unit_test(a_limit_on_files_is_named),
        cmocka_unit_test(one_deadline_is_over_all_of_the_start),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(a_name_that_other_hosts_cannot_reach_is_told),
        cmocka_unit_test(local_numbers_that_are_unset_are_said_to_be),
        cmocka_unit_test(a_first_rank_that_stops_during_the_start_is_not_called_lost),
        cmocka_unit_test(missing_threads_are_named),
        cmocka_unit_test(ranks_with_another_world_size_are_told),
        cmocka_unit_test(ranks_that_meet_in_two_places_are_told),
        cmocka_unit_test(two_ranks_with_one_number_are_told),
        cmocka_unit_test(ranks_of_another_version_are_told),
        cmocka_unit_test(a_rank_that_dies_during_the_start_is_named),
        cmocka_unit_test(strangers_do_not_disturb_the_start),
        cmocka_unit_test(silent_strangers_do_not_keep_rank_0),
        cmocka_unit_test(the_name_depends_on_the_key),
    };
    return run_group(tests);
}
