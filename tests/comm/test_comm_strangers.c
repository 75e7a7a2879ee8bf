/* comm/: strangers connect to the ports of a job over TCP, of rank 0 and of the other ranks. They send nothing,
 * garbage, what they overheard, or enormous lengths. Other users of the host know all that is public of a job to which
 * no key was given. The job continues undisturbed, and no stranger gets in. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "test.h"

#include "ranks.h"

#include "comm/bootstrap/auth.h"
#include "comm/bootstrap/local_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { N_RANKS = 3, N_STRANGERS = 90, COUNT = 20000 };

typedef struct job {
    atomic_int n_calls; /* of rank 0 */
    atomic_bool is_over;
} job;

static int calls_go_on(int rank, int size, void *argument) {
    job *j = argument;
    lks_group *world, *part;
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp", .timeout_ms = 20000}));
    int32_t *data = lksi_alloc_array(COUNT, sizeof *data), over = 0;
    for (int call = 0; over == 0; call++) {
        for (int i = 0; i < COUNT; i++) data[i] = rank + i + call;
        MUST_OK(lks_all_reduce(world, data, data, COUNT, LKS_I32, LKS_SUM, NULL));
        for (int i = 0; i < COUNT; i++) MUST(data[i] == size * (i + call) + size * (size - 1) / 2);
        if (call == 50) { /* new connections to the same ports */
            MUST_OK(lks_group_split(world, 0, 0, &part));
            MUST_OK(lks_barrier(part, NULL));
            lks_group_destroy(part);
        }
        over = rank == 0 ? atomic_load(&j->is_over) && call > 60 : 0;
        if (rank == 0) atomic_store(&j->n_calls, call);
        MUST_OK(lks_broadcast(world, &over, 1, LKS_I32, 0, NULL));
    }
    lksi_free(data);
    lks_group_destroy(world);
    return 0;
}

static int knock_at(int port) {
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) return connection;
    close(connection);
    return -1;
}

/* What a stranger sends first. 0: nothing. 1: garbage. 2: all ones, an enormous length wherever one is expected. 3: a
 * valid greeting and then an invalid proof. 4: what the other side sent, reflected. */
static void be_strange(int connection, int how) {
    unsigned char bytes[512];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = how == 2 ? 0xff : (unsigned char)(i * 37 + (size_t)how);
    if (how == 1 || how == 2) (void)!send(connection, bytes, sizeof bytes, MSG_NOSIGNAL);
    if (how == 3) {
        static const unsigned char key[LKSI_KEY_NBYTES] = "not the key of this job";
        lksi_auth auth;
        fcntl(connection, F_SETFL, O_NONBLOCK);
        lks_status status = lksi_auth_begin(&auth, connection, true, key, bytes, 16);
        for (int i = 0; i < 20 && status == LKS_OK; i++) {
            (void)lksi_auth_step(&auth);
            lksi_sleep_ns(500000);
        }
    }
    if (how == 4) {
        ssize_t n = send(connection, bytes, 1, MSG_NOSIGNAL);
        if (n > 0 && (n = recv(connection, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            (void)!send(connection, bytes, (size_t)n, MSG_NOSIGNAL);
    }
}

static void strangers_do_not_disturb_a_job(void **state) {
    (void)state;
    pid_t pids[N_RANKS];
    int connections[N_STRANGERS], ports[N_RANKS + 1];
    job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(j, MAP_FAILED);
    setenv("LOCKSTEP_JOB_KEY", "a key that no stranger knows", 1);
    set_master_environment();
    ports[N_RANKS] = atoi(getenv("MASTER_PORT"));
    for (int rank = 0; rank < N_RANKS; rank++) {
        char text[64];
        ports[rank] = ports[N_RANKS] + 4 + rank;
        snprintf(text, sizeof text, "127.0.0.1:%d", ports[rank]), setenv("LOCKSTEP_LISTEN", text, 1);
        pids[rank] = start_process(rank, N_RANKS, calls_go_on, j);
    }
    unsetenv("LOCKSTEP_LISTEN"), unsetenv("LOCKSTEP_JOB_KEY");
    int n_heard = 0;
    for (int i = 0; i < N_STRANGERS; i++) {
        connections[i] = knock_at(ports[i % (N_RANKS + 1)]);
        if (connections[i] >= 0) be_strange(connections[i], i / (N_RANKS + 1) % 5), n_heard++;
        lksi_sleep_ns(5000000);
    }
    atomic_store(&j->is_over, true);
    await_processes(pids, N_RANKS, -1);
    for (int i = 0; i < N_STRANGERS; i++)
        if (connections[i] >= 0) close(connections[i]);
    assert_true(n_heard > N_STRANGERS / 2);
    assert_true(atomic_load(&j->n_calls) > 60);
    munmap(j, sizeof *j);
}

/* --- without a key --- */

enum { ANOTHER_USER = 65534 };
static bool is_lying; /* this process runs the library as if it were root's */

/* The library calls this function instead of the system's. */
uid_t getuid(void) { return is_lying ? 0 : (uid_t)syscall(SYS_getuid); }

static int joins_twice(int rank, int size, void *argument) {
    (void)argument;
    for (int i = 0; i < 2; i++) {
        lks_group *world;
        int32_t sum = rank;
        MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp", .timeout_ms = 20000}));
        MUST_OK(lks_all_reduce(world, &sum, &sum, 1, LKS_I32, LKS_SUM, NULL));
        MUST(sum == size * (size - 1) / 2);
        lks_group_destroy(world);
    }
    return 0;
}

static void ranks_without_a_key_find_each_other(void **state) {
    (void)state;
    pid_t pids[N_RANKS];
    set_master_environment();
    for (int rank = N_RANKS - 1; rank >= 0; rank--) {
        pids[rank] = start_process(rank, N_RANKS, joins_twice, NULL);
        lksi_sleep_ns(200000000); /* rank 0 is late */
    }
    await_processes(pids, N_RANKS, -1);
}

static void name_of_local_socket(char name[64]) {
    snprintf(name, 64, "lockstep-key 0 127.0.0.1:%s 0", getenv("MASTER_PORT"));
}

/* Connects to where the key is handed out, and stays there. */
static int wait_for_key(void) {
    char name[64];
    int connection = -1;
    name_of_local_socket(name);
    for (int i = 0; i < 5000 && connection < 0; i++) {
        connection = lksi_local_connect(name);
        lksi_sleep_ns(1000000);
    }
    return connection;
}

static int tries_to_join(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    enum { N_TRIES = 100 };
    int connections[N_TRIES];
    lks_group *world;
    MUST(setresuid(ANOTHER_USER, ANOTHER_USER, ANOTHER_USER) == 0);
    for (int i = 0; i < 2; i++) {
        is_lying = i > 0;
        MUST(lks_init(&world, &(lks_init_options){.transport = "tcp", .timeout_ms = 2000}) != LKS_OK);
        MUST_SAY("the other side knows another LOCKSTEP_JOB_KEY");
    }
    for (int i = 0; i < N_TRIES; i++) MUST((connections[i] = wait_for_key()) >= 0);
    for (int i = 0; i < N_TRIES; i++) {
        struct pollfd answer = {.fd = connections[i], .events = POLLIN};
        char byte;
        MUST(poll(&answer, 1, 10000) == 1 && recv(connections[i], &byte, 1, 0) <= 0);
        close(connections[i]);
    }
    return 0;
}

static bool is_root(void) {
    if (getuid() == 0) return true;
    printf("only root can start a process of another user\n");
    return false;
}

static void another_user_does_not_get_into_a_job_without_a_key(void **state) {
    (void)state;
    enum { N_SILENT = 100 };
    pid_t pids[2], stranger;
    int silent[N_SILENT];
    if (!is_root()) skip();
    set_master_environment();
    setenv("LOCKSTEP_LOG", "error", 1);
    pids[0] = start_process(0, 2, joins_twice, NULL);
    stranger = start_process(1, 2, tries_to_join, NULL);
    await_processes(&stranger, 1, -1);
    for (int i = 0; i < N_SILENT; i++) assert_true((silent[i] = wait_for_key()) >= 0);
    pids[1] = start_process(1, 2, joins_twice, NULL);
    await_processes(pids, 2, -1);
    for (int i = 0; i < N_SILENT; i++) close(silent[i]);
    unsetenv("LOCKSTEP_LOG");
}

static int takes_the_local_socket(int rank, int size, void *argument) {
    (void)rank, (void)size;
    const int *pipe = argument;
    char name[64], byte;
    name_of_local_socket(name);
    MUST(setresuid(ANOTHER_USER, ANOTHER_USER, ANOTHER_USER) == 0);
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0); /* a test that fails does not tell it to end */
    int listener = lksi_local_listen(name);
    MUST(listener >= 0 && send(*pipe, "!", 1, 0) == 1);
    MUST(recv(*pipe, &byte, 1, 0) == 1);
    close(listener);
    return 0;
}

static int cannot_start(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    MUST(lks_init(&world, &(lks_init_options){.transport = "tcp", .timeout_ms = 1000}) ==
         (rank == 0 ? LKS_ERR_TIMEOUT : LKS_ERR_MISMATCH));
    MUST_SAY(rank == 0 ? "rank 0 cannot listen on 127.0.0.1:" : "a process of another user is at the local socket ");
    return 0;
}

static void another_user_who_takes_the_place_of_the_key_is_named(void **state) {
    (void)state;
    pid_t pids[3];
    int ends[2];
    char byte;
    if (!is_root()) skip();
    set_master_environment();
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    pids[2] = start_process(2, 3, takes_the_local_socket, &ends[1]);
    assert_int_equal(recv(ends[0], &byte, 1, 0), 1);
    for (int rank = 0; rank < 2; rank++) pids[rank] = start_process(rank, 2, cannot_start, NULL);
    await_processes(pids, 2, -1);
    assert_int_equal(send(ends[0], "!", 1, 0), 1);
    await_processes(&pids[2], 1, -1);
    close(ends[0]), close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_do_not_disturb_a_job),
        cmocka_unit_test(ranks_without_a_key_find_each_other),
        cmocka_unit_test(another_user_does_not_get_into_a_job_without_a_key),
        cmocka_unit_test(another_user_who_takes_the_place_of_the_key_is_named),
    };
    return run_group(tests);
}
