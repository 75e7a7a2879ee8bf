/* comm/: send and recv, their matching, and the refusal of wrong arguments. */
#include "test.h"

#include "comm/comm_internal.h"
#include "ranks.h"

/* Longer than any ring, and than several: flows through in pieces. */
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
        for (int turn = 0; turn < 2; turn++) { /* evens send first */
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

static void messages_of_any_length_arrive(void **state) {
    (void)state;
    run_threads(2, messages_arrive, NULL);
    run_threads(4, messages_arrive, NULL);
    run_processes(2, messages_arrive, NULL);
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
        MUST(sum == 2); /* collectives go past messages that wait */
    }
    lks_group_destroy(world);
    return 0;
}

static void tags_are_matched_out_of_order(void **state) {
    (void)state;
    run_threads(2, tags_out_of_order, NULL);
    run_processes(2, tags_out_of_order, NULL);
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
    lks_group_destroy(world); /* with one message kept and never received */
    return 0;
}

static void messages_never_received_are_given_back(void **state) {
    (void)state;
    run_threads(2, unreceived, NULL);
    run_processes(2, unreceived, NULL);
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

static int never_sent(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    float x;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 200}));
    if (rank == 1) {
        MUST(lks_recv(world, &x, 1, LKS_F32, 0, 3, NULL) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 1 waited 200 ms for rank 0 (host");
        MUST_SAY("; recv, call 1, 0 bytes done");
    } else {
        lksi_sleep_ns(400000000);
        MUST(lks_barrier(world, NULL) == LKS_ERR_TIMEOUT);
    }
    lks_group_destroy(world);
    return 0;
}

static void a_message_that_is_never_sent_ends_at_the_deadline(void **state) {
    (void)state;
    run_threads(2, never_sent, NULL);
    run_processes(2, never_sent, NULL);
}

/* What the files of the algorithms state. */
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
    REFUSED(lks_broadcast(world, x, 1, LKS_F32, 2, NULL), "root 2 is outside 0..1");
    REFUSED(lks_broadcast(world, x, 1, LKS_F32, -1, NULL), "root -1");
    REFUSED(lks_broadcast(world, x, 1, (lks_type)77, 0, NULL), "77 is no type");
    REFUSED(lks_broadcast(world, x, SIZE_MAX / 4, LKS_F64, 0, NULL), "memory can hold");
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
    REFUSED(lks_send(world, x, 1, LKS_F32, 2, 0), "rank 2 is outside 0..1");
    REFUSED(lks_send(world, x, 1, LKS_F32, 0, -4), "tag -4 is negative");
    REFUSED(lks_send(world, NULL, 1, LKS_F32, 0, 0), "`data` is NULL");
    REFUSED(lks_recv(world, x, 1, (lks_type)77, 0, 0, NULL), "77 is no type");
    REFUSED(lks_symmetric_alloc(world, 4, NULL), "`data` is NULL");
    REFUSED(lks_symmetric_alloc(world, SIZE_MAX, &(void *){NULL}), "memory can hold");
    MUST_OK(lks_barrier(world, NULL)); /* nothing was sent, so the group lives */
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
        cmocka_unit_test(messages_never_received_are_given_back),
        cmocka_unit_test(a_receive_of_another_type_or_less_room_is_a_mismatch),
        cmocka_unit_test(a_message_that_is_never_sent_ends_at_the_deadline),
        cmocka_unit_test(algorithms_send_what_they_state),
        cmocka_unit_test(bad_arguments_are_refused_before_anything_is_sent),
    };
    return run_group(tests);
}
