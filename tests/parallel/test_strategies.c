/* labels: busy */
/* Every strategy gives the same bits, with any transport, number of ranks and bucket size, overlapped or not. */
#define _GNU_SOURCE /* affinity */
#include "strategy_run.h"

#include "comm/ranks.h"

#include <sched.h>
#include <sys/mman.h>

static const int sizes[] = {1, 2, 3, 5, 8};
static const size_t bucket_sizes[] = {1, 100000, 1 << 30}; /* bytes: the minimum, a few buckets, a single bucket */
static const int few_sizes[] = {2, 3, 8};
enum { N_SIZES = IS_SLOW_BUILD ? 3 : 5, N_FEW_SIZES = IS_SLOW_BUILD ? 1 : 3, N_BUCKET_SIZES = IS_SLOW_BUILD ? 1 : 3 };

static void check_same(const strategy_run *r, const strategy_run *shared, int size) {
    for (int rank = 0; rank < size; rank++) assert_string_equal(r->hex[rank], shared->hex[0]);
    assert_true(r->norm == shared->norm && r->loss == shared->loss);
}

/* --- as processes, which are forked before any thread starts --- */

static int train_process(int rank, int size, void *argument) {
    (void)rank, (void)size;
    return strategy_train(argument);
}

static void compare_processes(strategy_run plan, int size, strategy_run *r) {
    plan.strategy = LKS_STRATEGY_SHARED, plan.transport = "shm";
    *r = plan;
    run_processes(size, train_process, r);
    strategy_run shared = *r;
    for (int is_tcp = size == 1; is_tcp < 2; is_tcp++)
        for (int strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
            plan.strategy = (lks_strategy)strategy;
            plan.transport = is_tcp && size > 1 ? "tcp" : "shm";
            plan.bucket_nbytes = is_tcp ? 100000 : 1;
            plan.is_attached = 1;
            *r = plan;
            run_processes(size, train_process, r);
            check_same(r, &shared, size);
        }
}

static void processes_give_the_same_bits_by_every_strategy(void **state) {
    (void)state;
    strategy_run *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(r != MAP_FAILED);
    for (int i = IS_ABOUT_THREADS ? N_SIZES : IS_SLOW_BUILD ? 2 : 0; i < N_SIZES; i++)
        compare_processes((strategy_run){.clip_norm = i % 2 == 0 ? 0 : 0.1, .has_idle_ranks = 1}, sizes[i], r);
    compare_processes((strategy_run){.is_recurrent = 1, .clip_norm = 0.1}, 2, r);
    if (!IS_ABOUT_THREADS) compare_processes((strategy_run){.n_pieces = 2}, 3, r);
    munmap(r, sizeof *r);
}

/* With default options over tcp, the bucket size is measured and the strategy is bucketed. */
static int choose_by_itself(int rank, int size, void *argument) {
    (void)argument, (void)rank;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.transport = "tcp"};
    MUST(s != NULL);
    MUST(strategy_create(s, &plan) == 0);
    MUST(lksi_store_strategy(s->store) == (size > 1 ? LKS_STRATEGY_BUCKETED : LKS_STRATEGY_SHARED));
    size_t nbytes = 0;
    int64_t mine, least, greatest;
    MUST_OK(lksi_bucket_nbytes_find(s->group, 1 << 20, &nbytes));
    mine = (int64_t)nbytes;
    MUST(mine >= 64 << 10 && mine <= 1 << 16); /* at least 16 buckets of at least 64 KiB */
    MUST_OK(lks_all_reduce(s->group, &mine, &least, 1, LKS_I64, LKS_MIN, NULL));
    MUST_OK(lks_all_reduce(s->group, &mine, &greatest, 1, LKS_I64, LKS_MAX, NULL));
    MUST(least == greatest);
    strategy_destroy(s);
    return 0;
}

static void over_tcp_the_bucket_size_is_measured_and_agreed(void **state) {
    (void)state;
    run_processes(3, choose_by_itself, NULL);
}

/* If the bits depend on where buckets are cut, nothing is measured. Creation takes only the optimizer's exchange and a
 * split. */
static int create_without_measuring(int rank, int size, void *argument) {
    (void)rank, (void)size;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_counters before, after;
    MUST(s != NULL);
    MUST_OK(lks_init(&s->group, &(lks_init_options){.transport = "tcp", .order = *(lks_order *)argument}));
    strategy_build(s);
    MUST_OK(lks_distributed_store_create(&s->store, s->group, s->loss, NULL));
    lks_group_counters(s->group, &before);
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    MUST_OK(lks_distributed_optimizer_create(&s->optimizer, s->group, s->store, &rule));
    lks_group_counters(s->group, &after);
    MUST(after.n_collectives - before.n_collectives == 2);
    strategy_destroy(s);
    return 0;
}

static void where_sums_depend_on_the_buckets_their_size_is_fixed(void **state) {
    (void)state;
    setenv("LOCKSTEP_ALGORITHM", "all_reduce=ring", 1);
    run_processes(2, create_without_measuring, &(lks_order){LKS_ORDER_CANONICAL});
    unsetenv("LOCKSTEP_ALGORITHM");
    run_processes(2, create_without_measuring, &(lks_order){LKS_ORDER_ANY});
}

static int ask_for_shared_over_tcp(int rank, int size, void *argument) {
    (void)argument, (void)rank, (void)size;
    strategy_rank *s = lksi_alloc(sizeof *s);
    MUST(s != NULL);
    MUST_OK(lks_init(&s->group, &(lks_init_options){.transport = "tcp"}));
    strategy_build(s);
    MUST(lks_distributed_store_create(&s->store, s->group, s->loss,
                                      &(lks_distributed_options){.strategy = LKS_STRATEGY_SHARED}) ==
         LKS_ERR_UNSUPPORTED);
    MUST_SAY("strategy 'shared' needs ranks that share memory; the 2 ranks of this group talk over tcp");
    s->store = NULL;
    MUST_OK(lks_barrier(s->group, NULL)); /* the group is usable */
    strategy_destroy(s);
    return 0;
}

static void a_shared_replica_over_tcp_is_refused(void **state) {
    (void)state;
    run_processes(2, ask_for_shared_over_tcp, NULL);
}

/* A rank dies while the others are in their backward passes or wait for the step. Before that, both of them have told
 * it that they left the previous call. */
static int lose_a_rank(int rank, int size, void *argument) {
    (void)size, (void)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.transport = "tcp", .bucket_nbytes = 1, .is_attached = 1};
    lks_step_sums mine;
    MUST(s != NULL);
    MUST(strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    char word = 0;
    if (rank == 1) {
        MUST_OK(lks_recv(s->group, &word, 1, LKS_U8, 0, 0, NULL));
        MUST_OK(lks_recv(s->group, &word, 1, LKS_U8, 2, 0, NULL));
        _exit(3);
    }
    MUST_OK(lks_send(s->group, &word, 1, LKS_U8, 1, 0));
    MUST(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    MUST(lks_distributed_optimizer_step(s->optimizer, &mine, NULL) == LKS_ERR_PEER);
    MUST_SAY("rank 1");
    strategy_destroy(s);
    return 0;
}

static void a_rank_lost_during_the_backward_pass_is_named_by_the_step(void **state) {
    (void)state;
    pid_t pids[3];
    set_master_environment();
    for (int rank = 0; rank < 3; rank++) pids[rank] = start_process(rank, 3, lose_a_rank, NULL);
    await_processes(pids, 3, 1);
}

/* --- as threads --- */

static bool are_factors_offered(void) {
    const lks_device *device = lks_device_default(NULL);
    return device->ops->row_product != NULL && device->ops->row_product(device) != NULL;
}

/* If the device supports it, an attached shared replica multiplies the factors of gradients in the step. */
static void compare_factors(const strategy_run *shared, strategy_run r, int size) {
    r.strategy = LKS_STRATEGY_SHARED, r.is_attached = 1;
    run_ranks(size, strategy_train, &r);
    check_same(&r, shared, size);
    bool are_left = are_factors_offered() && size > 1 && r.clip_norm == 0 && !r.is_recurrent && r.n_pieces == 0;
    int n_idle = r.has_idle_ranks ? (S_STEPS + size - 1) / size : 0; /* steps in which rank 0 is idle */
    assert_int_equal(r.n_factored, are_left ? S_STEPS - n_idle : 0);
    if (!r.has_idle_ranks) assert_int_equal(r.step_allocations, 0);
}

static void compare(strategy_run plan, int size) {
    static strategy_run shared, r;
    shared = plan, shared.strategy = LKS_STRATEGY_SHARED;
    run_ranks(size, strategy_train, &shared);
    compare_factors(&shared, plan, size);
    for (int strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int i = 0; i < N_BUCKET_SIZES; i++)
            for (int is_attached = 0; is_attached < 2; is_attached++) {
                r = plan, r.strategy = (lks_strategy)strategy, r.bucket_nbytes = bucket_sizes[i];
                r.is_attached = is_attached;
                run_ranks(size, strategy_train, &r);
                check_same(&r, &shared, size);
                assert_true(strategy == LKS_STRATEGY_BUCKETED ? i > 0 || r.n_buckets >= 3 : r.n_buckets == 1);
                if (!plan.has_idle_ranks) assert_int_equal(r.step_allocations, 0);
            }
}

static void strategies_and_buckets_give_the_same_bits(void **state) {
    (void)state;
    for (int i = IS_SLOW_BUILD ? 2 : 0; i < N_SIZES; i++) compare((strategy_run){0}, sizes[i]);
}

static void so_they_do_with_clipping(void **state) {
    (void)state;
    for (int i = 0; i < N_FEW_SIZES; i++) compare((strategy_run){.clip_norm = 0.1}, few_sizes[i]);
}

/* In an LSTM, one bias gradient is a copy of the other. */
static void so_they_do_where_gradients_are_made_of_others(void **state) {
    (void)state;
    for (int i = 0; i < N_FEW_SIZES && few_sizes[i] <= 3; i++)
        compare((strategy_run){.is_recurrent = 1, .clip_norm = 0.1 * i}, few_sizes[i]);
}

static void so_they_do_where_ranks_have_no_samples(void **state) {
    (void)state;
    for (int i = 0; i < N_FEW_SIZES; i++) compare((strategy_run){.has_idle_ranks = 1, .clip_norm = i}, few_sizes[i]);
}

static void so_they_do_where_pieces_are_put_aside(void **state) {
    (void)state;
    for (int i = 0; i < N_FEW_SIZES; i++) compare((strategy_run){.n_pieces = 2}, few_sizes[i]);
    compare((strategy_run){.n_pieces = 2, .has_idle_ranks = 1, .clip_norm = 0.2}, 3);
}

/* Enough steps for a shared replica to try both ways. */
static void so_they_do_through_the_caches_and_past_them(void **state) {
    (void)state;
    static strategy_run shared, bucketed;
    for (int i = IS_SLOW_BUILD ? 3 : 0; i < 4; i++) {
        int size = i < 2 ? 2 : 3;
        shared =
            (strategy_run){.n_steps = 26, .clip_norm = i % 2 * 0.1, .strategy = LKS_STRATEGY_SHARED, .is_attached = 1};
        bucketed = shared, bucketed.strategy = LKS_STRATEGY_BUCKETED;
        run_ranks(size, strategy_train, &shared);
        run_ranks(size, strategy_train, &bucketed);
        check_same(&bucketed, &shared, size);
        assert_int_equal(bucketed.n_past_caches, 0);
        assert_true(shared.n_past_caches >= (lksi_can_pass_caches() ? 12 : 0) && shared.n_past_caches < 15);
    }
}

static void state_is_divided_among_the_ranks(void **state) {
    (void)state;
    static strategy_run r;
    size_t whole = 0;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int size = 1; size <= 4; size += IS_SLOW_BUILD ? 2 : 1) {
            r = (strategy_run){.strategy = (lks_strategy)strategy, .bucket_nbytes = 100000};
            run_ranks(size, strategy_train, &r);
            size_t sum = 0, n_copies = strategy == LKS_STRATEGY_BUCKETED ? (size_t)size : 1;
            for (int rank = 0; rank < size; rank++) sum += r.memory[rank].optimizer_state_nbytes;
            if (whole == 0) whole = sum;
            size_t padding = strategy == LKS_STRATEGY_SHARDED ? 2 * sizeof(float) * LKSI_NORM_BLOCK * (size_t)size : 0;
            assert_true(sum >= n_copies * whole && sum <= n_copies * whole + padding);
            assert_true(2 * r.memory[0].gradients_nbytes >= whole);
            assert_true(r.memory[0].parameters_nbytes * (strategy == LKS_STRATEGY_SHARED ? (size_t)size : 1) * 2 + 64 >
                        whole);
        }
}

/* --- errors --- */

static int disagree(void *argument) {
    const lks_distributed_options *options = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    RANK_CHECK(s != NULL);
    RANK_OK(lks_init(&s->group, NULL));
    strategy_build(s);
    RANK_CHECK(lks_distributed_store_create(&s->store, s->group, s->loss, &options[lks_group_rank(s->group)]) ==
               LKS_ERR_MISMATCH);
    s->store = NULL;
    strategy_destroy(s);
    return 0;
}

static void ranks_with_other_strategies_or_buckets_are_told_so(void **state) {
    (void)state;
    run_ranks(2, disagree, ((lks_distributed_options[]){{.strategy = LKS_STRATEGY_SHARDED}, {0}}));
    run_ranks(2, disagree, ((lks_distributed_options[]){{.bucket_nbytes = 4096}, {.bucket_nbytes = 8192}}));
}

/* --- gradients left as factors by a shared replica: they are not sent, and do not exist as tensors --- */

/* Runs a pass of an attached program twice, then a step. Then runs a pass again and calls `meddle`. */
static int leave_factors(lks_status (*meddle)(strategy_rank *, const lks_step_sums *)) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = LKS_STRATEGY_SHARED, .is_attached = 1};
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    for (int twice = 0; twice < 2; twice++) RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    RANK_CHECK((lksi_factored_left(s->optimizer) != 0) == are_factors_offered());
    RANK_CHECK(meddle(s, &mine) == (are_factors_offered() ? LKS_ERR_STATE : LKS_OK));
    strategy_destroy(s);
    return 0;
}

static lks_status accumulate(strategy_rank *s, const lks_step_sums *mine) {
    return lks_distributed_optimizer_accumulate(s->optimizer, mine);
}

static lks_status read_gradient(strategy_rank *s, const lks_step_sums *mine) {
    (void)mine;
    static _Thread_local float gradient[S_FEATURES * 96];
    return lks_store_read_gradient(s->store, lks_store_find(s->store, "fc1.weight"), gradient);
}

static lks_status check_gradients(strategy_rank *s, const lks_step_sums *mine) {
    (void)mine;
    return lks_check_gradients(s->group, s->store, 1);
}

/* Takes the step with another optimizer of the store. */
static lks_status step_by_another(strategy_rank *s, const lks_step_sums *mine) {
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_distributed_optimizer *another;
    LKS_TRY(lks_distributed_optimizer_create(&another, s->group, s->store, &rule));
    LKS_TRY(lks_barrier(s->group, NULL));
    lks_status status = lks_distributed_optimizer_step(another, mine, NULL);
    lks_distributed_optimizer_destroy(another);
    return status == LKS_ERR_PEER ? LKS_ERR_STATE : status; /* this rank may get the other rank's error */
}

/* The optimizer whose step would have multiplied the factors was destroyed. */
static lks_status step_by_the_next(strategy_rank *s, const lks_step_sums *mine) {
    lks_distributed_optimizer_destroy(s->optimizer);
    s->optimizer = NULL;
    return step_by_another(s, mine);
}

static int put_factors_aside(void *argument) { return (void)argument, leave_factors(accumulate); }
static int read_factors(void *argument) { return (void)argument, leave_factors(read_gradient); }
static int check_factors(void *argument) { return (void)argument, leave_factors(check_gradients); }
static int hand_factors_over(void *argument) { return (void)argument, leave_factors(step_by_another); }
static int leave_factors_behind(void *argument) { return (void)argument, leave_factors(step_by_the_next); }

/* Each rank multiplies as much of a weight as it owns. */
static int find_own_part(void *argument) {
    (void)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = LKS_STRATEGY_SHARED};
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    size_t offset, count, mine = 0, size = (size_t)lks_group_size(s->group);
    lksi_store_place(s->store, lks_store_find(s->store, "fc1.weight"), &offset, &count);
    for (size_t i = 0; i < s->optimizer->n_buckets; i++) {
        size_t begin = s->optimizer->buckets[i].mine_begin, end = s->optimizer->buckets[i].mine_end;
        if (begin < offset) begin = offset;
        if (end > offset + count) end = offset + count;
        if (end > begin) mine += end - begin;
    }
    if (are_factors_offered())
        RANK_CHECK(mine >= count / size - 16 && mine <= count / size + 16); /* within a cache line */
    strategy_destroy(s);
    return 0;
}

static void what_factors_take_to_multiply_is_divided_evenly(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) run_ranks(size, find_own_part, NULL);
}

static void factors_are_no_gradients_to_anybody(void **state) {
    (void)state;
    run_ranks(2, put_factors_aside, NULL);
    run_ranks(2, read_factors, NULL);
    run_ranks(2, check_factors, NULL);
    run_ranks(2, hand_factors_over, NULL);
    run_ranks(2, leave_factors_behind, NULL);
}

typedef struct company {
    lks_strategy strategy;
    int has_another, is_kept;
    char hex[65];
} company;

/* Takes two steps. If `has_another`, another optimizer of the store is created between the first pass and its step. */
static int step_in_company(void *argument) {
    company *c = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = c->strategy, .is_attached = 1};
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_distributed_optimizer *another = NULL;
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    for (int step = 0; step < 2; step++) {
        strategy_fill(s, step);
        RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
        if (c->has_another && step == 0) RANK_OK(lks_distributed_optimizer_create(&another, s->group, s->store, &rule));
        if (!c->is_kept) lks_distributed_optimizer_destroy(another), another = NULL;
        RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    }
    RANK_OK(lks_check_replicas(s->group, s->store));
    if (lks_group_rank(s->group) == 0) RANK_OK(lks_store_sha256(s->store, c->hex));
    RANK_OK(lks_barrier(s->group, NULL));
    lks_distributed_optimizer_destroy(another);
    strategy_destroy(s);
    return 0;
}

static void another_optimizer_of_the_store_changes_no_bit(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        company alone = {.strategy = (lks_strategy)strategy};
        run_ranks(2, step_in_company, &alone);
        for (int is_kept = 0; is_kept < 2; is_kept++) {
            company c = {.strategy = (lks_strategy)strategy, .has_another = 1, .is_kept = is_kept};
            run_ranks(2, step_in_company, &c);
            assert_string_equal(c.hex, alone.hex);
        }
    }
}

/* An attached pass, then a pass of a program that is not attached. The step uses the second. */
typedef struct mixture {
    lks_strategy strategy;
    int has_first;
    char hex[65];
} mixture;

static int mix_passes(void *argument) {
    mixture *m = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = m->strategy, .is_attached = 1};
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    if (m->has_first) RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    plan.is_attached = 0;
    if (lks_symmetric_supported(s->group)) {
        RANK_CHECK(strategy_compute(s, &plan, 4, 12, &mine) == 0);
        RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
        RANK_OK(lks_check_replicas(s->group, s->store));
        if (lks_group_rank(s->group) == 0) RANK_OK(lks_store_sha256(s->store, m->hex));
        RANK_OK(lks_barrier(s->group, NULL));
    } else {
        lks_program *other;
        RANK_OK(lks_program_create(&other, s->store,
                                   &(lks_program_options){.batch = 8, .is_training = 1, .loss = s->loss}));
        RANK_CHECK(strategy_bind(s, &plan, 4, other) == 0);
        RANK_OK(lks_program_forward(other));
        lks_status status = lks_program_backward(other, 8);
        RANK_CHECK(status == LKS_ERR_STATE || status == LKS_ERR_PEER); /* this rank may get the other rank's error */
        lks_program_destroy(other);
    }
    strategy_destroy(s);
    return 0;
}

static void the_last_pass_counts_whoever_it_was(void **state) {
    (void)state;
    mixture alone = {.strategy = LKS_STRATEGY_SHARED};
    run_ranks(2, mix_passes, &alone);
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        mixture mixed = {.strategy = (lks_strategy)strategy, .has_first = 1};
        run_ranks(2, mix_passes, &mixed);
        assert_string_equal(alone.hex, mixed.hex);
    }
}

static int expect_another_number(void *argument) {
    strategy_run plan = {.strategy = *(lks_strategy *)argument};
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    lksi_expect_samples(s->optimizer, lks_group_rank(s->group) == 1 ? 9 : 8, &(lksi_batch_position){0});
    RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "rank 1 expects 9") != NULL);
    strategy_destroy(s);
    return 0;
}

static void what_one_rank_expects_is_checked_on_all(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        run_ranks(2, expect_another_number, &(lks_strategy){(lks_strategy)strategy});
}

/* The last two are RUN_TWICE with another optimizer of the store: it still exists (BESIDE), or was destroyed
 * (BEHIND). */
typedef enum misuse { PUT_ASIDE, RUN_TWICE, BRING_NOTHING, LEAVE, RUN_TWICE_BESIDE, RUN_TWICE_BEHIND } misuse;

static lks_status make_another(const strategy_rank *s, misuse how, lks_distributed_optimizer **another) {
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    if (how < RUN_TWICE_BESIDE) return LKS_OK;
    LKS_TRY(lks_distributed_optimizer_create(another, s->group, s->store, &rule));
    if (how == RUN_TWICE_BESIDE) return LKS_OK;
    lks_distributed_optimizer_destroy(*another);
    *another = NULL;
    return LKS_OK;
}

static int leave(strategy_rank *s) {
    RANK_OK(lksi_group_status(s->group));
    lks_distributed_optimizer_destroy(s->optimizer);
    s->optimizer = NULL;
    RANK_CHECK(lksi_group_status(s->group) == LKS_ERR_STATE);
    return 0;
}

static lks_status run_again(lks_program *program) {
    LKS_TRY(lks_program_forward(program));
    return lks_program_backward(program, 4);
}

static int use_wrongly(void *argument) {
    misuse how = *(misuse *)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED, .bucket_nbytes = 1, .is_attached = 1};
    lks_distributed_optimizer *another = NULL;
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    RANK_OK(make_another(s, how, &another));
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    if (lks_group_rank(s->group) == 0) {
        lks_status status = how == PUT_ASIDE ? lks_distributed_optimizer_accumulate(s->optimizer, &mine)
                            : how == BRING_NOTHING
                                ? lks_distributed_optimizer_step(s->optimizer, &(lks_step_sums){0}, NULL)
                            : how == LEAVE ? LKS_ERR_STATE /* what the other ranks are told */
                                           : run_again(s->programs[4]);
        RANK_CHECK(status == LKS_ERR_STATE);
        RANK_CHECK(how == LEAVE || strstr(lks_error_text(), "rank 0") != NULL);
        RANK_CHECK(how != LEAVE || leave(s) == 0);
    } else {
        RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL) == LKS_ERR_PEER);
        RANK_CHECK(strstr(lks_error_text(), how == LEAVE ? "rank 0 destroyed its optimizer" : "rank 0") != NULL);
    }
    char text[LKSI_ERROR_TEXT_NBYTES];
    lksi_error_keep(text);
    lks_distributed_optimizer_destroy(s->optimizer);
    s->optimizer = NULL;
    RANK_CHECK(strcmp(lks_error_text(), text) == 0);
    lks_distributed_optimizer_destroy(another);
    strategy_destroy(s);
    return 0;
}

static lks_status count_gradient(void *context, int index) {
    (void)index;
    ++*(int *)context;
    return LKS_OK;
}

/* A program is attached to an optimizer of a plain store that overlaps nothing. The previous optimizer gets no more
 * callbacks from it. A callback of the user stays. */
static int attach_elsewhere(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_group *alone;
    lks_distributed_optimizer *elsewhere;
    lks_step_sums mine;
    int n_told = 0;
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    lks_distributed_optimizer_destroy(s->optimizer);
    lks_store_destroy(s->store);
    RANK_OK(lks_group_split(s->group, lks_group_rank(s->group), 0, &alone));
    RANK_OK(lks_store_create(&s->store, s->loss, NULL));
    RANK_OK(lks_distributed_optimizer_create(&s->optimizer, s->group, s->store, &rule));
    RANK_OK(lks_distributed_optimizer_create(&elsewhere, alone, s->store, &rule));
    strategy_overlap(s);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, argument, 0, 4, &mine) == 0 && s->optimizer->n_told > 0);
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_OK(lks_distributed_optimizer_attach(elsewhere, s->programs[4]));
    RANK_OK(run_again(s->programs[4]));
    RANK_CHECK(s->optimizer->n_told == 0);
    RANK_OK(lks_distributed_optimizer_step(elsewhere, &mine, NULL));
    lks_on_gradient(s->programs[4], count_gradient, &n_told);
    RANK_OK(lks_distributed_optimizer_attach(elsewhere, s->programs[4]));
    RANK_OK(run_again(s->programs[4]));
    RANK_CHECK(n_told == lks_store_n_tensors(s->store));
    RANK_OK(lks_barrier(s->group, NULL));
    lks_distributed_optimizer_destroy(elsewhere);
    lks_group_destroy(alone);
    strategy_destroy(s);
    return 0;
}

static lks_status halve_gradient(void *context, int index) {
    size_t count;
    float *gradient = lks_store_gradient(context, index, &count);
    for (size_t i = 0; i < count; i++) gradient[i] *= 0.5f;
    return LKS_OK;
}

/* A step with a callback that was set before or after the program is attached, and one without. */
static int train_halved(const strategy_run *r, bool is_set_after, char hex[65]) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    RANK_OK(lks_program_create(&s->programs[4], s->store,
                               &(lks_program_options){.batch = 4, .is_training = 1, .loss = s->loss}));
    if (!is_set_after) lks_on_gradient(s->programs[4], halve_gradient, s->store);
    if (r->is_attached) RANK_OK(lks_distributed_optimizer_attach(s->optimizer, s->programs[4]));
    if (is_set_after) lks_on_gradient(s->programs[4], halve_gradient, s->store);
    for (int step = 0; step < 2; step++) {
        strategy_fill(s, step);
        RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
        RANK_CHECK((s->optimizer->n_told > 0) == r->is_attached);
        RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
        lks_on_gradient(s->programs[4], NULL, NULL);
    }
    RANK_OK(lks_store_sha256(s->store, hex));
    RANK_OK(lks_barrier(s->group, NULL));
    strategy_destroy(s);
    return 0;
}

static int change_told_gradients(void *argument) {
    strategy_run plan = *(const strategy_run *)argument;
    char apart[65], attached[65];
    RANK_CHECK(train_halved(&plan, false, apart) == 0);
    plan.is_attached = 1;
    for (int is_set_after = 0; is_set_after < 2; is_set_after++) {
        RANK_CHECK(train_halved(&plan, is_set_after != 0, attached) == 0);
        RANK_CHECK(strcmp(apart, attached) == 0);
    }
    return 0;
}

/* A barrier, and a collective of a higher room, between a backward pass and its step. The step still succeeds. */
static int use_the_group_meanwhile(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, argument, 0, 4, &mine) == 0);
    RANK_CHECK(lks_barrier(s->group, NULL) == LKS_ERR_STATE);
    RANK_CHECK(strstr(lks_error_text(), "barrier on rank ") != NULL);
    RANK_CHECK(lks_check_replicas(s->group, s->store) == LKS_ERR_STATE);
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_OK(lks_check_replicas(s->group, s->store));
    RANK_OK(lks_barrier(s->group, NULL));
    strategy_destroy(s);
    return 0;
}

/* The optimizer belongs to another store of the same model, in the same group. */
static int use_another_optimizer_meanwhile(void *argument) {
    strategy_run *plan = argument;
    strategy_rank *s = lksi_alloc(sizeof *s), *other = lksi_alloc(sizeof *other);
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_step_sums mine;
    RANK_CHECK(s != NULL && other != NULL && strategy_create(s, plan) == 0);
    *other = *s;
    RANK_OK(lks_distributed_store_create(
        &other->store, s->group, s->loss,
        &(lks_distributed_options){.strategy = plan->strategy, .bucket_nbytes = plan->bucket_nbytes}));
    RANK_OK(lks_distributed_optimizer_create(&other->optimizer, s->group, other->store, &rule));
    strategy_overlap(other);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(other, plan, 0, 4, &mine) == 0);
    RANK_OK(lks_distributed_optimizer_step(other->optimizer, &mine, NULL));
    RANK_CHECK(strategy_compute(s, plan, 0, 4, &mine) == 0);
    RANK_OK(lks_program_forward(other->programs[4]));
    RANK_CHECK(lks_program_backward(other->programs[4], 4) == LKS_ERR_STATE);
    RANK_CHECK(strstr(lks_error_text(), "the backward pass of another optimizer's program on rank ") != NULL);
    RANK_CHECK(lks_distributed_optimizer_step(other->optimizer, &mine, NULL) == LKS_ERR_STATE);
    RANK_CHECK(strstr(lks_error_text(), "another optimizer's step on rank ") != NULL);
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_CHECK(strategy_compute(other, plan, 0, 4, &mine) == 0);
    RANK_OK(lks_distributed_optimizer_step(other->optimizer, &mine, NULL));
    RANK_OK(lks_check_replicas(s->group, other->store));
    RANK_OK(lks_barrier(s->group, NULL));
    lks_program_destroy(other->programs[4]);
    lks_distributed_optimizer_destroy(other->optimizer);
    lks_store_destroy(other->store);
    lksi_free(other);
    strategy_destroy(s);
    return 0;
}

/* A thread reduces buckets during that time. */
static void over_tcp_the_group_belongs_to_the_backward_pass_until_its_step(void **state) {
    (void)state;
    lks_status status = LKS_OK;
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
    for (int how = PUT_ASIDE; how <= RUN_TWICE_BEHIND && status == LKS_OK; how++)
        status = lks_spawn(3, LKS_PROCESSES, use_wrongly, &(misuse){(misuse)how});
    for (int strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        strategy_run plan = {.strategy = (lks_strategy)strategy, .bucket_nbytes = 1, .is_attached = 1};
        if (status == LKS_OK) status = lks_spawn(3, LKS_PROCESSES, use_the_group_meanwhile, &plan);
        mixture sent = {.strategy = (lks_strategy)strategy, .has_first = 1};
        if (status == LKS_OK) status = lks_spawn(2, LKS_PROCESSES, mix_passes, &sent);
        if (status == LKS_OK) status = lks_spawn(3, LKS_PROCESSES, use_another_optimizer_meanwhile, &plan);
    }
    unsetenv("LOCKSTEP_TRANSPORT");
    if (status != LKS_OK) fail_msg("%s", lks_error_text());
}

static void over_tcp_a_program_may_go_over_to_another_optimizer(void **state) {
    (void)state;
    strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED, .transport = "tcp", .is_attached = 1};
    if (lks_spawn(2, LKS_PROCESSES, attach_elsewhere, &plan) != LKS_OK) fail_msg("%s", lks_error_text());
}

static void over_tcp_a_callback_changes_gradients_before_they_are_sent(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        strategy_run plan = {.strategy = (lks_strategy)strategy,
                             .transport = "tcp",
                             .bucket_nbytes = 1,
                             .rule = lks_sgd(&(lks_sgd_options){.lr = 0.1})};
        if (lks_spawn(2, LKS_PROCESSES, change_told_gradients, &plan) != LKS_OK) fail_msg("%s", lks_error_text());
    }
}

/* --- the order of events --- */

/* All buckets are reduced before the step. Only this test waits for that. */
static int reduce_before_the_step(void *argument) {
    enum { PATIENCE_S = 60 };
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_counters before, now;
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    strategy_fill(s, 0);
    lks_group_counters(s->group, &before);
    RANK_CHECK(strategy_compute(s, argument, 0, 4, &mine) == 0);
    int64_t began_ns = lksi_now_ns();
    do {
        lks_group_counters(s->group, &now);
        usleep(1000);
    } while (now.n_collectives - before.n_collectives < s->optimizer->n_buckets &&
             lksi_now_ns() - began_ns < PATIENCE_S * INT64_C(1000000000));
    RANK_CHECK(s->optimizer->n_buckets >= 3);
    RANK_CHECK(now.n_collectives - before.n_collectives == s->optimizer->n_buckets);
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    strategy_destroy(s);
    return 0;
}

static void over_tcp_attached_programs_have_their_buckets_reduced_before_the_step(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        strategy_run plan = {
            .strategy = (lks_strategy)strategy, .transport = "tcp", .bucket_nbytes = 1, .is_attached = 1};
        if (lks_spawn(2, LKS_PROCESSES, reduce_before_the_step, &plan) != LKS_OK) fail_msg("%s", lks_error_text());
    }
}

typedef struct broken_hook {
    int pause_us;
    atomic_bool is_running;
} broken_hook;

/* Fails on rank 1 from the second bucket on. */
static lks_status fail_on_rank_1(void *context, lks_group *group, const lks_bucket *bucket) {
    broken_hook *broken = context;
    if (lks_group_rank(group) == 1 && bucket->first > 0) {
        atomic_store(&broken->is_running, true);
        usleep((useconds_t)broken->pause_us);
        return lks_error_set(LKS_ERR_FILE, "the hook broke");
    }
    return lks_all_reduce(group, bucket->gradients, bucket->gradients, bucket->count, bucket->type, LKS_SUM, NULL);
}

/* The hook runs on the thread of the overlap. Rank 1's caller meanwhile exchanges figures in another group, and waits
 * there for rank 0, which comes only when it has heard of the error. */
static int fail_beside_the_step(void *argument) {
    broken_hook *broken = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED,
                         .transport = "tcp",
                         .bucket_nbytes = 1,
                         .is_attached = 1,
                         .compression = {.kind = LKS_COMPRESS_USER, .hook = fail_on_rank_1, .context = argument}};
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    if (lks_group_rank(s->group) == 0)
        while (lksi_group_status(s->group) == LKS_OK) usleep(1000);
    else
        while (!atomic_load(&broken->is_running)) usleep(1000); /* the step would put later buckets off */
    for (int i = 0; i < 2; i++) {                               /* and every later call */
        lks_status status =
            i == 0 ? lks_distributed_optimizer_step(s->optimizer, &mine, NULL) : lks_barrier(s->group, NULL);
        if (lks_group_rank(s->group) == 1) {
            RANK_CHECK(status == LKS_ERR_FILE && strcmp(lks_error_text(), "the hook broke") == 0);
        } else
            RANK_CHECK(status == LKS_ERR_PEER && strstr(lks_error_text(), "rank 1 gave up: the hook broke") != NULL);
    }
    strategy_destroy(s);
    return 0;
}

static void a_rank_whose_hook_fails_beside_its_step_gets_its_own_error(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) {
        broken_hook broken = {.pause_us = i % 4 * 5000};
        if (lks_spawn(2, LKS_PROCESSES, fail_beside_the_step, &broken) != LKS_OK) fail_msg("%s", lks_error_text());
    }
}

/* Creates the optimizer of a rank of `size` ranks that share one CPU. */
static int share_a_cpu(int rank, int size, void *argument) {
    strategy_run plan = {.transport = argument, .strategy = LKS_STRATEGY_BUCKETED};
    strategy_rank *s = lksi_alloc(sizeof *s);
    cpu_set_t allowed, one;
    size_t cpu = 0;
    (void)rank;
    MUST(s != NULL && sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    while (!CPU_ISSET(cpu, &allowed)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    MUST(sched_setaffinity(0, sizeof one, &one) == 0);
    MUST(strategy_create(s, &plan) == 0);
    MUST(lks_group_local_size(s->group) == size && !lksi_overlap_pays(s->optimizer));
    MUST_OK(lks_barrier(s->group, NULL));
    strategy_destroy(s);
    return 0;
}

static void ranks_without_a_cpu_for_a_thread_have_none(void **state) {
    (void)state;
    run_processes(1, share_a_cpu, "shm");
    run_processes(2, share_a_cpu, "shm");
    run_processes(2, share_a_cpu, "tcp");
}

static int create_large(void *argument) {
    const strategy_run *plan = argument;
    lks_group *group;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    RANK_OK(lks_init(&group, NULL));
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 1024});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_distributed_options options = {.strategy = plan->strategy, .bucket_nbytes = plan->bucket_nbytes};
    RANK_OK(lks_distributed_store_create(&store, group, lks_cross_entropy(lks_linear(x, 1280, "fc"), y), &options));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    RANK_CHECK(optimizer->n_buckets == 3);
    RANK_CHECK(optimizer->buckets[0].end == (1 << 20) / sizeof(float));
    RANK_CHECK(optimizer->buckets[1].end - optimizer->buckets[1].begin == plan->bucket_nbytes / sizeof(float));
    lks_distributed_optimizer_destroy(optimizer);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

static void the_first_bucket_is_small(void **state) {
    (void)state;
    run_ranks(2, create_large, (&(strategy_run){.strategy = LKS_STRATEGY_BUCKETED, .bucket_nbytes = 3 << 20}));
}

/* The strategy that `auto` chooses for ranks of one host with `n_outputs` times 1025 parameters. */
static int look_at_one(lks_group *group, int64_t n_outputs, lks_strategy expected) {
    lks_store *store;
    lks_graph *g = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, 1024});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(x, n_outputs, "fc"), y);
    RANK_OK(lks_distributed_store_create(&store, group, loss, NULL));
    RANK_CHECK(lksi_store_strategy(store) == expected);
    RANK_OK(lks_check_replicas(group, store));
    lks_store_destroy(store);
    lks_graph_destroy(g);
    return 0;
}

static int look_at_auto(void *argument) {
    (void)argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    int64_t most = ((64 << 20) / 2 / lks_group_size(group) - 64) / (1025 * (int64_t)sizeof(float));
    bool is_alone = lks_group_size(group) == 1;
    RANK_CHECK(look_at_one(group, 10, is_alone ? LKS_STRATEGY_SHARED : LKS_STRATEGY_SHARDED) == 0);
    RANK_CHECK(look_at_one(group, most, is_alone ? LKS_STRATEGY_SHARED : LKS_STRATEGY_SHARDED) == 0);
    RANK_CHECK(look_at_one(group, most + 2, LKS_STRATEGY_SHARED) ==
               0); /* most + 1 may still fit, because padding is not needed */
    lks_group_destroy(group);
    return 0;
}

static void ranks_of_one_host_have_copies_of_what_a_cache_holds(void **state) {
    (void)state;
    for (int size = IS_SLOW_BUILD ? 2 : 1; size <= (IS_SLOW_BUILD ? 2 : 3); size++) run_ranks(size, look_at_auto, NULL);
}

/* The hook of the first bucket, or of the last, fails on every rank. Without overlap the last is reduced first. */
static lks_status fail_at_an_end(void *context, lks_group *group, const lks_bucket *bucket) {
    const bool *is_last = context;
    if (*is_last ? bucket->first + bucket->count == bucket->n_elements : bucket->first == 0) return LKS_ERR_STATE;
    return lks_all_reduce(group, bucket->gradients, bucket->gradients, bucket->count, bucket->type, LKS_SUM, NULL);
}

/* Writes every tensor, which makes a store whole. */
static int write_all(lks_store *store) {
    static const float zeros[S_FEATURES * 96];
    char hex[65];
    for (int i = 0; i < lks_store_n_tensors(store); i++) {
        RANK_CHECK(lks_store_sha256(store, hex) == LKS_ERR_TORN);
        RANK_CHECK((size_t)lks_store_parameter(store, i).count <= sizeof zeros / sizeof *zeros);
        RANK_OK(lks_store_write(store, i, zeros));
    }
    RANK_OK(lks_store_sha256(store, hex));
    return 0;
}

static int fail_in_the_step(void *argument) {
    const bool is_before_the_update = *(bool *)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    char before[65], after[65];
    RANK_CHECK(s != NULL);
    strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED,
                         .bucket_nbytes = 1,
                         .compression = {.kind = LKS_COMPRESS_USER, .hook = fail_at_an_end, .context = argument}};
    RANK_CHECK(strategy_create(s, &plan) == 0);
    RANK_CHECK(s->optimizer->n_buckets > 1);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    RANK_OK(lks_store_sha256(s->store, before));
    RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL) != LKS_OK);
    if (is_before_the_update) {
        RANK_OK(lks_store_sha256(s->store, after));
        RANK_CHECK(strcmp(before, after) == 0);
    } else
        RANK_CHECK(write_all(s->store) == 0);
    strategy_destroy(s);
    return 0;
}

static void a_step_that_fails_in_its_update_leaves_torn_parameters(void **state) {
    (void)state;
    run_ranks(2, fail_in_the_step, &(bool){false});
}

static void a_step_that_fails_before_its_update_leaves_the_parameters(void **state) {
    (void)state;
    run_ranks(2, fail_in_the_step, &(bool){true});
}

/* Rank 1 fails while the others update: they have passed the first exchange with it, and wait for it after their
 * update. */
static int fail_while_it_takes_turns(void *argument) {
    (void)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = LKS_STRATEGY_SHARDED};
    lks_step_sums mine;
    char before[65], after[65];
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    RANK_OK(lks_store_sha256(s->store, before));
    RANK_OK(lks_barrier(s->group, NULL));
    if (lks_group_rank(s->group) == 1) {
        s->optimizer->own_message = (lksi_step_message){.sums = mine, .n_expected = -1};
        RANK_OK(lksi_step_exchange_messages(s->optimizer, s->group, "sharded_step"));
        lks_group_abort(s->group, "rank 1 dies for a test");
    } else
        RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL) != LKS_OK);
    RANK_OK(lks_store_sha256(s->store, after));
    RANK_CHECK(strcmp(before, after) == 0);
    strategy_destroy(s);
    return 0;
}

static void where_arrays_take_turns_parameters_are_never_torn(void **state) {
    (void)state;
    run_ranks(3, fail_while_it_takes_turns, NULL);
}

/* The arrays were swapped after the forward pass, so the values that it read are gone. */
static int step_between_the_passes(void *argument) {
    (void)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = LKS_STRATEGY_SHARDED};
    lks_step_sums mine;
    lks_program *other;
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    RANK_OK(
        lks_program_create(&other, s->store, &(lks_program_options){.batch = 8, .is_training = 1, .loss = s->loss}));
    RANK_CHECK(strategy_bind(s, &plan, 4, other) == 0);
    RANK_OK(lks_program_forward(other));
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_CHECK(lks_program_backward(other, 8) == LKS_ERR_STATE);
    RANK_OK(lks_program_forward(other));
    RANK_OK(lks_program_backward(other, 8));
    RANK_OK(lks_check_replicas(s->group, s->store));
    lks_program_destroy(other);
    strategy_destroy(s);
    return 0;
}

static void a_backward_pass_follows_its_forward_pass(void **state) {
    (void)state;
    run_ranks(2, step_between_the_passes, NULL);
}

/* A step of one rank that has lost the others is refused, too: it would train torn parameters and declare them whole.
 */
static int tear(void *argument) {
    (void)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED};
    lks_step_sums mine;
    char hex[65];
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    lksi_store_set_torn(s->store, true);
    RANK_CHECK(lks_store_sha256(s->store, hex) == LKS_ERR_TORN);
    RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL) == LKS_ERR_TORN);
    RANK_CHECK(lks_store_sha256(s->store, hex) == LKS_ERR_TORN);
    lksi_store_set_torn(s->store, false);
    RANK_OK(lks_store_sha256(s->store, hex));
    strategy_destroy(s);
    return 0;
}

static void parameters_in_the_middle_of_an_update_cannot_be_read(void **state) {
    (void)state;
    run_ranks(1, tear, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_give_the_same_bits_by_every_strategy),
        cmocka_unit_test(over_tcp_the_bucket_size_is_measured_and_agreed),
        cmocka_unit_test(where_sums_depend_on_the_buckets_their_size_is_fixed),
        cmocka_unit_test(a_shared_replica_over_tcp_is_refused),
        cmocka_unit_test(a_rank_lost_during_the_backward_pass_is_named_by_the_step),
        cmocka_unit_test(ranks_without_a_cpu_for_a_thread_have_none),
        cmocka_unit_test(over_tcp_attached_programs_have_their_buckets_reduced_before_the_step),
        cmocka_unit_test(a_rank_whose_hook_fails_beside_its_step_gets_its_own_error),
        cmocka_unit_test(over_tcp_the_group_belongs_to_the_backward_pass_until_its_step),
        cmocka_unit_test(over_tcp_a_program_may_go_over_to_another_optimizer),
        cmocka_unit_test(over_tcp_a_callback_changes_gradients_before_they_are_sent),
        cmocka_unit_test(strategies_and_buckets_give_the_same_bits),
        cmocka_unit_test(so_they_do_with_clipping),
        cmocka_unit_test(so_they_do_where_gradients_are_made_of_others),
        cmocka_unit_test(so_they_do_where_ranks_have_no_samples),
        cmocka_unit_test(so_they_do_where_pieces_are_put_aside),
        cmocka_unit_test(so_they_do_through_the_caches_and_past_them),
        cmocka_unit_test(state_is_divided_among_the_ranks),
        cmocka_unit_test(ranks_with_other_strategies_or_buckets_are_told_so),
        cmocka_unit_test(factors_are_no_gradients_to_anybody),
        cmocka_unit_test(what_factors_take_to_multiply_is_divided_evenly),
        cmocka_unit_test(another_optimizer_of_the_store_changes_no_bit),
        cmocka_unit_test(the_last_pass_counts_whoever_it_was),
        cmocka_unit_test(what_one_rank_expects_is_checked_on_all),
        cmocka_unit_test(the_first_bucket_is_small),
        cmocka_unit_test(ranks_of_one_host_have_copies_of_what_a_cache_holds),
        cmocka_unit_test(a_step_that_fails_in_its_update_leaves_torn_parameters),
        cmocka_unit_test(a_step_that_fails_before_its_update_leaves_the_parameters),
        cmocka_unit_test(where_arrays_take_turns_parameters_are_never_torn),
        cmocka_unit_test(a_backward_pass_follows_its_forward_pass),
        cmocka_unit_test(parameters_in_the_middle_of_an_update_cannot_be_read),
    };
    return run_group(tests);
}
