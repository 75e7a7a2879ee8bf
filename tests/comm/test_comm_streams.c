/* comm/: messages between hosts, over streams that are not rings. Four ranks of one machine play two hosts:
 *
 *     ranks 0, 1   rings between them, seats the other way round          0 1 ══ socket pairs ══ 2 3
 *     ranks 2, 3   likewise
 */
#define _GNU_SOURCE
#include "test.h"

#include "comm/transport/segment/message.h"
#include "ranks.h"
#include "traffic.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

enum { N = 4, N_PER_HOST = 2 };

/* ends[context][from][to]: [0] is the writing end. */
typedef struct wires {
    int ends[LKSI_N_CONTEXTS][N][N][2];
} wires;

typedef struct host {
    const wires *wires;
    int seat_of[N], *true_seat_of;
    int n_sleeps[LKSI_N_CONTEXTS];
} host;

static lks_status outcome(ssize_t n, size_t *n_moved, int peer) {
    *n_moved = n > 0 ? (size_t)n : 0;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return LKS_OK;
    return lksi_error(LKS_ERR_PEER, "the stream of rank %d ended", peer);
}

static lks_status write_some(lks_group *group, lksi_context context, int to, const struct iovec *parts, int n_parts,
                             size_t *n_written) {
    const host *h = group->remote_state;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)n_parts};
    return outcome(sendmsg(h->wires->ends[context][group->rank][to][0], &message, MSG_DONTWAIT | MSG_NOSIGNAL),
                   n_written, to);
}

/* Reads odd pieces, so that headers and data are split wherever possible. */
static lks_status read_some(lks_group *group, lksi_context context, int from, void *data, size_t nbytes,
                            size_t *n_read) {
    const host *h = group->remote_state;
    size_t most = nbytes > 1000 ? nbytes / 2 + 1 : nbytes / 3 + 1;
    return outcome(recv(h->wires->ends[context][from][group->rank][1], data, most, MSG_DONTWAIT), n_read, from);
}

static void sleep_on(lks_group *group, lksi_context context, const lksi_interest *interests, int n_interests,
                     int64_t limit_ns) {
    host *h = group->remote_state;
    struct pollfd polls[2 * N];
    for (int i = 0; i < n_interests; i++) {
        int peer = interests[i].peer;
        polls[i] = interests[i].is_write ? (struct pollfd){h->wires->ends[context][group->rank][peer][0], POLLOUT, 0}
                                         : (struct pollfd){h->wires->ends[context][peer][group->rank][1], POLLIN, 0};
    }
    h->n_sleeps[context]++;
    ppoll(polls, (nfds_t)n_interests, &(struct timespec){.tv_nsec = (long)limit_ns}, NULL);
}

static const lksi_remote socket_pairs = {
    .name = "pairs", .write_some = write_some, .read_some = read_some, .sleep = sleep_on};

static int move_apart(lks_group *group, host *h, const wires *w) {
    for (int rank = 0; rank < N; rank++)
        h->seat_of[rank] = rank / N_PER_HOST == group->rank / N_PER_HOST ? rank ^ 1 : -1;
    h->wires = w;
    h->true_seat_of = group->seat_of;
    MUST_OK(lks_barrier(group, NULL)); /* from here on no message uses the old seats */
    group->seat_of = h->seat_of;
    group->seat = h->seat_of[group->rank];
    group->n_seats = N_PER_HOST;
    group->remote = &socket_pairs;
    group->remote_state = h;
    return 0;
}

static void move_together(lks_group *group, const host *h) {
    group->seat_of = h->true_seat_of;
    group->seat = group->rank;
    group->n_seats = N;
    group->remote = NULL;
}

/* Runs `function` on two hosts, as threads and as processes. */
static void run_hosts(rank_function function) {
    for (int as_processes = 0; as_processes < 2; as_processes++) {
        wires w;
        for (int i = 0; i < LKSI_N_CONTEXTS * N * N; i++)
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w.ends[i / N / N][i / N % N][i % N]),
                             0);
        as_processes ? run_processes(N, function, &w) : run_threads(N, function, &w);
        for (int i = 0; i < LKSI_N_CONTEXTS * N * N * 2; i++)
            close(w.ends[i / 2 / N / N][i / 2 / N % N][i / 2 % N][i % 2]);
    }
}

static int messages_and_collectives(int rank, int size, void *argument) {
    lks_group *world;
    host h = {0};
    int line;
    MUST_OK(lks_init(&world, NULL));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    static const lks_collective_options naive = {.algorithm = "naive"}, rounds = {.algorithm = "dissemination"};
    for (uint64_t seed = 1; seed < 4; seed++) {
        if ((line = random_traffic(world, seed)) != 0) return line;
        MUST_OK(lks_barrier(world, &rounds));
        size_t count = 100000;
        int32_t *data = lksi_alloc_array(count, sizeof *data);
        for (size_t i = 0; i < count; i++) data[i] = rank + (int32_t)i;
        MUST_OK(lks_all_reduce(world, data, data, count, LKS_I32, LKS_SUM, &naive));
        for (size_t i = 0; i < count; i++) MUST(data[i] == size * (size - 1) / 2 + size * (int32_t)i);
        lksi_free(data);
    }
    char report[1024];
    lks_group_report(world, report, sizeof report);
    MUST(strstr(report, "): reached over pairs\n") != NULL);
    MUST(strstr(report, "): completed call ") != NULL);
    MUST_OK(lks_barrier(world, &rounds));
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static void messages_and_collectives_cross_hosts(void **state) {
    (void)state;
    run_hosts(messages_and_collectives);
}

static int works_and_messages(int rank, int size, void *argument) {
    enum { LARGE = 1 << 20, N_WORKS = 6 };
    lks_group *world;
    host h = {0};
    lks_work *works[N_WORKS], *send;
    int32_t sums[N_WORKS];
    int line;
    MUST_OK(lks_init(&world, NULL));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    unsigned char *large = lksi_alloc(LARGE);
    for (int w = 0; w < N_WORKS; w++) {
        sums[w] = rank + w;
        MUST_OK(lks_all_reduce(world, &sums[w], &sums[w], 1, LKS_I32, LKS_SUM,
                               &(lks_collective_options){.algorithm = "naive", .work = &works[w]}));
    }
    if ((line = random_traffic(world, 9)) != 0) return line;
    for (int w = 0; w < N_WORKS; w++) {
        MUST_OK(lks_work_wait(works[w]));
        MUST(sums[w] == size * (size - 1) / 2 + size * w);
    }
    /* The message progresses only while its sender waits in a collective. */
    if (rank == 0) MUST_OK(lks_isend(world, large, LARGE, LKS_U8, 3, 1, &send));
    if (rank == 3) MUST_OK(lks_recv(world, large, LARGE, LKS_U8, LKS_ANY_SOURCE, 1, NULL));
    MUST_OK(lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"}));
    if (rank == 0) MUST_OK(lks_work_wait(send));
    lksi_free(large);
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static void works_and_messages_cross_hosts(void **state) {
    (void)state;
    run_hosts(works_and_messages);
}

/* A rank sees the other call in the messages that it gets. If ranks of two hosts wait for each other, their notices
 * show it. */
static int calls_differ(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    host h = {0};
    int line;
    int32_t x[5] = {0};
    static const lks_collective_options naive = {.algorithm = "naive"};
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    MUST_OK(lks_broadcast(world, x, 5, LKS_I32, 0, &naive));
    int64_t begin_ns = lksi_now_ns();
    int root = rank < N_PER_HOST ? 2 : 0; /* rank 0 waits for rank 2, which waits for rank 0 */
    MUST(lks_broadcast(world, x, 5, LKS_I32, root, &naive) == LKS_ERR_MISMATCH);
    MUST(lksi_now_ns() - begin_ns < INT64_C(10000000000));
    MUST_SAY("ranks disagree at call 3: rank ");
    MUST_SAY(" called broadcast(count 5, i32, root 2, algorithm naive), rank ");
    MUST_SAY(" called broadcast(count 5, i32, root 0, algorithm naive)");
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static int lengths_differ(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    host h = {0};
    int line;
    int32_t x[6] = {0};
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    lks_status status = lks_all_reduce(world, x, x, rank == 3 ? 6 : 5, LKS_I32, LKS_SUM,
                                       &(lks_collective_options){.algorithm = "naive"});
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("ranks disagree at call 2: rank ");
    MUST_SAY("called all_reduce(count 5, i32, sum, algorithm naive)");
    MUST_SAY("rank 3 called all_reduce(count 6, i32, sum, algorithm naive)");
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static void ranks_of_two_hosts_that_disagree_are_told_both_calls(void **state) {
    (void)state;
    run_hosts(calls_differ);
    run_hosts(lengths_differ);
}

/* A rank that is later than the time after which others ask is no mismatch, and neither is a rank that is one call
 * ahead. */
static int somebody_is_late(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    host h = {0};
    int line;
    static const lks_collective_options naive = {.algorithm = "naive"}, rounds = {.algorithm = "dissemination"};
    MUST_OK(lks_init(&world, NULL));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    for (int i = 0; i < 3; i++) {
        int32_t x = rank == i ? 7 + i : 0, sum = 1;
        if (rank == (i + 1) % N) lksi_sleep_ns(350000000);
        MUST_OK(lks_broadcast(world, &x, 1, LKS_I32, i, &naive));
        MUST(x == 7 + i);
        if (rank == i) lksi_sleep_ns(350000000); /* its receivers are in the next call by then, and ask */
        MUST_OK(lks_reduce(world, &sum, &sum, 1, LKS_I32, LKS_SUM, (i + 2) % N, &naive));
        MUST(rank != (i + 2) % N || sum == N);
    }
    MUST_OK(lks_barrier(world, &rounds));
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static void a_late_rank_is_no_disagreement(void **state) {
    (void)state;
    run_hosts(somebody_is_late);
}

static int a_stream_ends(int rank, int size, void *argument) {
    (void)size;
    const wires *w = argument;
    lks_group *world;
    host h = {0};
    int line;
    int32_t x = 0;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    MUST_OK(lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"}));
    if (rank == 3) { /* what it sent before must arrive */
        MUST_OK(lks_send(world, &(int32_t){5}, 1, LKS_I32, 0, 1));
        for (int to = 0; to < N_PER_HOST; to++) shutdown(w->ends[LKSI_CONTEXT_USER][rank][to][0], SHUT_WR);
    }
    if (rank == 1) { /* no error for rank 1, which wants nothing from rank 3 */
        MUST_OK(lks_recv(world, &x, 1, LKS_I32, 0, 1, NULL));
        MUST(x == 6);
        MUST_OK(lks_send(world, &x, 1, LKS_I32, 0, 1)); /* before rank 0 fails */
    }
    if (rank == 0) {
        lksi_sleep_ns(30000000);
        MUST_OK(lks_send(world, &(int32_t){6}, 1, LKS_I32, 1, 1));
        MUST_OK(lks_recv(world, &x, 1, LKS_I32, 1, 1, NULL));
        MUST_OK(lks_recv(world, &x, 1, LKS_I32, 3, 1, NULL));
        MUST(x == 5);
        MUST(lks_recv(world, &x, 1, LKS_I32, 3, 1, NULL) == LKS_ERR_PEER);
        MUST_SAY("the stream of rank 3 ended");
    } else {
        MUST(lks_recv(world, &x, 1, LKS_I32, 0, 1, NULL) == LKS_ERR_PEER);
    }
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

/* A receive from any source gets an error when no other rank is left. */
static int everybody_leaves(int rank, int size, void *argument) {
    (void)size;
    const wires *w = argument;
    lks_group *world;
    host h = {0};
    int line;
    int32_t x = 0;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    MUST_OK(lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"}));
    if (rank == 0) {
        MUST_OK(lks_recv(world, &x, 1, LKS_I32, LKS_ANY_SOURCE, 1, NULL));
        MUST(x == 2);
        MUST(lks_recv(world, &x, 1, LKS_I32, LKS_ANY_SOURCE, 1, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 1 (host ");
    } else {
        lksi_sleep_ns(rank * 20000000);
        if (rank == 2) MUST_OK(lks_send(world, &(int32_t){2}, 1, LKS_I32, 0, 1));
        if (rank >= N_PER_HOST) MUST(shutdown(w->ends[LKSI_CONTEXT_USER][rank][0][0], SHUT_WR) == 0);
        if (rank == 1)
            lksi_publish(world->control, &world->control->seats[world->seat].presence.value, LKSI_LEFT, world->seat);
    }
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static void the_end_of_a_stream_is_an_error(void **state) {
    (void)state;
    run_hosts(a_stream_ends);
    run_hosts(everybody_leaves);
}

/* The second half of a message is late. The receiver sleeps meanwhile. */
static int half_a_message(int rank, int size, void *argument) {
    (void)size;
    const wires *w = argument;
    lks_group *world;
    host h = {0};
    int line;
    const lksi_frame head = {.kind = LKSI_FRAME_EAGER, .nbytes = 100, .type = LKS_U8, .tag = 1};
    unsigned char message[LKSI_FRAME_SHORT_NBYTES + 100];
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    if (rank == 3) {
        int end = w->ends[LKSI_CONTEXT_USER][rank][0][0];
        size_t n_first = sizeof message - 50;
        memset(message, 9, sizeof message);
        memcpy(message, &head, LKSI_FRAME_SHORT_NBYTES);
        MUST(write(end, message, n_first) == (ssize_t)n_first);
        lksi_sleep_ns(200000000);
        MUST(write(end, message + n_first, 50) == 50);
    }
    if (rank == 0) {
        unsigned char data[100] = {0};
        MUST_OK(lks_recv(world, data, 100, LKS_U8, 3, 1, NULL));
        MUST(data[0] == 9 && data[99] == 9);
        MUST(h.n_sleeps[LKSI_CONTEXT_USER] > 0);
    }
    MUST_OK(lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"}));
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static void a_receiver_sleeps_while_half_a_message_is_there(void **state) {
    (void)state;
    run_hosts(half_a_message);
}

/* --- frames that no rank of this library would send --- */

static int nonsense_arrives(int rank, int size, void *argument) {
    (void)size;
    const wires *w = argument;
    lks_group *world;
    host h = {0};
    int line;
    int32_t x = 0;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    /* Ranks 0 and 3 may continue while the others are still in the barrier. */
    lks_status status = lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"});
    MUST((rank != 0 && rank != 3) || status == LKS_OK);
    if (rank == 3) {
        unsigned char noise[64];
        memset(noise, 0xff, sizeof noise);
        MUST(write(w->ends[LKSI_CONTEXT_USER][rank][0][0], noise, sizeof noise) == sizeof noise);
    }
    if (status == LKS_OK) status = lks_recv(world, &x, 1, LKS_I32, rank == 0 ? 3 : 0, 1, NULL);
    MUST(status == (rank == 0 ? LKS_ERR_FORMAT : LKS_ERR_PEER));
    MUST_SAY("rank 0 got an invalid frame from rank 3");
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

/* The first half has been stored when a receive comes that does not match. */
static int half_a_message_does_not_fit(int rank, int size, void *argument) {
    (void)size;
    const wires *w = argument;
    lks_group *world;
    host h = {0};
    int line;
    const lksi_frame head = {.kind = LKSI_FRAME_EAGER, .nbytes = 100, .type = LKS_U8, .tag = 1};
    unsigned char half[LKSI_FRAME_SHORT_NBYTES + 50] = {0};
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    MUST_OK(lksi_messages_open(world));
    memcpy(half, &head, LKSI_FRAME_SHORT_NBYTES);
    if (rank == 3) MUST(write(w->ends[LKSI_CONTEXT_USER][rank][0][0], half, sizeof half) == sizeof half);
    /* Rank 0 leaves the barrier and finds the mismatch while the others may still be in it. */
    lks_status status = lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"});
    MUST(rank != 0 || status == LKS_OK);
    float x = 0;
    if (rank == 0) lksi_messages_progress(world);
    if (status == LKS_OK) status = lks_recv(world, &x, 1, LKS_F32, rank == 0 ? 3 : 0, 1, NULL);
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("rank 3 sent 100 u8 with tag 1, rank 0 receives up to 1 f32");
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static lksi_frame_kind second_answer;

/* The data of an announced message may be permitted, or reported as fetched, once. */
static int an_answer_comes_twice(int rank, int size, void *argument) {
    (void)size;
    enum { NBYTES = 8 << 20 };
    static unsigned char data[NBYTES];
    char nonsense[96];
    const wires *w = argument;
    lks_group *world;
    host h = {0};
    int line;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    if ((line = move_apart(world, &h, argument)) != 0) return line;
    MUST_OK(lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"}));
    if (rank == 3) {
        const lksi_frame twice[2] = {{.kind = LKSI_FRAME_PERMITTED, .id = 1},
                                     {.kind = (uint8_t)second_answer, .id = 1}};
        lksi_sleep_ns(30000000); /* the announcement has been sent by then */
        MUST(write(w->ends[LKSI_CONTEXT_USER][rank][0][0], twice, sizeof twice) == sizeof twice);
    }
    lks_status status = rank == 0 ? lks_send(world, data, NBYTES, LKS_U8, 3, 1)
                                  : lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"});
    MUST(status == (rank == 0 ? LKS_ERR_FORMAT : LKS_ERR_PEER));
    snprintf(nonsense, sizeof nonsense, "rank 0 got an invalid frame from rank 3: kind %d, id 1", second_answer);
    MUST_SAY(nonsense);
    move_together(world, &h);
    lks_group_destroy(world);
    return 0;
}

static void a_frame_that_makes_no_sense_is_an_error(void **state) {
    (void)state;
    run_hosts(nonsense_arrives);
    run_hosts(half_a_message_does_not_fit);
    second_answer = LKSI_FRAME_PERMITTED;
    run_hosts(an_answer_comes_twice);
    second_answer = LKSI_FRAME_FETCHED;
    run_hosts(an_answer_comes_twice);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_and_collectives_cross_hosts),
        cmocka_unit_test(works_and_messages_cross_hosts),
        cmocka_unit_test(ranks_of_two_hosts_that_disagree_are_told_both_calls),
        cmocka_unit_test(a_late_rank_is_no_disagreement),
        cmocka_unit_test(the_end_of_a_stream_is_an_error),
        cmocka_unit_test(a_receiver_sleeps_while_half_a_message_is_there),
        cmocka_unit_test(a_frame_that_makes_no_sense_is_an_error),
    };
    return run_group(tests);
}
