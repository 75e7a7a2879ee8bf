/* comm/: messages of one group that progress while their thread waits in another group, and groups that another thread
 * takes over. */
#include "test.h"

#include "ranks.h"

#include <pthread.h>

enum { LARGE = 3 << 20, N_TURNS = 20 };

static lks_status set_up(const char *transport, lks_group **world, lks_group **other, unsigned char **out,
                         unsigned char **in) {
    LKS_TRY(lks_init(world, &(lks_init_options){.transport = transport, .timeout_ms = 30000}));
    *out = lksi_alloc(LARGE), *in = lksi_alloc(LARGE);
    if (*out == NULL || *in == NULL) return LKS_ERR_MEMORY;
    memset(*out, lks_group_rank(*world) + 1, LARGE);
    return lks_group_split(*world, 0, 0, other);
}

static void take_down(lks_group *world, lks_group *other, unsigned char *out, unsigned char *in) {
    lks_group_destroy(other);
    lks_group_destroy(world);
    lksi_free(in);
    lksi_free(out);
}

/* The ranks exchange messages in two groups at once, and each waits for another group first. */
static int in_opposite_orders(int rank, int size, void *transport) {
    (void)size;
    lks_group *groups[2];
    lks_work *works[2][2];
    unsigned char *out, *in;
    MUST_OK(set_up(transport, &groups[0], &groups[1], &out, &in));
    unsigned char *second = lksi_alloc(LARGE);
    MUST(second != NULL);
    for (int turn = 0; turn < N_TURNS; turn++) {
        for (int i = 0; i < 2; i++) {
            MUST_OK(lks_irecv(groups[i], i == 0 ? in : second, LARGE, LKS_U8, 1 - rank, 1, NULL, &works[i][0]));
            MUST_OK(lks_isend(groups[i], out, LARGE, LKS_U8, 1 - rank, 1, &works[i][1]));
        }
        for (int i = 0; i < 2; i++)
            for (int half = 0; half < 2; half++) MUST_OK(lks_work_wait(works[rank == 0 ? i : 1 - i][half]));
        MUST(in[LARGE - 1] == 2 - rank && second[0] == 2 - rank && second[LARGE - 1] == 2 - rank);
    }
    lksi_free(second);
    take_down(groups[0], groups[1], out, in);
    return 0;
}

/* Rank 1 makes the call that rank 0 waits for only after it has the message. */
static int while_in_the_world(int rank, int size, void *transport) {
    lks_group *world, *other;
    lks_work *work, *sum;
    unsigned char *out, *in;
    MUST_OK(set_up(transport, &world, &other, &out, &in));
    for (int turn = 0; turn < N_TURNS; turn++) {
        int32_t one = 1, all = 0;
        int is_done = 0;
        if (rank == 0) MUST_OK(lks_isend(other, out, LARGE, LKS_U8, 1, turn, &work));
        if (rank == 1) MUST_OK(lks_recv(other, in, LARGE, LKS_U8, 0, turn, NULL));
        if (turn % 4 < 2) MUST_OK(lks_all_reduce(world, &one, &all, 1, LKS_I32, LKS_SUM, NULL));
        if (turn % 4 >= 2) {
            MUST_OK(lks_all_reduce(world, &one, &all, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.work = &sum}));
            while (turn % 4 == 3 && !is_done) MUST_OK(lks_work_test(sum, &is_done));
            MUST_OK(lks_work_wait(sum));
        }
        MUST(all == size);
        if (rank == 0) MUST_OK(lks_work_wait(work));
        if (rank == 1) MUST(in[0] == 1 && in[LARGE - 1] == 1);
        /* the same, but rank 0 then waits for a message or tests for it */
        if (rank == 0) MUST_OK(lks_isend(other, out, LARGE, LKS_U8, 1, turn, &work));
        if (rank == 1) MUST_OK(lks_recv(other, in, LARGE, LKS_U8, 0, turn, NULL));
        if (rank == 1) MUST_OK(lks_send(world, &one, 1, LKS_I32, 0, 7));
        if (rank == 0 && turn % 2 == 0) MUST_OK(lks_recv(world, &one, 1, LKS_I32, 1, 7, NULL));
        if (rank == 0 && turn % 2 == 1) {
            lks_work *token;
            MUST_OK(lks_irecv(world, &one, 1, LKS_I32, 1, 7, NULL, &token));
            for (is_done = 0; !is_done;) MUST_OK(lks_work_test(token, &is_done));
            MUST_OK(lks_work_wait(token));
        }
        if (rank == 0) MUST_OK(lks_work_wait(work));
    }
    take_down(world, other, out, in);
    return 0;
}

static void a_wait_moves_on_the_messages_of_other_groups(void **state) {
    (void)state;
    run_threads(2, in_opposite_orders, "thread");
    run_threads(3, while_in_the_world, "thread");
    if (IS_ABOUT_THREADS) return;
    static char *const transports[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
        run_processes(2, in_opposite_orders, transports[i]);
        run_processes(3, while_in_the_world, transports[i]);
    }
}

static void *wait_for(void *work) { return (void *)(intptr_t)lks_work_wait(work); }

/* Another thread waits for the work that this thread has started and may still be progressing. */
static int from_hand_to_hand(int rank, int size, void *transport) {
    (void)size;
    lks_group *world, *other;
    lks_work *work;
    unsigned char *out, *in;
    MUST_OK(set_up(transport, &world, &other, &out, &in));
    for (int turn = 0; turn < N_TURNS; turn++) {
        pthread_t thread;
        void *status;
        if (rank == 0)
            MUST_OK(lks_isend(other, out, LARGE, LKS_U8, 1, 1, &work));
        else
            MUST_OK(lks_irecv(other, in, LARGE, LKS_U8, 0, 1, NULL, &work));
        MUST(pthread_create(&thread, NULL, wait_for, work) == 0);
        MUST_OK(lks_barrier(world, NULL));
        MUST(pthread_join(thread, &status) == 0);
        MUST((lks_status)(intptr_t)status == LKS_OK);
        if (rank == 1) MUST(in[0] == 1 && in[LARGE - 1] == 1);
    }
    take_down(world, other, out, in);
    return 0;
}

static void a_group_goes_from_thread_to_thread(void **state) {
    (void)state;
    run_threads(2, from_hand_to_hand, "thread");
    if (IS_ABOUT_THREADS) return;
    run_processes(2, from_hand_to_hand, "shm");
    run_processes(2, from_hand_to_hand, "tcp");
}

static void *destroy(void *group) {
    lks_group_destroy(group);
    return NULL;
}

/* Rank 0's own thread may be copying into the group's symmetric memory at that moment. */
static int destroyed_meanwhile(int rank, int size, void *transport) {
    (void)size;
    enum { NBYTES = 64 << 20 };
    lks_group *world, *other;
    lks_work *work;
    void *data;
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = transport, .timeout_ms = 30000}));
    for (int turn = 0; turn < 5; turn++) {
        pthread_t thread;
        MUST_OK(lks_group_split(world, 0, 0, &other));
        MUST_OK(lks_symmetric_alloc(other, NBYTES, &data));
        memset(data, rank + 1, NBYTES);
        MUST_OK(lks_barrier(world, NULL));
        MUST_OK(rank == 0 ? lks_irecv(other, data, NBYTES, LKS_U8, 1, 1, NULL, &work)
                          : lks_isend(other, data, NBYTES, LKS_U8, 0, 1, &work));
        if (rank == 0) {
            MUST(pthread_create(&thread, NULL, destroy, other) == 0);
            MUST_OK(lks_barrier(world, NULL));
            MUST(pthread_join(thread, NULL) == 0);
            (void)lks_work_wait(work); /* done, or cancelled by the destruction */
        } else {
            lks_status status = lks_work_wait(work);
            MUST(status == LKS_OK || status == LKS_ERR_PEER);
            MUST_OK(lks_barrier(world, NULL));
            lks_group_destroy(other);
        }
    }
    lks_group_destroy(world);
    return 0;
}

static void a_group_may_be_destroyed_while_another_thread_moves_its_messages(void **state) {
    (void)state;
    run_threads(2, destroyed_meanwhile, "thread");
    if (!IS_ABOUT_THREADS) run_processes(2, destroyed_meanwhile, "shm");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_moves_on_the_messages_of_other_groups),
        cmocka_unit_test(a_group_goes_from_thread_to_thread),
        cmocka_unit_test(a_group_may_be_destroyed_while_another_thread_moves_its_messages),
    };
    return run_group(tests);
}
