/* Symmetric memory that some ranks have freed or never had. */
#include "../ranks.h" /* not comm/ranks.h, which does not know launch/ */

#include "comm/bootstrap/thread_world.h"
#include "comm/comm_internal.h"

#include <lockstep/comm.h>

enum { COUNT = 20000 };

/* Freeing is not collective. Rank 1 frees its part and passes ordinary memory, the others pass their part. */
static int call_with_half_an_allocation(void *argument) {
    (void)argument;
    lks_group *group;
    void *symmetric;
    static _Thread_local float ordinary[COUNT];
    RANK_OK(lks_init(&group, NULL));
    RANK_OK(lks_symmetric_alloc(group, COUNT * sizeof(float), &symmetric));
    int rank = lks_group_rank(group);
    if (rank == 1) lks_symmetric_free(group, symmetric);
    float *data = rank == 1 ? ordinary : symmetric;
    for (int i = 0; i < COUNT; i++) data[i] = rank == 0 ? (float)i : 0;
    RANK_OK(lks_broadcast(group, data, COUNT, LKS_F32, 0, NULL));
    for (int i = 0; i < COUNT; i++) RANK_CHECK(data[i] == (float)i);
    RANK_OK(lks_all_reduce(group, data, data, COUNT, LKS_F32, LKS_SUM, NULL));
    for (int i = 0; i < COUNT; i++) RANK_CHECK(data[i] == 3 * (float)i);
    RANK_OK(lks_barrier(group, NULL));
    if (rank != 1) lks_symmetric_free(group, symmetric);
    lks_group_destroy(group);
    return 0;
}

static void collectives_work_where_one_rank_let_go_of_its_part(void **state) {
    (void)state;
    run_ranks(3, call_with_half_an_allocation, NULL);
}

/* A place has 24 bits for the number of its allocation. The test wraps it around. */
static int call_after_many_allocations(void *argument) {
    (void)argument;
    enum { OFFSET = 16 };
    lks_group *group;
    void *symmetric;
    RANK_OK(lks_init(&group, NULL));
    group->n_allocated = (1 << 24) - 2;
    for (int i = 0; i < 3; i++) {
        RANK_OK(lks_symmetric_alloc(group, (COUNT + OFFSET) * sizeof(float), &symmetric));
        float *data = (float *)symmetric + OFFSET;
        for (int k = 0; k < COUNT; k++) data[k] = (float)(k + lks_group_rank(group));
        RANK_OK(lks_all_reduce(group, data, data, COUNT, LKS_F32, LKS_SUM, NULL));
        for (int k = 0; k < COUNT; k++) RANK_CHECK(data[k] == (float)(2 * k + 1));
        lks_symmetric_free(group, symmetric);
    }
    lks_group_destroy(group);
    return 0;
}

static void collectives_work_after_millions_of_allocations(void **state) {
    (void)state;
    run_ranks(2, call_after_many_allocations, NULL);
}

/* The worker searches the list of buffers while the caller frees other ones. */
static int free_beside_a_work(void *argument) {
    (void)argument;
    enum { N_ROUNDS = 200, N_OTHERS = 4 };
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    for (int round = 0; round < N_ROUNDS; round++) {
        void *others[N_OTHERS], *symmetric;
        lks_work *works[N_OTHERS];
        for (int i = 0; i < N_OTHERS; i++) RANK_OK(lks_symmetric_alloc(group, 64, &others[i]));
        RANK_OK(lks_symmetric_alloc(group, COUNT * sizeof(float), &symmetric));
        float *data = symmetric;
        for (int i = 0; i < COUNT; i++) data[i] = (float)(i % 7);
        for (int i = 0; i < N_OTHERS; i++)
            RANK_OK(lks_all_reduce(group, data, data, COUNT, LKS_F32, LKS_SUM,
                                   &(lks_collective_options){.work = &works[i]}));
        for (int i = 0; i < N_OTHERS; i++) lks_symmetric_free(group, others[i]);
        for (int i = 0; i < N_OTHERS; i++) RANK_OK(lks_work_wait(works[i]));
        for (int i = 0; i < COUNT; i++) RANK_CHECK(data[i] == (float)(i % 7 * 16));
        RANK_OK(lks_barrier(group, NULL));
        lks_symmetric_free(group, symmetric);
    }
    lks_group_destroy(group);
    return 0;
}

static void a_buffer_is_freed_while_another_is_in_a_work(void **state) {
    (void)state;
    run_ranks(2, free_beside_a_work, NULL);
}

/* As by a rank 0 that gave up before the other rank had attached. */
static void memory_that_all_have_let_go_of_is_not_held_again(void **state) {
    (void)state;
    lksi_thread_world *world;
    void *base;
    assert_ok(lksi_thread_world_create(&world, 2));
    assert_ok(lksi_thread_block_create(world, 4096, &base));
    assert_true(lksi_thread_block_hold(world, base));
    lksi_thread_block_release(world, base);
    lksi_thread_block_release(world, base);
    assert_false(lksi_thread_block_hold(world, base));
    lksi_thread_world_destroy(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_work_where_one_rank_let_go_of_its_part),
        cmocka_unit_test(collectives_work_after_millions_of_allocations),
        cmocka_unit_test(a_buffer_is_freed_while_another_is_in_a_work),
        cmocka_unit_test(memory_that_all_have_let_go_of_is_not_held_again),
    };
    return run_group(tests);
}
