/* comm/: worlds of one rank, of threads and of processes, and what lks_init refuses. */
#define _GNU_SOURCE /* affinity */
#include "test.h"

#include "ranks.h"

#include "comm/comm_internal.h"
#include "comm/world.h"

#include <sched.h>

static int meet_and_sum(int rank, int size, void *argument) {
    const char *transport = argument;
    lks_group *world;
    MUST_OK(lks_init(&world, NULL));
    MUST(lks_group_rank(world) == rank && lks_group_size(world) == size);
    MUST(lks_group_local_rank(world) == rank && lks_group_local_size(world) == size); /* all on this host */
    MUST(strcmp(lks_group_transport(world), transport) == 0);
    for (int i = 0; i < 200; i++) {
        int32_t mine = rank + i, sum;
        MUST_OK(lks_all_reduce(world, &mine, &sum, 1, LKS_I32, LKS_SUM, NULL));
        MUST(sum == size * (size - 1) / 2 + size * i);
        MUST_OK(lks_barrier(world, NULL));
        int32_t told = rank == i % size ? i : -1;
        MUST_OK(lks_broadcast(world, &told, 1, LKS_I32, i % size, NULL));
        MUST(told == i);
    }
    lks_group_destroy(world);
    return 0;
}

static void threads_meet(void **state) {
    (void)state;
    for (int size = 1; size <= 8; size++) run_threads(size, meet_and_sum, "thread");
}

static void processes_meet(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) run_processes(size, meet_and_sum, "shm");
}

static void one_process_is_a_world(void **state) {
    (void)state;
    assert_int_equal(meet_and_sum(0, 1, "self"), 0);
}

static int join_twice(int rank, int size, void *argument) {
    MUST(meet_and_sum(rank, size, argument) == 0);
    return meet_and_sum(rank, size, argument);
}

static void a_world_can_be_joined_again(void **state) {
    (void)state;
    run_threads(3, join_twice, "thread");
    run_processes(3, join_twice, "shm");
}

/* A call that fails on one rank before it meets the others does not count: the first world of the job is the first on
 * all ranks. */
static int join_after_a_refusal(int rank, int size, void *argument) {
    (void)size;
    const lks_init_options options = {.transport = argument, .timeout_ms = 20000};
    lks_group *world;
    if (rank == 0) MUST(lks_init(&world, &(lks_init_options){.transport = "thread"}) == LKS_ERR_ARGUMENT);
    MUST_OK(lks_init(&world, &options));
    MUST(world->world->is_first);
    lks_group_destroy(world);
    MUST_OK(lks_init(&world, &options));
    MUST(!world->world->is_first);
    lks_group_destroy(world);
    return 0;
}

static void a_world_that_was_refused_does_not_count(void **state) {
    (void)state;
    run_processes(2, join_after_a_refusal, "shm");
    run_processes(2, join_after_a_refusal, "tcp");
}

/* The longest possible deadline must not overflow. */
static int wait_without_end(int rank, int size, void *argument) {
    const char *transport = argument;
    lks_group *world;
    int32_t x = rank;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = INT64_MAX, .transport = transport}));
    if (rank == 1) lksi_sleep_ns(30000000);
    MUST_OK(lks_barrier(world, NULL));
    if (rank == 1) lksi_sleep_ns(30000000);
    MUST_OK(lks_all_reduce(world, &x, &x, 1, LKS_I32, LKS_SUM, &(lks_collective_options){.timeout_ms = INT64_MAX}));
    MUST(x == size * (size - 1) / 2);
    if (rank == 1) lksi_sleep_ns(30000000);
    if (rank == 1) MUST_OK(lks_send(world, &x, 1, LKS_I32, 0, 0));
    if (rank == 0) MUST_OK(lks_recv(world, &x, 1, LKS_I32, 1, 0, NULL));
    lks_group_destroy(world);
    return 0;
}

static void a_deadline_may_be_any_number_of_milliseconds(void **state) {
    (void)state;
    run_threads(2, wait_without_end, NULL);
    run_processes(2, wait_without_end, "shm");
    run_processes(2, wait_without_end, "tcp");
}

/* Binds all ranks to the first allowed CPU, then alternately to the first two. */
static int wait_on_own_cpus(int rank, int size, void *argument) {
    const char *transport = argument;
    for (int n_used = 1; n_used <= 2; n_used++) {
        cpu_set_t allowed, own;
        lks_group *world;
        size_t cpu = 0;
        int n_skipped = rank % n_used;
        MUST(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
        while (!CPU_ISSET(cpu, &allowed) || n_skipped-- > 0) cpu++;
        CPU_ZERO(&own);
        CPU_SET(cpu, &own);
        MUST(sched_setaffinity(0, sizeof own, &own) == 0);
        MUST_OK(lks_init(&world, &(lks_init_options){.transport = transport}));
        MUST(world->may_spin == (size <= n_used));
        MUST_OK(lks_barrier(world, NULL));
        lks_group_destroy(world);
        MUST(sched_setaffinity(0, sizeof allowed, &allowed) == 0);
    }
    return 0;
}

static void ranks_bound_to_cpus_of_their_own_may_spin(void **state) {
    (void)state;
    if (lksi_cpu_count() < 2) skip();
    for (int size = 2; size <= 3; size++) {
        run_processes(size, wait_on_own_cpus, "shm");
        run_processes(size, wait_on_own_cpus, "tcp");
    }
}

/* The launcher says that all ranks are on one host. LOCKSTEP_HOST_ID says the same, or that two ranks at a time share a
 * host. */
static int meet_on_told_hosts(int rank, int size, void *argument) {
    bool is_divided = *(bool *)argument;
    lks_group *world;
    float x = 1;
    setenv("LOCKSTEP_HOST_ID", is_divided && rank >= 2 ? "b" : "a", 1);
    if (rank == 0) unsetenv("LOCAL_RANK"), unsetenv("LOCAL_WORLD_SIZE"); /* the default is the same */
    lks_status status = lks_init(&world, &(lks_init_options){.transport = "shm"});
    MUST(status == (is_divided ? LKS_ERR_ARGUMENT : LKS_OK));
    if (status == LKS_OK) lks_group_destroy(world);
    if (is_divided) MUST_SAY(rank >= 2 ? "2 of 4 ranks have LOCKSTEP_HOST_ID 'b'" : "LOCKSTEP_HOST_ID 'a'");
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_all_reduce(world, &x, &x, 1, LKS_F32, LKS_SUM, NULL));
    MUST(x == (float)size);
    MUST(lks_group_local_size(world) == (is_divided ? 2 : 4));
    MUST(lks_group_local_rank(world) == (is_divided ? rank % 2 : rank));
    MUST(strcmp(lks_group_transport(world), is_divided ? "tcp" : "shm") == 0);
    MUST(strcmp(lksi_group_last_algorithm(world), is_divided ? "two_level" : "direct") == 0);
    lks_counters counters;
    lks_group_counters(world, &counters);
    uint64_t n_between_hosts = is_divided && rank % 2 == 0 ? 1 : 0;
    MUST(counters.n_messages == n_between_hosts && counters.n_message_nbytes == n_between_hosts * sizeof x);
    lks_group_destroy(world);
    return 0;
}

static void the_host_id_goes_before_what_the_launcher_says(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool is_divided = i != 0;
        run_processes(4, meet_on_told_hosts, &is_divided);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_world_that_was_refused_does_not_count), /* first: this process has had no world yet */
        cmocka_unit_test(one_process_is_a_world),
        cmocka_unit_test(threads_meet),
        cmocka_unit_test(processes_meet),
        cmocka_unit_test(a_world_can_be_joined_again),
        cmocka_unit_test(a_deadline_may_be_any_number_of_milliseconds),
        cmocka_unit_test(ranks_bound_to_cpus_of_their_own_may_spin),
        cmocka_unit_test(the_host_id_goes_before_what_the_launcher_says),
    };
    return run_group(tests);
}
