/* comm/: splitting groups. */
#include "test.h"

#include "ranks.h"

#include <sys/resource.h>
#include <unistd.h>

static int sum_of_ones(lks_group *group) {
    int32_t one = 1, sum = 0;
    return lks_all_reduce(group, &one, &sum, 1, LKS_I32, LKS_SUM, NULL) == LKS_OK ? (int)sum : -1;
}

/* The odd and the even ranks, in reverse order. The last rank joins no group. */
static int halves(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world, *half;
    MUST_OK(lks_init(&world, NULL));
    bool is_out = rank == size - 1 && size > 1;
    MUST_OK(lks_group_split(world, is_out ? -1 : rank % 2, -rank, &half));
    if (is_out) {
        MUST(half == NULL);
    } else {
        int n_members = size > 1 ? size - 1 : 1, n_mine = (n_members + 1 - rank % 2) / 2;
        MUST(lks_group_size(half) == n_mine);
        MUST(lks_group_rank(half) == n_mine - 1 - rank / 2);
        MUST(sum_of_ones(half) == n_mine);
        int32_t told = rank;
        MUST_OK(lks_broadcast(half, &told, 1, LKS_I32, 0, NULL));
        MUST(told == rank % 2 + 2 * (n_mine - 1));
        void *buffer;
        MUST_OK(lks_symmetric_alloc(half, 100000, &buffer));
        memset(buffer, rank, 100000);
        MUST_OK(lks_all_reduce(half, buffer, buffer, 100000, LKS_U8, LKS_MAX, NULL));
        MUST(((unsigned char *)buffer)[99999] == rank % 2 + 2 * (n_mine - 1));
    }
    MUST(sum_of_ones(world) == size); /* the old group remains usable */
    lks_group_destroy(half);
    MUST(sum_of_ones(world) == size);
    lks_group_destroy(world);
    return 0;
}

/* A group split from a split group, used after both parents are destroyed. */
static int generations(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world, *all, *pair;
    MUST_OK(lks_init(&world, NULL));
    MUST_OK(lks_group_split(world, 7, 0, &all));
    MUST(lks_group_size(all) == size && lks_group_rank(all) == rank);
    lks_group_destroy(world);
    MUST_OK(lks_group_split(all, rank / 2, rank, &pair));
    lks_group_destroy(all);
    MUST(sum_of_ones(pair) == (rank / 2 * 2 + 1 < size ? 2 : 1));
    lks_group_destroy(pair);
    return 0;
}

static int dies_in_part(int rank, int size, void *argument) {
    (void)size, (void)argument;
    lks_group *world, *part;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000}));
    MUST_OK(lks_group_split(world, rank == 0 ? -1 : 0, 0, &part));
    if (rank == 2) raise(SIGKILL);
    if (rank == 1) {
        MUST(sum_of_ones(part) == -1);
        MUST_SAY("rank 2 (host"); /* its rank in the world; in the part it has rank 1 */
        MUST_SAY("was lost");
    }
    lks_group_destroy(part);
    lks_group_destroy(world);
    return 0;
}

static void splitting_gives_the_ranks_of_a_color_in_the_order_of_their_keys(void **state) {
    (void)state;
    for (int size = 1; size <= 7; size++) run_threads(size, halves, NULL);
    for (int size = 1; size <= 5; size += 2) run_processes(size, halves, NULL);
}

static void a_group_outlives_the_group_it_was_split_from(void **state) {
    (void)state;
    for (int size = 1; size <= 5; size++) run_threads(size, generations, NULL);
    run_processes(4, generations, NULL);
}

static void a_death_is_named_in_a_group_that_the_first_rank_is_not_part_of(void **state) {
    (void)state;
    pid_t pids[3];
    set_master_environment();
    for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, dies_in_part, NULL);
    await_processes(pids, 3, 2);
}

/* Rank 0 has no descriptors for the second group, for which the others may already have arrived. */
static int split_in_vain(int rank, int size, void *argument) {
    (void)argument;
    lks_group *world, *first, *second;
    int32_t one = 1, n = 0;
    struct rlimit limit;
    MUST_OK(lks_init(&world, &(lks_init_options){.timeout_ms = 20000, .transport = "tcp"}));
    MUST_OK(lks_group_split(world, 0, rank, &first));
    MUST_OK(lks_all_reduce(first, &one, &n, 1, LKS_I32, LKS_SUM, NULL)); /* so that its connections exist */
    MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int lowest_free = dup(0);
    MUST(lowest_free >= 0 && close(lowest_free) == 0);
    const struct rlimit none_left = {(rlim_t)lowest_free, limit.rlim_max};
    if (rank == 0) MUST(setrlimit(RLIMIT_NOFILE, &none_left) == 0);
    MUST(lks_group_split(world, 0, rank, &second) != LKS_OK);
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    MUST_OK(lks_all_reduce(first, &one, &n, 1, LKS_I32, LKS_SUM, NULL));
    MUST(n == size);
    lks_group_destroy(first);
    lks_group_destroy(world);
    return 0;
}

static void a_group_that_cannot_be_made_loses_nobody(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) run_processes(4, split_in_vain, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splitting_gives_the_ranks_of_a_color_in_the_order_of_their_keys),
        cmocka_unit_test(a_group_outlives_the_group_it_was_split_from),
        cmocka_unit_test(a_death_is_named_in_a_group_that_the_first_rank_is_not_part_of),
        cmocka_unit_test(a_group_that_cannot_be_made_loses_nobody),
    };
    return run_group(tests);
}
