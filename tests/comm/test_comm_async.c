/* comm/: operations in progress: their order, their errors, and what happens to them when their group is destroyed
 * first. */
#define _GNU_SOURCE /* syscall */
#include "test.h"

#include "comm/comm_internal.h"
#include "ranks.h"
#include "traffic.h"

#include <pthread.h>
#include <sys/syscall.h>

enum { N_WORKS = 12, COUNT = 30000 };

static void fill(int32_t *data, size_t count, int rank, int turn) {
    for (size_t i = 0; i < count; i++) data[i] = rank * 1000 + turn * 7 + (int32_t)i;
}

static bool is_sum(const int32_t *data, size_t count, int size, int turn) {
    for (size_t i = 0; i < count; i++)
        if (data[i] != size * (size - 1) / 2 * 1000 + size * (turn * 7 + (int32_t)i)) return false;
    return true;
}

static size_t count_of(int turn) { return turn % 3 == 0 ? 1 : (size_t)(COUNT / (turn + 1)); }

/* Starts all_reduce number `turn` on `data`. The algorithms alternate. */
static lks_status start(lks_group *group, int32_t *data, int turn, lks_work **work) {
    lks_collective_options options = {.algorithm = turn % 2 == 0 ? "direct" : "naive", .work = work};
    fill(data, count_of(turn), lks_group_rank(group), turn);
    return lks_all_reduce(group, data, data, count_of(turn), LKS_I32, LKS_SUM, &options);
}

static int works_are_done(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    lks_work *works[N_WORKS];
    int32_t *data[N_WORKS], token = rank == 1 ? 5 : 0;
    MUST_OK(lks_init(&world, NULL));
    for (int w = 0; w < N_WORKS; w++) data[w] = lksi_alloc_array(COUNT, sizeof(int32_t));
    for (int w = 0; w < N_WORKS; w++) {
        MUST_OK(start(world, data[w], w, &works[w]));
        if (w == 5) { /* runs after the operations in progress and before later ones */
            MUST_OK(lks_broadcast(world, &token, 1, LKS_I32, size > 1 ? 1 : 0, NULL));
            void *symmetric;
            MUST_OK(lks_symmetric_alloc(world, 100, &symmetric));
            lks_symmetric_free(world, symmetric);
        }
    }
    MUST(size == 1 || token == 5);
    for (int is_done = 0; is_done == 0;) MUST_OK(lks_work_test(works[3], &is_done));
    MUST(is_sum(data[3], count_of(3), size, 3));
    for (int w = N_WORKS - 1; w >= 0; w--) {
        MUST_OK(lks_work_wait(works[w]));
        MUST(is_sum(data[w], count_of(w), size, w));
        lksi_free(data[w]);
    }
    MUST(lks_work_wait(NULL) == LKS_ERR_ARGUMENT);
    MUST(lks_work_test(NULL, &(int){0}) == LKS_ERR_ARGUMENT);
    lks_group_destroy(world);
    return 0;
}

static void works_are_done_in_the_order_of_their_calls(void **state) {
    (void)state;
    run_threads(1, works_are_done, NULL);
    run_threads(3, works_are_done, NULL);
    run_processes(4, works_are_done, NULL);
}

/* Blocking calls would deadlock. */
static int two_groups_in_opposite_order(int rank, int size, void *argument) {
    (void)argument;
    lks_group *groups[2];
    lks_work *works[2][N_WORKS];
    int32_t *data[2][N_WORKS];
    MUST_OK(lks_init(&groups[0], NULL));
    MUST_OK(lks_init(&groups[1], NULL));
    for (int g = 0; g < 2; g++)
        for (int w = 0; w < N_WORKS; w++) data[g][w] = lksi_alloc_array(COUNT, sizeof(int32_t));
    for (int i = 0; i < 2; i++) {
        int g = (i + rank) % 2;
        for (int w = 0; w < N_WORKS; w++) MUST_OK(start(groups[g], data[g][w], w, &works[g][w]));
        if (i == 0) lksi_sleep_ns(20000000);
    }
    for (int i = 0; i < 2; i++) {
        int g = (i + rank) % 2;
        for (int w = 0; w < N_WORKS; w++) {
            MUST_OK(lks_work_wait(works[g][w]));
            MUST(is_sum(data[g][w], count_of(w), size, w));
            lksi_free(data[g][w]);
        }
        lks_group_destroy(groups[g]);
    }
    return 0;
}

static void groups_in_opposite_orders_do_not_wait_for_each_other(void **state) {
    (void)state;
    run_threads(2, two_groups_in_opposite_order, NULL);
    run_processes(3, two_groups_in_opposite_order, NULL);
}

static int messages_beside_works(int rank, int size, void *argument) {
    (void)argument;
    enum { LARGE = 1 << 20 };
    lks_group *world;
    lks_work *works[N_WORKS], *last, *send;
    int32_t *data[N_WORKS], sum = 1;
    unsigned char *large = lksi_alloc(LARGE);
    MUST_OK(lks_init(&world, NULL));
    for (int w = 0; w < N_WORKS; w++) {
        data[w] = lksi_alloc_array(COUNT, sizeof(int32_t));
        MUST_OK(start(world, data[w], w, &works[w]));
    }
    int line = random_traffic(world, 77);
    if (line != 0) return line;
    for (int w = 0; w < N_WORKS; w++) {
        MUST_OK(lks_work_wait(works[w]));
        MUST(is_sum(data[w], count_of(w), size, w));
        lksi_free(data[w]);
    }
    /* Rank 1 enters the collective only after it has the message. Rank 0 sends it while it waits for the work. */
    if (rank == 0) MUST_OK(lks_isend(world, large, LARGE, LKS_U8, 1, 4, &send));
    if (rank == 1) MUST_OK(lks_recv(world, large, LARGE, LKS_U8, 0, 4, NULL));
    MUST_OK(lks_all_reduce(world, &sum, &sum, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.work = &last}));
    MUST_OK(lks_work_wait(last));
    if (rank == 0) MUST_OK(lks_work_wait(send));
    MUST(sum == size);
    lks_counters counters;
    lks_group_counters(world, &counters);
    MUST(counters.n_collectives == N_WORKS + 1);
    lksi_free(large);
    lks_group_destroy(world);
    return 0;
}

static void messages_go_on_beside_works(void **state) {
    (void)state;
    run_threads(3, messages_beside_works, NULL);
    run_processes(2, messages_beside_works, NULL);
}

static int an_error_is_in_the_work(int rank, int size, void *argument) {
    (void)size, (void)argument;
    int32_t x[8] = {0}, y[8] = {0};
    char first[512];
    lks_group *world;
    lks_work *works[2], *message;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_irecv(world, y, 1, LKS_I32, 1 - rank, 9, NULL, &message)); /* never sent */
    MUST_OK(
        lks_all_reduce(world, x, x, rank == 1 ? 6 : 5, LKS_I32, LKS_SUM, &(lks_collective_options){.work = &works[0]}));
    /* The first call may have failed already. Then there is no second work. */
    lks_status second = lks_all_reduce(world, x, x, 5, LKS_I32, LKS_SUM, &(lks_collective_options){.work = &works[1]});
    MUST(second == LKS_OK || second == LKS_ERR_MISMATCH);
    MUST(lks_work_wait(works[0]) == LKS_ERR_MISMATCH);
    MUST_SAY("ranks disagree at call 1: rank 0 called all_reduce(count 5, i32, sum");
    MUST_SAY("rank 1 called all_reduce(count 6, i32, sum");
    snprintf(first, sizeof first, "%s", lks_error_text());
    MUST(lks_barrier(world, NULL) == LKS_ERR_MISMATCH);
    MUST(strcmp(lks_error_text(), first) == 0);
    MUST(lks_send(world, x, 1, LKS_I32, 1 - rank, 9) == LKS_ERR_MISMATCH);
    MUST(second != LKS_OK || lks_work_wait(works[1]) == LKS_ERR_MISMATCH);
    MUST(strcmp(lks_error_text(), first) == 0);
    int is_done = 0;
    MUST_OK(lks_work_test(message, &is_done));
    MUST(is_done == 1);
    MUST(lks_work_wait(message) == LKS_ERR_MISMATCH);
    MUST(strcmp(lks_error_text(), first) == 0);
    lks_group_destroy(world);
    return 0;
}

static void an_error_is_kept_in_the_work(void **state) {
    (void)state;
    run_threads(2, an_error_is_in_the_work, NULL);
    run_processes(2, an_error_is_in_the_work, NULL);
}

static int works_outlive_their_group(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world;
    lks_work *works[N_WORKS], *message, *large;
    int32_t *data[N_WORKS], x;
    unsigned char *unheard = lksi_alloc(1 << 20);
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_irecv(world, &x, 1, LKS_I32, (rank + 1) % size, 9, NULL, &message));
    MUST_OK(lks_isend(world, unheard, 1 << 20, LKS_U8, (rank + 1) % size, 8, &large));
    for (int w = 0; w < N_WORKS; w++) {
        data[w] = lksi_alloc_array(COUNT, sizeof(int32_t));
        MUST_OK(start(world, data[w], w, &works[w]));
    }
    lks_group_destroy(world);
    for (int w = 0; w < N_WORKS; w++) {
        MUST_OK(lks_work_wait(works[w]));
        MUST(is_sum(data[w], count_of(w), size, w));
        lksi_free(data[w]);
    }
    int is_done = 0;
    MUST_OK(lks_work_test(message, &is_done));
    MUST(is_done == 1);
    MUST(lks_work_wait(message) == LKS_ERR_STATE);
    MUST_SAY("the group was destroyed before");
    MUST(lks_work_wait(large) == LKS_ERR_STATE);
    lksi_free(unheard);
    return 0;
}

static void works_outlive_their_group_finished_or_given_up(void **state) {
    (void)state;
    run_threads(1, works_outlive_their_group, NULL);
    run_threads(3, works_outlive_their_group, NULL);
    run_processes(2, works_outlive_their_group, NULL);
}

/* The deadline of an operation counts from its call, even if no thread waits for it. */
static int deadlines_count_from_the_call(int rank, int size, void *argument) {
    (void)size, (void)argument;
    int32_t x[4] = {0};
    lks_group *world;
    lks_work *works[2], *message;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 400}));
    if (rank == 0) {
        MUST_OK(lks_irecv(world, &x[2], 1, LKS_I32, 1, 9, NULL, &message));
        lksi_sleep_ns(600000000);
        int is_done = 0;
        MUST_OK(lks_work_test(message, &is_done)); /* the first test after the deadline */
        MUST(is_done == 1);
        MUST(lks_work_wait(message) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 0 waited 400 ms for rank 1 (host ");
        MUST_SAY("; irecv, tag 9, call 1, 0 bytes done");
    } else {
        for (int w = 0; w < 2; w++)
            MUST_OK(lks_all_reduce(world, &x[w], &x[w], 1, LKS_I32, LKS_SUM,
                                   &(lks_collective_options){.work = &works[w], .timeout_ms = 30000}));
        MUST(lks_work_wait(works[0]) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 0 gave up: rank 0 waited 400 ms");
        MUST(lks_work_wait(works[1]) == LKS_ERR_TIMEOUT);
    }
    lks_group_destroy(world);
    return 0;
}

static int a_work_times_out(int rank, int size, void *argument) {
    (void)size, (void)argument;
    int32_t x = 0;
    lks_group *world;
    lks_work *work;
    MUST_OK(lks_init(&world, NULL));
    if (rank == 0) {
        MUST_OK(lks_all_reduce(world, &x, &x, 1, LKS_I32, LKS_SUM,
                               &(lks_collective_options){.work = &work, .timeout_ms = 200}));
        MUST(lks_work_wait(work) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 0 waited 200 ms for rank 1 (host ");
        MUST_SAY("; all_reduce, call 1, 0 bytes done");
    } else {
        MUST(lks_recv(world, &x, 1, LKS_I32, 0, 1, NULL) == LKS_ERR_TIMEOUT);
    }
    lks_group_destroy(world);
    return 0;
}

/* Counts the calls of sched_yield by this thread. */
static _Thread_local int n_yields;

/* Replaces the function of the C library. */
int sched_yield(void) {
    n_yields++;
    return (int)syscall(SYS_sched_yield);
}

/* Each rank has a CPU, but its worker has none: a test must yield to the worker. */
static int ask_once_beside_a_worker(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world;
    lks_work *work;
    int32_t token = 0;
    int is_done = 0;
    MUST_OK(lks_init(&world, NULL));
    world->may_spin = true, world->may_worker_spin = false;
    if (rank == 0) {
        MUST_OK(lks_barrier(world, &(lks_collective_options){.work = &work}));
        n_yields = 0;
        MUST_OK(lks_work_test(work, &is_done));
        MUST(n_yields == 1 && !is_done);
        MUST_OK(lks_send(world, &token, 1, LKS_I32, 1, 0));
    } else {
        MUST_OK(lks_recv(world, &token, 1, LKS_I32, 0, 0, NULL));
        MUST_OK(lks_barrier(world, NULL));
    }
    if (rank == 0) MUST_OK(lks_work_wait(work));
    lks_group_destroy(world);
    return 0;
}

static void whoever_asks_gives_way_to_its_worker(void **state) {
    (void)state;
    run_threads(2, ask_once_beside_a_worker, NULL);
}

/* There are far more ranks than CPUs, and many handovers, because rings of so many ranks hold 1 KiB. A rank that only
 * tests must yield to the ranks that it waits for. Otherwise rank 0 does not finish before its deadline. */
static int ask_all_the_time(int rank, int size, void *argument) {
    (void)argument;
    enum { N_EACH = 2048 };
    lks_group *world;
    lks_work *work = NULL;
    int32_t *mine = lksi_alloc_array(N_EACH, sizeof *mine), *all = lksi_alloc_array((size_t)size * N_EACH, sizeof *all);
    MUST(mine != NULL && all != NULL);
    for (int i = 0; i < N_EACH; i++) mine[i] = rank;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    lks_collective_options options = {.algorithm = "naive", .work = rank % 2 == 1 ? &work : NULL};
    MUST_OK(lks_all_gather(world, mine, all, N_EACH, LKS_I32, &options));
    int is_done = work == NULL;
    while (!is_done) MUST_OK(lks_work_test(work, &is_done));
    if (work != NULL) MUST_OK(lks_work_wait(work));
    for (int i = 0; i < size * N_EACH; i++) MUST(all[i] == i / N_EACH);
    lks_group_destroy(world);
    lksi_free(mine);
    lksi_free(all);
    return 0;
}

static void whoever_asks_all_the_time_gives_way(void **state) {
    (void)state;
    run_threads(33, ask_all_the_time, NULL);
}

static void a_work_ends_at_its_deadline(void **state) {
    (void)state;
    run_threads(2, deadlines_count_from_the_call, NULL);
    run_processes(2, deadlines_count_from_the_call, NULL);
    run_threads(2, a_work_times_out, NULL);
    run_processes(2, a_work_times_out, NULL);
}

typedef enum late_kind { LATE_CALL, LATE_WAIT, LATE_TEST, LATE_ALLOCATION } late_kind;

static lks_status be_late(lks_group *world, late_kind kind) {
    void *data;
    lks_work *work;
    if (kind == LATE_CALL) return lks_barrier(world, &(lks_collective_options){.timeout_ms = 500});
    if (kind == LATE_ALLOCATION) return lks_symmetric_alloc(world, 64, &data); /* has the timeout of the group */
    lks_status status = lks_barrier(world, &(lks_collective_options){.timeout_ms = 500, .work = &work});
    for (int is_done = 0; kind == LATE_TEST && status == LKS_OK && is_done == 0;)
        status = lks_work_test(work, &is_done);
    return status == LKS_OK ? lks_work_wait(work) : status;
}

typedef struct late {
    late_kind kind;
    char *transport;
} late;

/* The call in progress has a later deadline than the call behind it. */
static int a_call_is_late_behind_a_work(int rank, int size, void *argument) {
    (void)size;
    const late *call = argument;
    int32_t x = 0;
    lks_group *world;
    lks_work *work;
    int64_t most_ns = INT64_C(10000000000), begin_ns = lksi_now_ns();
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 50000, .transport = call->transport}));
    if (rank == 0) {
        world->timeout_ms = 500;
        MUST_OK(lks_all_reduce(world, &x, &x, 1, LKS_I32, LKS_SUM,
                               &(lks_collective_options){.work = &work, .timeout_ms = 60000}));
        MUST(be_late(world, call->kind) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 0 waited 500 ms for its all_reduce, call 1, which waits for rank 1 (host ");
        MUST_SAY(call->kind == LATE_ALLOCATION ? "; symmetric_alloc, call 2, 0 bytes done"
                                               : "; barrier, call 2, 0 bytes done");
        MUST(lks_work_wait(work) == LKS_ERR_TIMEOUT);
        MUST(lks_barrier(world, NULL) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 0 waited 500 ms for its all_reduce, call 1");
    } else {
        while (!lksi_control_is_aborted(world->control)) lksi_sleep_ns(1000000);
        MUST(lks_barrier(world, NULL) == LKS_ERR_TIMEOUT);
        MUST_SAY("rank 0 gave up: rank 0 waited 500 ms for its all_reduce, call 1");
    }
    MUST(lksi_now_ns() - begin_ns < most_ns);
    lks_group_destroy(world);
    return 0;
}

static void a_call_ends_at_its_deadline_behind_a_work(void **state) {
    (void)state;
    for (int kind = LATE_CALL; kind <= LATE_ALLOCATION; kind++)
        run_threads(2, a_call_is_late_behind_a_work, &(late){(late_kind)kind, NULL});
    run_processes(2, a_call_is_late_behind_a_work, &(late){LATE_CALL, "tcp"});
    run_processes(2, a_call_is_late_behind_a_work, &(late){LATE_WAIT, "tcp"});
}

/* If two threads of a group find an error at once, the group keeps one of the errors, with its complete text. */
static int both_threads_fail(int rank, int size, void *argument) {
    (void)argument;
    int32_t x = 0, y = 0;
    lks_group *world;
    lks_work *work;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 500}));
    if (rank < size - 1) {
        MUST_OK(lks_all_reduce(world, &x, &x, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.work = &work}));
        MUST(lks_recv(world, &y, 1, LKS_I32, size - 1, 1, NULL) != LKS_OK);
        MUST(lks_work_wait(work) != LKS_OK);
        MUST(lksi_group_status(world) != LKS_OK && lks_barrier(world, NULL) == lksi_group_status(world));
        MUST(strlen(lks_error_text()) > 20);
    } else {
        lksi_sleep_ns(600000000);
    }
    lks_group_destroy(world);
    return 0;
}

static void two_threads_of_a_group_may_fail_at_once(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) run_threads(3, both_threads_fail, NULL);
}

/* A rank that has counted the call but cannot run it must not leave the others waiting. */
static int out_of_memory_for_a_work(int rank, int size, void *argument) {
    (void)size, (void)argument;
    int32_t x = 0;
    lks_group *world;
    lks_work *work = NULL;
    MUST_OK(lks_init(&world, NULL));
    if (rank == 1) lksi_alloc_fail_after(1);
    lks_status status = lks_all_reduce(world, &x, &x, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.work = &work});
    if (rank == 1) {
        MUST(status == LKS_ERR_MEMORY && work == NULL);
    } else {
        MUST_OK(status);
        MUST(lks_work_wait(work) == LKS_ERR_PEER);
        MUST_SAY("rank 1 gave up: out of memory");
    }
    lks_group_destroy(world);
    return 0;
}

static void a_work_without_memory_is_an_error_on_all(void **state) {
    (void)state;
    run_processes(2, out_of_memory_for_a_work, NULL);
}

/* The counts belong to the caller again when the call returns. */
static int begin_with_passing_counts(int rank, int size, void *argument) {
    lks_group *world;
    lks_work *work;
    int32_t in[64], out[64] = {0};
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = argument}));
    size_t in_counts[MAX_TEST_RANKS] = {0}, out_counts[MAX_TEST_RANKS] = {0};
    for (int i = 0, n = 0; i < size; i++) {
        in_counts[i] = (size_t)(rank + i) % 3, out_counts[i] = in_counts[i];
        for (size_t k = 0; k < in_counts[i]; k++) in[n++] = 10 * rank + i;
    }
    lks_collective_options options = {.work = &work};
    MUST_OK(lks_all_to_allv(world, in, in_counts, out, out_counts, LKS_I32, &options));
    memset(in_counts, 0xff, sizeof in_counts), memset(out_counts, 0xff, sizeof out_counts);
    MUST_OK(lks_work_wait(work));
    for (int i = 0, n = 0; i < size; i++)
        for (int k = 0; k < (rank + i) % 3; k++) MUST(out[n++] == 10 * i + rank);
    lks_group_destroy(world);
    return 0;
}

static void counts_of_a_call_under_way_may_change(void **state) {
    (void)state;
    run_threads(3, begin_with_passing_counts, NULL);
    run_processes(4, begin_with_passing_counts, "tcp");
}

/* Connections of other ranks may arrive after the destruction of the group has begun. */
static int destroy_with_a_call_under_way(int rank, int size, void *argument) {
    lks_group *world, *group;
    lks_work *work;
    int32_t in[4], out[4] = {0};
    for (int i = 0; i < size; i++) in[i] = 10 * rank + i;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = argument}));
    MUST_OK(lks_group_split(world, 0, rank, &group));
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) {
        MUST_OK(lks_all_to_all(group, in, out, 1, LKS_I32, &(lks_collective_options){.work = &work}));
        lks_group_destroy(group);
        MUST_OK(lks_work_wait(work));
    } else {
        lksi_sleep_ns((int64_t)rank * 50000000);
        MUST_OK(lks_all_to_all(group, in, out, 1, LKS_I32, NULL));
        lks_group_destroy(group);
    }
    for (int i = 0; i < size; i++) MUST(out[i] == 10 * i + rank);
    lks_group_destroy(world);
    return 0;
}

static void a_group_that_is_destroyed_finishes_its_calls(void **state) {
    (void)state;
    run_processes(4, destroy_with_a_call_under_way, "shm");
    run_processes(4, destroy_with_a_call_under_way, "tcp");
}

static void *meet(void *group) { return (void *)(intptr_t)lks_barrier(group, NULL); }
static void *receive(void *group) {
    int32_t value;
    return (void *)(intptr_t)lks_recv(group, &value, 1, LKS_I32, 1, 1, NULL);
}

typedef struct pair_of_threads {
    const char *transport;
    bool is_message;
} pair_of_threads;

/* A thread of rank 0 waits for rank 1, which never comes. Meanwhile another thread of rank 0 calls the same group. */
static int second_thread(int rank, int size, void *argument) {
    (void)size;
    const pair_of_threads *pair = argument;
    lks_group *world;
    pthread_t first;
    void *status;
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = pair->transport}));
    if (rank == 0) {
        const atomic_bool *is_there = pair->is_message ? &world->is_in_message : &world->is_at_work;
        MUST(pthread_create(&first, NULL, pair->is_message ? receive : meet, world) == 0);
        while (!atomic_load(is_there)) lksi_sleep_ns(1000000);
        lks_status second = pair->is_message ? lks_send(world, &rank, 1, LKS_I32, 1, 2) : lks_barrier(world, NULL);
        MUST(second == LKS_ERR_STATE);
        MUST_SAY(pair->is_message ? "send: another thread of rank 0 is in a send or receive of the same group"
                                  : "barrier: another thread of rank 0 is in a collective of the same group");
        MUST(pthread_join(first, &status) == 0);
        MUST((lks_status)(intptr_t)status == LKS_ERR_STATE);
    } else {
        while (!lksi_control_is_aborted(world->control)) lksi_sleep_ns(1000000);
        MUST(lks_barrier(world, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 0 gave up");
    }
    lks_group_destroy(world);
    return 0;
}

static void a_second_thread_in_a_group_is_refused(void **state) {
    (void)state;
    if (IS_ABOUT_THREADS) skip(); /* the refused call is a data race */
    for (int is_message = 0; is_message < 2; is_message++) {
        run_threads(2, second_thread, &(pair_of_threads){"thread", is_message});
        run_processes(2, second_thread, &(pair_of_threads){"shm", is_message});
        run_processes(2, second_thread, &(pair_of_threads){"tcp", is_message});
    }
}

typedef enum aborted { ABORT_WORLD, ABORT_BOUND, N_ABORTED } aborted;

typedef struct giving_up {
    const char *transport;
    aborted what;
} giving_up;

/* A thread of rank 0 waits for rank 1 in one of two groups that fail together, while another thread of rank 0 gives up
 * in the other group. Rank 1's answer, that rank 0 gave up, comes back to the waiting thread. */
static int give_up_beside_a_wait(int rank, int size, void *argument) {
    (void)size;
    const giving_up *g = argument;
    lks_group *world, *bound;
    lks_work *work;
    int32_t x = 0;
    MUST_OK(lks_init(&world, &(lks_init_options){.transport = g->transport}));
    MUST_OK(lks_group_split(world, 0, rank, &bound));
    lksi_group_bind(world, bound, "test");
    lks_group *given_up = g->what == ABORT_WORLD ? world : bound, *other = g->what == ABORT_WORLD ? bound : world;
    if (rank == 0) {
        MUST_OK(lks_all_reduce(other, &x, &x, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.work = &work}));
        while (!atomic_load(&other->is_at_work)) lksi_sleep_ns(1000000);
        lks_group_abort(given_up, "had enough");
        MUST(lks_work_wait(work) == LKS_ERR_STATE);
        MUST(strcmp(lks_error_text(), "had enough") == 0);
        MUST(lks_barrier(world, NULL) == LKS_ERR_STATE);
        MUST(strcmp(lks_error_text(), "had enough") == 0);
    } else {
        lks_status status = lks_barrier(given_up, NULL);
        MUST(status == LKS_ERR_PEER);
        MUST_SAY("rank 0 gave up: had enough");
        (void)lksi_group_fail(world, status);
        MUST(lks_barrier(other, NULL) == LKS_ERR_PEER);
        MUST_SAY("rank 0 gave up: had enough");
    }
    lks_group_destroy(bound);
    lks_group_destroy(world);
    return 0;
}

static void a_rank_that_gives_up_gets_its_own_error_in_all_its_threads(void **state) {
    (void)state;
    for (int what = 0; what < N_ABORTED; what++)
        for (int i = 0; i < 5; i++) {
            run_threads(2, give_up_beside_a_wait, &(giving_up){"thread", (aborted)what});
            run_processes(2, give_up_beside_a_wait, &(giving_up){"shm", (aborted)what});
            run_processes(2, give_up_beside_a_wait, &(giving_up){"tcp", (aborted)what});
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(works_are_done_in_the_order_of_their_calls),
        cmocka_unit_test(groups_in_opposite_orders_do_not_wait_for_each_other),
        cmocka_unit_test(messages_go_on_beside_works),
        cmocka_unit_test(an_error_is_kept_in_the_work),
        cmocka_unit_test(works_outlive_their_group_finished_or_given_up),
        cmocka_unit_test(a_work_ends_at_its_deadline),
        cmocka_unit_test(a_call_ends_at_its_deadline_behind_a_work),
        cmocka_unit_test(whoever_asks_gives_way_to_its_worker),
        cmocka_unit_test(whoever_asks_all_the_time_gives_way),
        cmocka_unit_test(two_threads_of_a_group_may_fail_at_once),
        cmocka_unit_test(a_second_thread_in_a_group_is_refused),
        cmocka_unit_test(a_rank_that_gives_up_gets_its_own_error_in_all_its_threads),
        cmocka_unit_test(a_work_without_memory_is_an_error_on_all),
        cmocka_unit_test(counts_of_a_call_under_way_may_change),
        cmocka_unit_test(a_group_that_is_destroyed_finishes_its_calls),
    };
    return run_group(tests);
}
