/* comm/: sends and receives, how they match, and which arguments are refused. */
#include "test.h"

#include "comm/transport/segment/message.h"
#include "ranks.h"
#include "refuse.h"
#include "traffic.h"

#include <sys/mman.h>

/* Joins the world with a long deadline and waits for all ranks. From then on this rank's deadline is `timeout_ms`. */
static lks_status init_for(lks_group **world, const char *transport, int64_t timeout_ms) {
    LKS_TRY(lks_init(world, &(lks_init_options){.transport = transport, .timeout_ms = 20000}));
    LKS_TRY(lks_barrier(*world, NULL));
    (*world)->timeout_ms = timeout_ms;
    return LKS_OK;
}

static void await_abort(const lks_group *world) {
    while (!lksi_control_is_aborted(world->control)) lksi_sleep_ns(1000000);
}

/* Longer than several rings: the message streams through in pieces. */
enum { LONG_COUNT = 300007 };

static int messages_arrive(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    int32_t *data = lksi_alloc_array(LONG_COUNT, sizeof *data);
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    static const size_t counts[] = {0, 1, 3, 1000, 65536, LONG_COUNT};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        size_t count = counts[c];
        lks_received received = {0};
        for (int turn = 0; turn < 2; turn++) { /* even ranks send first */
            if ((rank + turn) % 2 == 0 && (size % 2 == 0 || rank != size - 1 || turn == 0)) {
                for (size_t i = 0; i < count; i++) data[i] = rank * 1000003 + (int32_t)i;
                MUST_OK(lks_send(world, data, count, LKS_I32, to, (int)c));
            } else {
                MUST_OK(lks_recv(world, data, LONG_COUNT, LKS_I32, from, (int)c, &received));
                MUST(received.count == count);
                for (size_t i = 0; i < count; i++) MUST(data[i] == from * 1000003 + (int32_t)i);
            }
        }
    }
    lksi_free(data);
    MUST_OK(lks_barrier(world, NULL));
    lks_group_destroy(world);
    return 0;
}

/* A rank cannot read the memory of the others, so large messages go through the ring. */
static int messages_arrive_unread(int rank, int size, void *argument) {
    if (rank == size - 1) MUST(refuse_reading() == 0);
    return messages_arrive(rank, size, argument);
}

/* The sender gives up and overwrites its buffer. The receiver must not take the new content for the message. */
static int sender_gives_up(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { NBYTES = 1 << 20 };
    lks_group *world;
    unsigned char *data = lksi_alloc(NBYTES);
    MUST(data != NULL);
    MUST_OK(init_for(&world, NULL, rank == 0 ? 300 : 20000));
    if (rank == 0) {
        memset(data, 1, NBYTES);
        MUST(lks_send(world, data, NBYTES, LKS_U8, 1, 1) == LKS_ERR_TIMEOUT);
        memset(data, 2, NBYTES);
        lksi_sleep_ns(700000000);
    } else {
        await_abort(world);
        MUST(lks_recv(world, data, NBYTES, LKS_U8, 0, 1, NULL) != LKS_OK);
    }
    lks_group_destroy(world);
    lksi_free(data);
    return 0;
}

static void a_message_whose_sender_gave_up_is_not_received(void **state) {
    (void)state;
    run_threads(2, sender_gives_up, NULL);
    run_processes(2, sender_gives_up, NULL);
}

static void messages_of_any_length_arrive(void **state) {
    (void)state;
    run_threads(2, messages_arrive, NULL);
    run_threads(4, messages_arrive, NULL);
    run_processes(2, messages_arrive, NULL);
    run_processes(2, messages_arrive_unread, NULL);
    run_processes(4, messages_arrive_unread, NULL);
}

/* There are enough rounds to try both ways. After that each way is declared the better one in turn. Two more messages
 * are in progress meanwhile, and a buffer is rewritten as soon as its send is done. */
static int large_messages_go_either_way(int rank, int size, void *argument) {
    (void)argument;
    enum { N_ROUNDS = 60, N_TRIED = 40, N_AT_ONCE = 3, MOST = 90001 };
    static const size_t counts[N_AT_ONCE] = {4097, MOST, 5001};
    static int32_t sent[2][N_AT_ONCE][MOST], received[2][N_AT_ONCE][MOST];
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    int other = size - 1 - rank, n_streamed = 0;
    for (int round = 0; round < N_ROUNDS; round++) {
        lks_work *sends[2], *receives[2];
        for (int k = 0; k < N_AT_ONCE; k++)
            for (size_t i = 0; i < counts[k]; i++)
                sent[rank][k][i] = (rank * N_ROUNDS + round) * N_AT_ONCE + k + (int32_t)i;
        for (int k = 0; k < 2; k++) {
            MUST_OK(lks_irecv(world, received[rank][k], counts[k], LKS_I32, other, k, NULL, &receives[k]));
            MUST_OK(lks_isend(world, sent[rank][k], counts[k], LKS_I32, other, k, &sends[k]));
        }
        lksi_call_trial *trial = &world->messages->fetches[0][0];
        if (round >= N_TRIED) trial->turn.is_second_better = round % 4 < 2;
        int32_t *data = sent[rank][2], *room = received[rank][2];
        if (round % 3 == 0) {
            MUST_OK(lks_sendrecv(world, data, counts[2], other, 2, room, counts[2], other, 2, LKS_I32, NULL));
        } else {
            for (int turn = 0; turn < 2; turn++)
                if (turn == rank)
                    MUST_OK(lks_send(world, data, counts[2], LKS_I32, other, 2));
                else
                    MUST_OK(lks_recv(world, room, counts[2], LKS_I32, other, 2, NULL));
        }
        n_streamed += trial->turn.is_second;
        for (int k = 0; k < 2; k++) {
            MUST_OK(lks_work_wait(receives[k]));
            MUST_OK(lks_work_wait(sends[k]));
        }
        for (int k = 0; k < N_AT_ONCE; k++)
            for (size_t i = 0; i < counts[k]; i++)
                MUST(received[rank][k][i] == (other * N_ROUNDS + round) * N_AT_ONCE + k + (int32_t)i);
    }
    MUST(!world->may_spin || n_streamed >= 10);
    lks_group_destroy(world);
    return 0;
}

static void large_messages_are_read_or_streamed(void **state) {
    (void)state;
    run_threads(2, large_messages_go_either_way, NULL);
    run_processes(2, large_messages_go_either_way, NULL);
}

/* After its receiver has asked for it, a message needs no further calls of its sender, or of the receiver on that
 * group. */
static int others_go_on_meanwhile(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { N_ROUNDS = 60, COUNT = 16384 };
    static int32_t data[2][COUNT];
    lks_group *world, *part;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 10000}));
    MUST_OK(lks_group_split(world, 0, rank, &part));
    for (int round = 0; round < N_ROUNDS; round++) {
        lks_group *group = round % 2 == 0 ? world : part, *other = group == world ? part : world;
        lks_work *work;
        if (rank == 0) {
            for (int i = 0; i < COUNT; i++) data[0][i] = round + i;
            MUST_OK(lks_isend(group, data[0], COUNT, LKS_I32, 1, 0, &work));
        } else {
            MUST_OK(lks_recv(group, data[1], COUNT, LKS_I32, 0, 0, NULL));
            for (int i = 0; i < COUNT; i++) MUST(data[1][i] == round + i);
        }
        MUST_OK(lks_barrier(other, NULL));
        if (rank == 0) MUST_OK(lks_work_wait(work));
    }
    lks_group_destroy(part);
    lks_group_destroy(world);
    return 0;
}

static void a_message_does_not_wait_for_its_senders_next_call(void **state) {
    (void)state;
    run_threads(2, others_go_on_meanwhile, NULL);
    run_processes(2, others_go_on_meanwhile, NULL);
}

static int tags_out_of_order(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { N_TAGS = 40 };
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    for (int round = 0; round < 3; round++) {
        if (rank == 0)
            for (int tag = 0; tag < N_TAGS; tag++)
                for (double x = 0; x < 2; x++) MUST_OK(lks_send(world, (double[]){tag, x, round}, 3, LKS_F64, 1, tag));
        for (int tag = N_TAGS - 1; tag >= 0 && rank == 1; tag--)
            for (double x = 0; x < 2; x++) {
                double heard[4];
                lks_received received;
                MUST_OK(lks_recv(world, heard, 4, LKS_F64, 0, tag, &received));
                MUST(received.count == 3 && heard[0] == tag && heard[1] == x && heard[2] == round);
            }
        float sum = 1;
        MUST_OK(
            lks_all_reduce(world, &sum, &sum, 1, LKS_F32, LKS_SUM, &(lks_collective_options){.algorithm = "naive"}));
        MUST(sum == 2); /* collectives overtake waiting messages */
    }
    lks_group_destroy(world);
    return 0;
}

static void tags_are_matched_out_of_order(void **state) {
    (void)state;
    run_threads(2, tags_out_of_order, NULL);
    run_processes(2, tags_out_of_order, NULL);
}

/* The messages take more than a quarter of the credit. They are received in reverse order after the sender has left. */
static int outlives_its_sender(int rank, int size, void *argument) {
    (void)argument;
    enum { N_TAGS = 40, NBYTES = 10000 };
    lks_group *world;
    unsigned char bytes[NBYTES] = {0};
    MUST_OK(lks_init(&world, NULL));
    for (int tag = 0; tag < N_TAGS && rank == 0; tag++) {
        memset(bytes, tag, sizeof bytes);
        MUST_OK(lks_send(world, bytes, NBYTES, LKS_U8, size - 1, tag));
    }
    if (rank == size - 1) lksi_sleep_ns(INT64_C(300) * 1000 * 1000);
    for (int tag = N_TAGS; tag-- > 0 && rank == size - 1;) {
        MUST_OK(lks_recv(world, bytes, NBYTES, LKS_U8, 0, tag, NULL));
        MUST(bytes[0] == tag && bytes[NBYTES - 1] == tag);
    }
    lks_group_destroy(world);
    return 0;
}

static void messages_outlive_their_sender(void **state) {
    (void)state;
    run_threads(2, outlives_its_sender, NULL);
    run_processes(2, outlives_its_sender, NULL);
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
    run_processes(2, outlives_its_sender, NULL);
    run_processes(3, outlives_its_sender, NULL);
    unsetenv("LOCKSTEP_TRANSPORT");
}

static int unreceived(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_send(world, "abc", 3, LKS_U8, rank, 7)); /* to itself */
    MUST_OK(lks_send(world, "def", 3, LKS_U8, 1 - rank, 8));
    MUST_OK(lks_send(world, "ghi", 3, LKS_U8, 1 - rank, 9));
    char heard[3];
    MUST_OK(lks_recv(world, heard, 3, LKS_U8, rank, 7, NULL));
    MUST(memcmp(heard, "abc", 3) == 0);
    MUST_OK(lks_recv(world, heard, 3, LKS_U8, 1 - rank, 9, NULL));
    MUST(memcmp(heard, "ghi", 3) == 0);
    lks_group_destroy(world); /* message 8 was kept, but never received */
    return 0;
}

static void messages_never_received_are_given_back(void **state) {
    (void)state;
    run_threads(2, unreceived, NULL);
    run_processes(2, unreceived, NULL);
}

/* The source is this rank, or LKS_ANY_SOURCE in a group of one. The error comes at once, not at the deadline. */
static int waits_for_itself(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    char heard[3], expected[128];
    int64_t began_ns = lksi_now_ns();
    MUST_OK(lks_init(&world, NULL));
    lks_status status = lks_recv(world, heard, 3, LKS_U8, size == 1 ? LKS_ANY_SOURCE : rank, 7, NULL);
    MUST(status == LKS_ERR_STATE || (size > 1 && status == LKS_ERR_PEER)); /* PEER: the other rank failed first */
    snprintf(expected, sizeof expected, "recv, tag 7: rank %d waits for itself", rank);
    MUST(strstr(lks_error_text(), expected) != NULL || status == LKS_ERR_PEER);
    MUST((strstr(lks_error_text(), "started by a launcher?") != NULL) == (size == 1));
    MUST(lksi_now_ns() - began_ns < INT64_C(20) * 1000 * 1000 * 1000);
    lks_group_destroy(world);
    return 0;
}

static void who_waits_for_itself_is_told_at_once(void **state) {
    (void)state;
    run_processes(1, waits_for_itself, NULL);
    run_threads(2, waits_for_itself, NULL);
    run_processes(2, waits_for_itself, NULL);
}

static int receives_something_else(int rank, int size, void *argument) {
    (void)size;
    bool is_longer = *(bool *)argument;
    lks_group *world;
    float data[5] = {0};
    MUST_OK(lks_init(&world, NULL));
    if (rank == 0) {
        MUST_OK(lks_send(world, data, 5, LKS_F32, 1, 3));
        MUST(lks_barrier(world, NULL) == LKS_ERR_MISMATCH);
    } else {
        MUST(lks_recv(world, data, 4, is_longer ? LKS_F32 : LKS_I32, 0, 3, NULL) == LKS_ERR_MISMATCH);
    }
    MUST_SAY("rank 0 sent 5 f32 with tag 3, rank 1 receives up to 4");
    lks_group_destroy(world);
    return 0;
}

static void a_receive_of_another_type_or_less_room_is_a_mismatch(void **state) {
    (void)state;
    for (int is_longer = 0; is_longer < 2; is_longer++) {
        run_threads(2, receives_something_else, &(bool){is_longer});
        run_processes(2, receives_something_else, &(bool){is_longer});
    }
}

/* `argument`: a transport, over which another message is sent, or NULL. */
static int never_sent(int rank, int size, void *argument) {
    (void)size;
    lks_group *world;
    float x = 0;
    MUST_OK(init_for(&world, argument, rank == 1 ? 200 : 20000));
    if (rank == 0 && argument != NULL) MUST_OK(lks_send(world, &x, 1, LKS_F32, 1, 4));
    if (rank == 1) {
        MUST(lks_recv(world, &x, 1, LKS_F32, 0, 3, NULL) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 1 waited 200 ms for rank 0 (host");
        MUST_SAY("; recv, tag 3, call 1, 0 bytes done");
        bool is_told =
            strstr(lks_error_text(), "; a message from rank 0 with tag 4 has arrived without a matching receive");
        MUST(is_told == (argument != NULL));
    } else {
        await_abort(world);
        MUST(lks_barrier(world, NULL) == LKS_ERR_TIMEOUT);
    }
    lks_group_destroy(world);
    return 0;
}

static void a_message_that_is_never_sent_ends_at_the_deadline(void **state) {
    (void)state;
    run_threads(2, never_sent, NULL);
    run_processes(2, never_sent, NULL);
    run_threads(2, never_sent, "thread");
    run_processes(2, never_sent, "shm");
    run_processes(2, never_sent, "tcp");
}

/* Rank 2 sends until rank 0 has given up waiting for rank 1. When the buffer is full, further messages are only
 * announced, and their sends do not finish. So rank 2 uses isend and waits for none. */
static int others_send_for_ever(int rank, int size, void *argument) {
    (void)size;
    enum { SAFETY_MS = 4000, PAUSE_NS = 50000, MOST_SENDS = SAFETY_MS * (1000000 / PAUSE_NS) };
    atomic_bool *has_ended = argument;
    lks_group *world;
    int32_t x = 0;
    MUST_OK(init_for(&world, NULL, rank == 0 ? 300 : 2 * SAFETY_MS));
    if (rank == 0) {
        MUST(lks_recv(world, &x, 1, LKS_I32, 1, 9, NULL) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 0 waited 300 ms for rank 1");
        MUST(!*has_ended); /* rank 2 has not stopped before */
        *has_ended = true;
    }
    lks_work **works = lksi_alloc_array(MOST_SENDS, sizeof *works);
    int n = 0;
    for (int64_t next_ns = lksi_now_ns(); rank == 2 && n < MOST_SENDS && !*has_ended; next_ns += PAUSE_NS) {
        if (lks_isend(world, &x, 1, LKS_I32, 0, 1, &works[n]) == LKS_OK) n++;
        while (lksi_now_ns() < next_ns) continue;
    }
    if (rank == 2) *has_ended = true;
    while (rank == 1 && !*has_ended) lksi_sleep_ns(1000000);
    for (int i = 0; i < n; i++) (void)lks_work_wait(works[i]);
    lksi_free(works);
    lks_group_destroy(world);
    return 0;
}

static void a_deadline_counts_beside_the_messages_of_others(void **state) {
    (void)state;
    atomic_bool *has_ended = mmap(NULL, sizeof *has_ended, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run_threads(3, others_send_for_ever, has_ended);
    *has_ended = false;
    run_processes(3, others_send_for_ever, has_ended);
    munmap(has_ended, sizeof *has_ended);
}

/* --- any length, any order --- */

enum { ORDINARY, SYMMETRIC, SYMMETRIC_ON_0 }; /* SYMMETRIC_ON_0: rank 1 has freed its copy */

static int lengths_arrive(int rank, int size, void *argument) {
    (void)size;
    int memory = *(const int *)argument;
    enum { MOST = (IS_SLOW_BUILD ? 3 : 33) << 20 };
    static const size_t lengths[] = {0, 1, 2047, 2048, 2049, 16383, 16384, 16385, 65536, 1 << 20, (1 << 20) + 1, MOST};
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    unsigned char *data = NULL, *own = lksi_alloc(MOST);
    if (memory != ORDINARY) MUST_OK(lks_symmetric_alloc(world, MOST, (void **)&data));
    if (memory == SYMMETRIC_ON_0 && rank == 1) lks_symmetric_free(world, data);
    if (memory == ORDINARY || (memory == SYMMETRIC_ON_0 && rank == 1)) data = own;
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        size_t n = lengths[l];
        lks_received received;
        if (rank == 0)
            for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(i * 13 + (i >> 9) + l);
        if (rank == 0) MUST_OK(lks_send(world, data, n, LKS_U8, 1, 4));
        if (rank == 1) {
            MUST_OK(lks_recv(world, data, MOST, LKS_U8, 0, 4, &received));
            MUST(received.count == n && received.from == 0 && received.tag == 4);
            for (size_t i = 0; i < n; i++) MUST(data[i] == (unsigned char)(i * 13 + (i >> 9) + l));
        }
        size_t half = n < MOST / 2 ? n : MOST / 2;
        MUST_OK(
            lks_sendrecv(world, data, half, 1 - rank, 5, data + MOST / 2, MOST / 2, 1 - rank, 5, LKS_U8, &received));
        MUST(received.count == half && memcmp(data, data + MOST / 2, half) == 0);
    }
    lksi_free(own);
    lks_group_destroy(world);
    return 0;
}

static void every_length_around_the_eager_limit_arrives(void **state) {
    (void)state;
    for (int memory = ORDINARY; memory <= SYMMETRIC_ON_0; memory++) {
        run_threads(2, lengths_arrive, &memory);
        run_processes(2, lengths_arrive, &memory);
    }
}

/* A large message stays at its sender until a receive asks for it. */
static int large_waits_at_its_sender(int rank, int size, void *argument) {
    (void)size;
    enum { LARGE = 20 << 20 };
    lks_group *world;
    lks_work *work;
    int32_t small = 0;
    MUST_OK(lks_init(&world, NULL));
    unsigned char *large = lksi_alloc(LARGE);
    if (rank == 0) {
        memset(large, 7, LARGE);
        MUST_OK(lks_isend(world, large, LARGE, LKS_U8, 1, 1, &work));
        MUST_OK(lks_send(world, &(int32_t){42}, 1, LKS_I32, 1, 2));
        MUST_OK(lks_work_wait(work));
    } else {
        int64_t before = lks_memory_nbytes();
        MUST_OK(lks_recv(world, &small, 1, LKS_I32, 0, 2, NULL));
        MUST(small == 42);
        if (*(bool *)argument) MUST(lks_memory_nbytes() - before < 100000); /* the counter is per process */
        MUST_OK(lks_recv(world, large, LARGE, LKS_U8, 0, 1, NULL));
        MUST(large[0] == 7 && large[LARGE - 1] == 7);
    }
    lksi_free(large);
    lks_group_destroy(world);
    return 0;
}

static void a_large_message_waits_at_its_sender(void **state) {
    (void)state;
    run_threads(2, large_waits_at_its_sender, &(bool){false});
    run_processes(2, large_waits_at_its_sender, &(bool){true});
}

static int any_source(int rank, int size, void *argument) {
    (void)argument;
    enum { N = 50, MOST = 6000 };
    lks_group *world;
    int32_t data[MOST];
    int n_of[MAX_TEST_RANKS] = {0};
    MUST_OK(lks_init(&world, NULL));
    for (int i = 0; i < N && rank > 0; i++) { /* eager and announced messages alternate */
        size_t count = i % 3 == 0 ? MOST : 1;
        data[0] = i, data[count - 1] = i;
        MUST_OK(lks_send(world, data, count, LKS_I32, 0, 6));
    }
    for (int i = 0; i < N * (size - 1) && rank == 0; i++) {
        lks_received received;
        MUST_OK(lks_recv(world, data, MOST, LKS_I32, LKS_ANY_SOURCE, 6, &received));
        int expected = n_of[received.from]++;
        MUST(received.tag == 6 && received.count == (expected % 3 == 0 ? MOST : 1));
        MUST(data[0] == expected && data[received.count - 1] == expected);
    }
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) {
        lks_group_destroy(world);
        return 0;
    }
    if (rank > 1) lksi_sleep_ns(50000000);
    if (rank == 0) { /* while another rank may still send, the ranks that left do not matter */
        lksi_sleep_ns(20000000);
        MUST_OK(lks_recv(world, data, 1, LKS_I32, LKS_ANY_SOURCE, 7, NULL));
        MUST(data[0] == 2);
        MUST(lks_recv(world, data, 1, LKS_I32, LKS_ANY_SOURCE, 7, NULL) == LKS_ERR_PEER);
        MUST_SAY("has left the group and is waited for");
    }
    if (rank == 2) MUST_OK(lks_send(world, &(int32_t){2}, 1, LKS_I32, 0, 7));
    lks_group_destroy(world);
    return 0;
}

/* Rank 2 has left before rank 1 receives its messages, which take more than a quarter of the credit. Rank 0, which
 * would report that, has left before rank 2. */
static int any_source_after_all_have_left(int rank, int size, void *transport) {
    enum { N = 20, NBYTES = 16384, PAUSE_NS = 200 * 1000 * 1000 };
    unsigned char data[NBYTES] = {0};
    lks_group *world;
    MUST_OK(init_for(&world, transport, 5000));
    if (rank == 2) lksi_sleep_ns(PAUSE_NS);
    for (int i = 0; i < N && rank == 2; i++) MUST_OK(lks_send(world, data, NBYTES, LKS_U8, 1, i));
    if (rank == 1 || rank > 2) lksi_sleep_ns(3 * (int64_t)PAUSE_NS);
    for (int i = 0; i < N && rank == 1; i++) MUST_OK(lks_recv(world, data, NBYTES, LKS_U8, LKS_ANY_SOURCE, i, NULL));
    if (rank == 1) MUST_OK(lks_send(world, data, 1, LKS_U8, size - 1, 0));
    if (rank == size - 1) MUST_OK(lks_recv(world, data, 1, LKS_U8, 1, 0, NULL));
    lks_group_destroy(world);
    return 0;
}

static void any_source_takes_what_those_sent_who_have_left(void **state) {
    (void)state;
    run_threads(4, any_source_after_all_have_left, "thread");
    run_processes(4, any_source_after_all_have_left, "shm");
    run_processes(4, any_source_after_all_have_left, "tcp");
}

static void any_source_takes_what_comes_first(void **state) {
    (void)state;
    run_threads(4, any_source, NULL);
    run_processes(4, any_source, NULL);
}

static int traffic(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    for (uint64_t seed = 1; seed < 6; seed++) {
        int line = random_traffic(world, seed);
        if (line != 0) return line;
    }
    lks_group_destroy(world);
    return 0;
}

static void many_messages_in_any_order_arrive(void **state) {
    (void)state;
    run_threads(1, traffic, NULL);
    run_threads(4, traffic, NULL);
    run_processes(4, traffic, NULL);
    run_processes(7, traffic, NULL);
}

static int to_oneself(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { LARGE = 3 << 20 };
    lks_group *world;
    lks_work *send, *receive;
    lks_received received;
    MUST_OK(lks_init(&world, NULL));
    unsigned char *out = lksi_alloc(LARGE), *in = lksi_alloc(LARGE);
    memset(out, 5, LARGE);
    MUST_OK(lks_send(world, out, LARGE, LKS_U8, rank, 1)); /* copied */
    memset(out, 6, LARGE);
    MUST_OK(lks_isend(world, out, LARGE, LKS_U8, rank, 1, &send)); /* not copied */
    MUST_OK(lks_recv(world, in, LARGE, LKS_U8, rank, 1, NULL));
    MUST(in[0] == 5 && in[LARGE - 1] == 5);
    MUST_OK(lks_recv(world, in, LARGE, LKS_U8, LKS_ANY_SOURCE, 1, &received));
    MUST(in[0] == 6 && in[LARGE - 1] == 6 && received.from == rank && received.count == LARGE);
    MUST_OK(lks_work_wait(send));
    memset(out, 7, LARGE);
    MUST_OK(lks_irecv(world, in, LARGE, LKS_U8, rank, 1, &received, &receive));
    MUST_OK(lks_isend(world, out, LARGE, LKS_U8, rank, 1, &send));
    MUST_OK(lks_work_wait(send));
    MUST_OK(lks_work_wait(receive));
    MUST(in[0] == 7 && in[LARGE - 1] == 7 && received.count == LARGE);
    MUST_OK(lks_sendrecv(world, out, 5, rank, 2, in, 9, rank, 2, LKS_U8, &received));
    MUST(received.count == 5);
    lks_status status = LKS_OK;
    for (int i = 0; i < 30 && status == LKS_OK; i++) status = lks_send(world, out, LARGE, LKS_U8, rank, 1);
    MUST(status == LKS_ERR_MEMORY);
    MUST_SAY("holds over 64 MiB of messages");
    lksi_free(in);
    lksi_free(out);
    lks_group_destroy(world);
    return 0;
}

static void messages_to_oneself_arrive_and_are_bounded(void **state) {
    (void)state;
    run_threads(1, to_oneself, NULL);
    run_processes(1, to_oneself, NULL);
}

/* --- moving on while waiting for something else --- */

static int moves_on_in_a_barrier(int rank, int size, void *argument) {
    (void)size;
    enum { LARGE = 2 << 20 };
    const lks_collective_options options = {.algorithm = argument};
    lks_group *world;
    lks_work *work;
    MUST_OK(lks_init(&world, NULL));
    unsigned char *data = lksi_alloc(LARGE);
    if (rank == 0) {
        memset(data, 3, LARGE);
        MUST_OK(lks_isend(world, data, LARGE, LKS_U8, 1, 1, &work));
        MUST_OK(lks_barrier(world, &options));
        MUST_OK(lks_work_wait(work));
    } else if (rank == 1) {
        MUST_OK(lks_recv(world, data, LARGE, LKS_U8, 0, 1, NULL));
        MUST(data[0] == 3 && data[LARGE - 1] == 3);
        MUST_OK(lks_barrier(world, &options));
    } else {
        MUST_OK(lks_barrier(world, &options));
    }
    lksi_free(data);
    lks_group_destroy(world);
    return 0;
}

static void messages_move_on_inside_a_barrier(void **state) {
    (void)state;
    run_threads(3, moves_on_in_a_barrier, "direct");
    run_threads(3, moves_on_in_a_barrier, "dissemination");
    run_processes(2, moves_on_in_a_barrier, "direct");
}

/* A circle of receives: each can be answered only by a rank that waits in another receive. */
static int answers_for_others(int rank, int size, void *argument) {
    (void)argument;
    enum { LARGE = 100000 };
    lks_group *world;
    lks_work *works[MAX_TEST_RANKS];
    int32_t token = 0;
    MUST_OK(lks_init(&world, NULL));
    unsigned char *out = lksi_alloc(LARGE), *in = lksi_alloc(LARGE);
    for (int to = 0; to < size; to++) MUST_OK(lks_isend(world, out, LARGE, LKS_U8, to, 1, &works[to]));
    for (int turn = 0; turn < size; turn++) { /* one rank at a time receives, and the others wait for it */
        if (turn == rank)
            for (int from = size - 1; from >= 0; from--) MUST_OK(lks_recv(world, in, LARGE, LKS_U8, from, 1, NULL));
        for (int to = 0; to < size && turn == rank; to++)
            if (to != rank) MUST_OK(lks_send(world, &turn, 1, LKS_I32, to, 2));
        if (turn != rank) MUST_OK(lks_recv(world, &token, 1, LKS_I32, turn, 2, NULL));
    }
    for (int to = 0; to < size; to++) MUST_OK(lks_work_wait(works[to]));
    lksi_free(in);
    lksi_free(out);
    lks_group_destroy(world);
    return 0;
}

static void who_waits_for_one_message_answers_for_the_others(void **state) {
    (void)state;
    run_threads(4, answers_for_others, NULL);
    run_processes(3, answers_for_others, NULL);
}

static int unheard_sender_is_bounded(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { N = 400, NBYTES = 16 * 1024 };
    lks_group *world;
    lks_work *works[N], *last;
    static unsigned char data[NBYTES];
    MUST_OK(lks_init(&world, NULL));
    if (rank == 0) {
        for (int i = 0; i < N; i++) MUST_OK(lks_isend(world, data, NBYTES, LKS_U8, 1, 1, &works[i]));
        MUST_OK(lks_barrier(world, NULL));
        MUST_OK(lks_send(world, data, 1, LKS_U8, 1, 2));
        for (int i = 0; i < N; i++) MUST_OK(lks_work_wait(works[i]));
    } else {
        int64_t before = lks_memory_nbytes();
        MUST_OK(lks_irecv(world, data, 1, LKS_U8, 0, 2, NULL, &last));
        MUST_OK(lks_barrier(world, NULL));
        MUST_OK(lks_work_wait(last)); /* it arrives after all the others */
        int64_t kept = lks_memory_nbytes() - before;
        MUST(kept > 500000 && kept < 1300000);
        for (int i = 0; i < N; i++) MUST_OK(lks_recv(world, data, NBYTES, LKS_U8, 0, 1, NULL));
        MUST(lks_memory_nbytes() - before < 100000);
    }
    lks_group_destroy(world);
    return 0;
}

static int blocked_sender(int rank, int size, void *argument) {
    (void)size, (void)argument;
    static unsigned char data[1000];
    lks_group *world;
    lks_status status = LKS_OK;
    MUST_OK(init_for(&world, NULL, rank == 0 ? 300 : 20000));
    for (int i = 0; rank == 0 && status == LKS_OK; i++) {
        MUST(i < 2000);
        status = lks_send(world, data, sizeof data, LKS_U8, 1, 1);
    }
    if (rank == 0) {
        MUST(status == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 0 waited 300 ms for rank 1 (host ");
        MUST_SAY("; send, tag 1, call ");
    } else {
        await_abort(world);
        MUST(lks_barrier(world, NULL) == LKS_ERR_TIMEOUT);
    }
    lks_group_destroy(world);
    return 0;
}

/* After N_BEFORE messages, a quarter of the ring less a line is not returned to the sender yet. N messages must fit all
 * the same. */
static int sender_of_many_small_ones(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { N_BEFORE = 255, N = 760, NBYTES = 32 };
    unsigned char data[NBYTES] = {0};
    lks_group *world;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    for (int i = 0; i < N_BEFORE && rank == 0; i++) MUST_OK(lks_send(world, data, NBYTES, LKS_U8, 1, 0));
    for (int i = 0; i < N_BEFORE && rank == 1; i++) MUST_OK(lks_recv(world, data, NBYTES, LKS_U8, 0, 0, NULL));
    MUST_OK(lks_barrier(world, NULL));
    for (int i = 0; i < N && rank == 0; i++) MUST_OK(lks_send(world, data, NBYTES, LKS_U8, 1, 0));
    MUST_OK(lks_barrier(world, NULL));
    for (int i = 0; i < N && rank == 1; i++) MUST_OK(lks_recv(world, data, NBYTES, LKS_U8, 0, 0, NULL));
    lks_group_destroy(world);
    return 0;
}

static void there_is_room_for_what_nobody_has_taken(void **state) {
    (void)state;
    run_threads(5, sender_of_many_small_ones, NULL);
}

/* When the sender gives up a message, the buffer belongs to its caller again. A rank that reads the buffer must be able
 * to see before then that the sender has left. */
typedef struct given_up {
    const lksi_transfer *transfer;
    const _Atomic uint64_t *presence;
    uint64_t seen;
} given_up;

static void look_when_it_is_done(void *opaque) {
    given_up *g = opaque;
    while (!lksi_transfer_is_done(g->transfer)) lksi_relax();
    g->seen = atomic_load(g->presence);
}

static int leaves_with_a_message_under_way(int rank, int size, void *argument) {
    (void)size, (void)argument;
    enum { NBYTES = 1 << 20, ALLOCATED_NBYTES = 8 << 20 };
    static unsigned char data[NBYTES];
    void *memory; /* widens the window: rank 0 needs a moment to free it */
    lks_group *world, *other;
    lks_work *work = NULL;
    lksi_thread *thread = NULL;
    given_up g = {0};
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_group_split(world, 0, 0, &other));
    MUST_OK(lks_symmetric_alloc(other, ALLOCATED_NBYTES, &memory));
    if (rank != 0) lks_symmetric_free(other, memory);
    if (rank == 0) {
        g.presence = &other->own_seat->presence.value;
        MUST_OK(lks_isend(other, data, NBYTES, LKS_U8, 1, 0, &work));
        g.transfer = other->messages->first;
        MUST_OK(lksi_thread_create(&thread, look_when_it_is_done, &g, "look"));
        lksi_sleep_ns(1000000);
    }
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) lks_group_destroy(other);
    lksi_thread_join(thread);
    MUST(rank != 0 || (g.seen == LKSI_LEFT && lks_work_wait(work) == LKS_ERR_STATE));
    MUST_OK(lks_barrier(world, NULL)); /* keeps the segment alive for the look */
    if (rank != 0) lks_group_destroy(other);
    lks_group_destroy(world);
    return 0;
}

static void who_gives_up_a_message_has_left_before(void **state) {
    (void)state;
    run_threads(2, leaves_with_a_message_under_way, NULL);
}

static void a_sender_nobody_listens_to_waits(void **state) {
    (void)state;
    run_processes(2, unheard_sender_is_bounded, NULL);
    run_threads(2, blocked_sender, NULL);
    run_processes(2, blocked_sender, NULL);
}

/* The receive is posted before the message arrives, and the message is large. */
static int posted_for_something_else(int rank, int size, void *argument) {
    (void)size;
    bool is_longer = *(bool *)argument;
    enum { COUNT = 10000 };
    lks_group *world;
    lks_work *work;
    MUST_OK(lks_init(&world, NULL));
    float *data = lksi_alloc_array(COUNT, sizeof *data);
    lks_status status;
    if (rank == 1) {
        MUST_OK(lks_irecv(world, data, COUNT - 1, is_longer ? LKS_F32 : LKS_I32, 0, 3, NULL, &work));
        MUST_OK(lks_send(world, data, 0, LKS_U8, 0, 1));
        status = lks_work_wait(work);
    } else {
        MUST_OK(lks_recv(world, data, 0, LKS_U8, 1, 1, NULL));
        status = lks_send(world, data, COUNT, LKS_F32, 1, 3);
    }
    MUST(status == LKS_ERR_MISMATCH);
    MUST_SAY("rank 0 sent 10000 f32 with tag 3, rank 1 receives up to 9999");
    MUST(lks_recv(world, data, 0, LKS_U8, 1, 1, NULL) == LKS_ERR_MISMATCH); /* the first error again */
    lksi_free(data);
    lks_group_destroy(world);
    return 0;
}

static void a_posted_receive_of_another_type_or_less_room_is_a_mismatch(void **state) {
    (void)state;
    for (int is_longer = 0; is_longer < 2; is_longer++) {
        run_threads(2, posted_for_something_else, &(bool){is_longer});
        run_processes(2, posted_for_something_else, &(bool){is_longer});
    }
}

/* Ranks 1 and 2 are connected over tcp. Rank 1 waits for rank 2, which waits for rank 0 in another group. */
static int report_over_tcp(int rank, int size, void *argument) {
    (void)argument;
    char report[1024];
    int32_t x = 0;
    lks_group *world, *other;
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = "tcp", .timeout_ms = 20000}));
    MUST_OK(lks_group_split(world, 0, rank, &other));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) {
        for (int i = 0; i < 500; i++) {
            lks_group_report(world, report, sizeof report);
            if (strstr(report, "waits for rank 2") != NULL && strstr(report, "is in message 1") != NULL) break;
            lksi_sleep_ns(10000000);
        }
        MUST(strstr(report, "): completed call 2 (barrier)\n") != NULL);
        MUST(strstr(report, "): reached over tcp; has reached call 2, waits for rank 2\n") != NULL);
        MUST(strstr(report, "): reached over tcp; has reached call 2, is in message 1 (recv) of a group that was split "
                            "from this one\n") != NULL);
        MUST_OK(lks_send(other, &x, 1, LKS_I32, 2, 1));
    } else if (rank == 1) {
        MUST_OK(lks_recv(world, &x, 1, LKS_I32, 2, 1, NULL));
    } else {
        MUST_OK(lks_recv(other, &x, 1, LKS_I32, 0, 1, NULL));
        MUST_OK(lks_send(world, &x, 1, LKS_I32, 1, 1));
    }
    MUST_OK(lks_barrier(world, NULL));
    /* The other ranks may still be in the barrier that rank 0 has left. */
    if (rank > 0) MUST_OK(lks_send(other, &x, 1, LKS_I32, 0, 2));
    for (int from = 1; from < size && rank == 0; from++) MUST_OK(lks_recv(other, &x, 1, LKS_I32, from, 2, NULL));
    if (rank == 0) lks_group_abort(world, "enough");
    lks_group_report(world, report, sizeof report);
    if (rank == 0) MUST(strstr(report, "): reached over tcp\n") != NULL);
    lks_group_destroy(other);
    lks_group_destroy(world);
    return 0;
}

static int a_report_shows_who_waits(int rank, int size, void *argument) {
    (void)size, (void)argument;
    char report[1024];
    int32_t x;
    lks_counters counters;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 0) {
        for (int i = 0; i < 500; i++) { /* until the others are asleep */
            lks_group_report(world, report, sizeof report);
            if (strstr(report, "waits for rank 2") != NULL && strstr(report, "waits for any rank") != NULL) break;
            lksi_sleep_ns(10000000);
        }
        MUST(strstr(report, "rank 0 (host ") != NULL && strstr(report, "): completed call 1 (barrier)\n") != NULL);
        MUST(strstr(report, "; in message 1 (recv), 0 bytes done, waits for rank 2\n") != NULL);
        MUST(strstr(report, "; in message 1 (recv), 0 bytes done, waits for any rank\n") != NULL);
        MUST_OK(lks_send(world, &x, 1, LKS_I32, 2, 1));
    } else {
        MUST_OK(lks_recv(world, &x, 1, LKS_I32, rank == 1 ? 2 : LKS_ANY_SOURCE, 1, NULL));
        if (rank == 2) MUST_OK(lks_send(world, (int32_t[7]){0}, 7, LKS_I32, 1, 9));
        if (rank == 2) MUST_OK(lks_send(world, &x, 1, LKS_I32, 1, 1));
    }
    lks_group_counters(world, &counters);
    MUST(counters.n_collectives == 1 && counters.n_point_to_point == (rank == 2 ? 3 : 1));
    static const uint64_t n_messages[] = {1, 0, 2}, n_nbytes[] = {4, 0, 32};
    MUST(counters.n_messages == n_messages[rank] && counters.n_message_nbytes == n_nbytes[rank]);
    lks_group_destroy(world);
    return 0;
}

static void the_report_shows_who_waits_for_whom(void **state) {
    (void)state;
    run_threads(3, a_report_shows_who_waits, NULL);
    run_processes(3, a_report_shows_who_waits, NULL);
    run_processes(3, report_over_tcp, NULL);
}

/* The numbers are those in the files of the algorithms. */
static int naive_counts_its_messages(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    lks_collective_options naive = {.algorithm = "naive"};
    uint16_t data[100] = {0};
    MUST_OK(lks_init(&world, NULL));
    const lksi_counters *counters = &world->counters;
    uint64_t n = (uint64_t)size;
    MUST_OK(lks_broadcast(world, data, 100, LKS_BF16, 1, &naive));
    MUST(counters->n_messages == (rank == 1 ? n - 1 : 0) && counters->n_message_nbytes == 200 * counters->n_messages);
    world->counters = (lksi_counters){.n_calls = counters->n_calls};
    MUST_OK(lks_reduce(world, data, data, 100, LKS_BF16, LKS_SUM, 1, &naive));
    MUST(counters->n_messages == (rank == 1 ? 0 : 1) && counters->n_message_nbytes == 400 * counters->n_messages);
    world->counters = (lksi_counters){.n_calls = counters->n_calls};
    MUST_OK(lks_barrier(world, &(lks_collective_options){.algorithm = "dissemination"}));
    MUST(counters->n_messages == (size > 4 ? 3 : 2) && counters->n_message_nbytes == 0);
    MUST(counters->n_calls == 3);
    lks_group_destroy(world);
    return 0;
}

static void algorithms_send_what_they_state(void **state) {
    (void)state;
    run_threads(3, naive_counts_its_messages, NULL);
    run_threads(5, naive_counts_its_messages, NULL);
}

/* --- arguments --- */

#define REFUSED(call, text)                                                                                            \
    do {                                                                                                               \
        MUST((call) == LKS_ERR_ARGUMENT);                                                                              \
        MUST_SAY(text);                                                                                                \
    } while (0)

static int bad_arguments(int rank, int size, void *argument) {
    (void)rank, (void)size, (void)argument;
    lks_group *world;
    float x[8] = {0};
    lks_collective_options unknown = {.algorithm = "ring-o-roses"}, late = {.timeout_ms = -1}, scaled = {.scale = 2};
    MUST_OK(lks_init(&world, NULL));
    REFUSED(lks_broadcast(world, NULL, 1, LKS_F32, 0, NULL), "`data` is NULL with a count of 1");
    REFUSED(lks_broadcast(world, x, 1, LKS_F32, 2, NULL), "root 2 is outside 0..1, the ranks of this group");
    REFUSED(lks_broadcast(world, x, 1, LKS_F32, -1, NULL), "root -1");
    REFUSED(lks_broadcast(world, x, 1, (lks_type)77, 0, NULL), "77 is no type");
    REFUSED(lks_broadcast(world, x, SIZE_MAX / 4, LKS_F64, 0, NULL), "memory can hold");
    REFUSED(lks_broadcast(world, x, 1, LKS_F32, 0, &scaled), "is not a reduction and takes no scale");
    REFUSED(lks_barrier(world, &scaled), "barrier: is not a reduction and takes no scale");
    REFUSED(lks_all_reduce(world, NULL, x, 1, LKS_F32, LKS_SUM, NULL), "`in` is NULL");
    REFUSED(lks_all_reduce(world, x, NULL, 1, LKS_F32, LKS_SUM, NULL), "`out` is NULL");
    REFUSED(lks_all_reduce(world, x, x + 1, 4, LKS_F32, LKS_SUM, NULL), "overlap");
    REFUSED(lks_all_reduce(world, x, x, 1, LKS_F32, LKS_BAND, NULL), "band is not defined on f32");
    REFUSED(lks_all_reduce(world, x, x, 1, LKS_I32, LKS_AVG, NULL), "avg is not defined on i32");
    REFUSED(lks_all_reduce(world, x, x, 1, LKS_F32, (lks_operator)99, NULL), "99 is no operator");
    REFUSED(lks_all_reduce(world, x, x, 1, LKS_I32, LKS_SUM, &scaled), "scale");
    REFUSED(lks_all_reduce(world, x, x, 1, LKS_F32, LKS_SUM, &unknown), "no algorithm 'ring-o-roses'");
    REFUSED(lks_barrier(world, &unknown), "it has: auto, direct, dissemination");
    REFUSED(lks_barrier(world, &late), "negative");
    REFUSED(lks_reduce(world, x, x, 1, LKS_F32, LKS_SUM, 7, NULL), "root 7");
    REFUSED(lks_send(world, x, 1, LKS_F32, 2, 0), "rank 2 is outside 0..1, the ranks of this group");
    REFUSED(lks_send(world, x, 1, LKS_F32, 0, -4), "tag -4 is negative");
    REFUSED(lks_send(world, NULL, 1, LKS_F32, 0, 0), "`data` is NULL");
    REFUSED(lks_recv(world, x, 1, (lks_type)77, 0, 0, NULL), "77 is no type");
    REFUSED(lks_symmetric_alloc(world, 4, NULL), "`data` is NULL");
    REFUSED(lks_symmetric_alloc(world, SIZE_MAX, &(void *){NULL}), "memory can hold");
    MUST_OK(lks_barrier(world, NULL)); /* nothing was sent, so the group remains usable */
    lks_group_destroy(world);
    return 0;
}

static void bad_arguments_are_refused_before_anything_is_sent(void **state) {
    (void)state;
    run_threads(2, bad_arguments, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_any_length_arrive),
        cmocka_unit_test(tags_are_matched_out_of_order),
        cmocka_unit_test(messages_outlive_their_sender),
        cmocka_unit_test(messages_never_received_are_given_back),
        cmocka_unit_test(who_waits_for_itself_is_told_at_once),
        cmocka_unit_test(a_receive_of_another_type_or_less_room_is_a_mismatch),
        cmocka_unit_test(a_message_that_is_never_sent_ends_at_the_deadline),
        cmocka_unit_test(a_deadline_counts_beside_the_messages_of_others),
        cmocka_unit_test(every_length_around_the_eager_limit_arrives),
        cmocka_unit_test(a_large_message_waits_at_its_sender),
        cmocka_unit_test(a_message_whose_sender_gave_up_is_not_received),
        cmocka_unit_test(large_messages_are_read_or_streamed),
        cmocka_unit_test(a_message_does_not_wait_for_its_senders_next_call),
        cmocka_unit_test(any_source_takes_what_comes_first),
        cmocka_unit_test(any_source_takes_what_those_sent_who_have_left),
        cmocka_unit_test(many_messages_in_any_order_arrive),
        cmocka_unit_test(messages_to_oneself_arrive_and_are_bounded),
        cmocka_unit_test(messages_move_on_inside_a_barrier),
        cmocka_unit_test(who_waits_for_one_message_answers_for_the_others),
        cmocka_unit_test(a_sender_nobody_listens_to_waits),
        cmocka_unit_test(there_is_room_for_what_nobody_has_taken),
        cmocka_unit_test(who_gives_up_a_message_has_left_before),
        cmocka_unit_test(a_posted_receive_of_another_type_or_less_room_is_a_mismatch),
        cmocka_unit_test(the_report_shows_who_waits_for_whom),
        cmocka_unit_test(algorithms_send_what_they_state),
        cmocka_unit_test(bad_arguments_are_refused_before_anything_is_sent),
    };
    return run_group(tests);
}
