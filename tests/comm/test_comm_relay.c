/* comm/ over a bad network: a relay between the ranks delays, stalls, cuts or resets the connections. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "test.h"

#include "ranks.h"

#include <stdatomic.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { N_RANKS = 3, MOST_LINES = 64, CHUNK_NBYTES = 16384 };

typedef enum mischief { NOTHING, DELAY, STALL, CUT, RESET } mischief;

/* The test sets it and the relays read it. */
typedef struct weather {
    _Atomic int mischief;
    _Atomic int n_calls; /* of rank 0 */
} weather;

/* --- the relay: one process per rank, in front of the port where that rank takes connections --- */

typedef struct relayed {
    int from, to;
} relayed;

/* Rank r listens on a loopback address of its own, 127.0.0.(2 + r), at the same port as its relay on 127.0.0.1. So no
 * connection of another test can get this port in the meantime. */
static struct sockaddr_in address_of(int host, int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (uint32_t)host)};
}

static int listen_on_loopback(int *port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = address_of(1, 0);
    socklen_t nbytes = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, nbytes) != 0 || listen(listener, 64) != 0) abort();
    getsockname(listener, (struct sockaddr *)&address, &nbytes);
    *port = ntohs(address.sin_port);
    return listener;
}

static int connect_to_rank(int rank, int port) {
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = address_of(2 + rank, port);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) return connection;
    close(connection);
    return -1;
}

static void end_line(relayed *line, bool is_reset) {
    struct linger at_once = {.l_onoff = 1};
    int ends[] = {line->from, line->to};
    for (int i = 0; i < 2; i++) {
        if (is_reset) setsockopt(ends[i], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(ends[i]);
    }
    line->from = line->to = -1;
}

/* Returns false at the end of the connection. */
static bool pass_on(int from, int to, const weather *w) {
    unsigned char chunk[CHUNK_NBYTES];
    ssize_t n = recv(from, chunk, sizeof chunk, 0);
    if (n <= 0) return false;
    if (atomic_load(&w->mischief) == DELAY) lksi_sleep_ns(2000000);
    for (ssize_t sent = 0, now; sent < n; sent += now)
        if ((now = send(to, chunk + sent, (size_t)(n - sent), MSG_NOSIGNAL)) <= 0) return false;
    return true;
}

static _Noreturn void relay(int rank, int listener, int port, const weather *w) {
    relayed lines[MOST_LINES];
    int n_lines = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the test fails, no other process ends the relay */
    for (;;) {
        struct pollfd polls[1 + 2 * MOST_LINES] = {{.fd = listener, .events = POLLIN}};
        int what = atomic_load(&w->mischief), n_before = n_lines;
        for (int i = 0; i < n_lines; i++) {
            if ((what == CUT || what == RESET) && lines[i].from >= 0) end_line(&lines[i], what == RESET);
            polls[1 + 2 * i] = (struct pollfd){.fd = lines[i].from, .events = POLLIN};
            polls[2 + 2 * i] = (struct pollfd){.fd = lines[i].to, .events = POLLIN};
        }
        if (what == STALL) {
            lksi_sleep_ns(1000000);
            continue;
        }
        if (poll(polls, (nfds_t)(1 + 2 * n_lines), 5) <= 0) continue;
        if (polls[0].revents != 0 && n_lines < MOST_LINES) {
            relayed line = {accept(listener, NULL, NULL), connect_to_rank(rank, port)};
            if (line.to >= 0)
                lines[n_lines++] = line;
            else
                close(line.from);
        }
        for (int i = 0; i < n_before; i++) {
            relayed *line = &lines[i];
            bool goes_on = (polls[1 + 2 * i].revents == 0 || pass_on(line->from, line->to, w)) &&
                           (polls[2 + 2 * i].revents == 0 || pass_on(line->to, line->from, w));
            if (!goes_on && line->from >= 0) end_line(line, false);
        }
    }
}

/* --- the ranks --- */

typedef struct bad_network {
    weather *w;
    bool is_fatal;
} bad_network;

static int call_through_it(int rank, int size, void *argument) {
    const bad_network *b = argument;
    lks_group *world;
    enum { COUNT = 50000 };
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp", .timeout_ms = 10000}));
    float *in = lksi_alloc_array(COUNT, sizeof *in), *out = lksi_alloc_array(COUNT, sizeof *out);
    static const char *const algorithms[] = {"ring", "tree", "butterfly", "naive", "direct", "halving_doubling"};
    lks_status status = LKS_OK;
    int n_calls = b->is_fatal ? 100000 : 60;
    for (int call = 0; call < n_calls && status == LKS_OK; call++) {
        for (int i = 0; i < COUNT; i++) in[i] = (float)(rank + call % 5 + i % 7);
        status = lks_all_reduce(world, in, out, COUNT, LKS_F32, LKS_SUM,
                                &(lks_collective_options){.algorithm = algorithms[call % 6]});
        for (int i = 0; i < COUNT && status == LKS_OK; i += 97)
            MUST(out[i] == (float)(size * (call % 5 + i % 7) + size * (size - 1) / 2));
        if (rank == 0) atomic_store(&b->w->n_calls, call);
    }
    MUST(status == (b->is_fatal ? LKS_ERR_PEER : LKS_OK));
    if (b->is_fatal) MUST_SAY("rank ");
    lksi_free(in);
    lksi_free(out);
    lks_group_destroy(world);
    return 0;
}

static void run_through_relays(mischief first, mischief then) {
    weather *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t ranks[N_RANKS], relays[N_RANKS];
    bad_network b = {w, then == CUT || then == RESET};
    set_master_environment();
    atomic_store(&w->mischief, first);
    for (int rank = 0; rank < N_RANKS; rank++) {
        int port, listener = listen_on_loopback(&port);
        char text[64];
        relays[rank] = fork();
        if (relays[rank] == 0) relay(rank, listener, port, w);
        close(listener);
        snprintf(text, sizeof text, "127.0.0.1:%d", port), setenv("LOCKSTEP_ADVERTISE", text, 1);
        snprintf(text, sizeof text, "127.0.0.%d:%d", 2 + rank, port), setenv("LOCKSTEP_LISTEN", text, 1);
        ranks[rank] = start_process(rank, N_RANKS, call_through_it, &b);
    }
    unsetenv("LOCKSTEP_ADVERTISE"), unsetenv("LOCKSTEP_LISTEN");
    for (int i = 0; atomic_load(&w->n_calls) < 5 && i < 10000; i++) lksi_sleep_ns(1000000);
    atomic_store(&w->mischief, then);
    if (then == STALL) {
        lksi_sleep_ns(700000000);
        atomic_store(&w->mischief, NOTHING);
    }
    await_processes(ranks, N_RANKS, -1);
    for (int rank = 0; rank < N_RANKS; rank++) kill(relays[rank], SIGKILL), waitpid(relays[rank], NULL, 0);
    munmap(w, sizeof *w);
}

static void delay_changes_nothing(void **state) {
    (void)state;
    run_through_relays(DELAY, DELAY);
}

static void a_stall_is_waited_for(void **state) {
    (void)state;
    run_through_relays(NOTHING, STALL);
}

static void cut_connections_are_an_error_on_all_ranks(void **state) {
    (void)state;
    run_through_relays(NOTHING, CUT);
}

static void reset_connections_are_an_error_on_all_ranks(void **state) {
    (void)state;
    run_through_relays(NOTHING, RESET);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delay_changes_nothing),
        cmocka_unit_test(a_stall_is_waited_for),
        cmocka_unit_test(cut_connections_are_an_error_on_all_ranks),
        cmocka_unit_test(reset_connections_are_an_error_on_all_ranks),
    };
    return run_group(tests);
}
