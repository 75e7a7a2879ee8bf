/* comm/: strangers connect to the ports of a job over TCP, of rank 0 and of the other ranks. They send nothing,
 * garbage, what they overheard, or enormous lengths. The job continues undisturbed, and no stranger gets in. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "test.h"

#include "ranks.h"

#include "comm/bootstrap/auth.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(strangers_do_not_disturb_a_job)};
    return run_group(tests);
}
