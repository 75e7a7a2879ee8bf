/* labels: no-tsan */
/* Training with compressed gradients: all ranks agree, the result is close to that of exact gradients, and unsupported
 * combinations are refused. */
#include "strategy_run.h"

#include <lockstep/train.h>
#include <math.h>

static lks_status sum_exactly(void *context, lks_group *group, const lks_bucket *bucket) {
    (void)context;
    return lks_all_reduce(group, bucket->gradients, bucket->gradients, bucket->count, bucket->type, LKS_SUM, NULL);
}

static const lks_compression kinds[] = {{.kind = LKS_COMPRESS_BF16},
                                        {.kind = LKS_COMPRESS_F16},
                                        {.kind = LKS_COMPRESS_POWERSGD, .rank = 2},
                                        {.kind = LKS_COMPRESS_USER, .hook = sum_exactly}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0], SMALL_BUCKET_NBYTES = 100 << 10 };

/* strategy_train also checks that all ranks end with the same bits. */
static void train(strategy_run *r, int size) {
    run_ranks(size, strategy_train, r);
    for (int rank = 1; rank < size; rank++) assert_string_equal(r->hex[rank], r->hex[0]);
}

static void it_trains_like_exact_gradients(void **state) {
    (void)state;
    /* Relative to the loss after two steps of Adam at 1e-2, which about halve it. Sources: rounding, and a rank of 2
     * instead of 96. */
    static const double distance[N_KINDS] = {0.01, 0.01, 0.3, 0};
    strategy_run exact = {.strategy = LKS_STRATEGY_BUCKETED};
    train(&exact, 3);
    for (int k = 0; k < N_KINDS; k++) {
        strategy_run r = {.compression = kinds[k], .bucket_nbytes = SMALL_BUCKET_NBYTES, .is_attached = 1};
        train(&r, 3);
        if (fabs(r.loss - exact.loss) > distance[k] * exact.loss)
            fail_msg("kind %d: loss %g, and %g by exact gradients", k, r.loss, exact.loss);
        assert_true((strcmp(r.hex[0], exact.hex[0]) == 0) == (kinds[k].kind == LKS_COMPRESS_USER));
        assert_true(kinds[k].kind == LKS_COMPRESS_POWERSGD ? r.n_buckets == 1 : r.n_buckets > 2);
    }
}

static void overlap_pieces_and_idle_ranks_change_nothing_in_which_ranks_agree(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int size = 1; size <= 4; size++) {
            strategy_run after = {.compression = kinds[k], .bucket_nbytes = SMALL_BUCKET_NBYTES, .clip_norm = 0.5};
            strategy_run during = after, odd = after;
            during.is_attached = 1;
            odd.is_attached = odd.has_idle_ranks = 1;
            odd.n_pieces = 2;
            train(&after, size);
            train(&during, size);
            train(&odd, size);
            assert_string_equal(during.hex[0], after.hex[0]);
            assert_true(isfinite(odd.loss));
        }
}

static void what_it_keeps_is_counted(void **state) {
    (void)state;
    strategy_run exact = {.strategy = LKS_STRATEGY_BUCKETED}, bf16 = {.compression = kinds[0]};
    train(&exact, 2);
    train(&bf16, 2);
    size_t plain_nbytes = exact.memory[0].gradients_nbytes, nbytes = bf16.memory[0].gradients_nbytes;
    assert_true(nbytes >= 3 * plain_nbytes - 1024 &&
                nbytes <= 3 * plain_nbytes + 1024); /* the errors, and what is sent */
    assert_int_equal(bf16.step_allocations, 0);
}

/* --- refusals --- */

static int other_strategies_refuse(void *argument) {
    const lks_strategy *strategy = argument;
    lks_store *store;
    strategy_rank *s = lksi_alloc(sizeof *s);
    RANK_OK(lks_init(&s->group, NULL));
    strategy_build(s);
    RANK_CHECK(lks_distributed_store_create(
                   &store, s->group, s->loss,
                   &(lks_distributed_options){.strategy = *strategy, .compression = kinds[0]}) == LKS_ERR_UNSUPPORTED);
    RANK_CHECK(strstr(lks_error_text(), *strategy == LKS_STRATEGY_SHARED
                                            ? "only bucketed gradients are compressed; strategy 'shared' was asked for"
                                            : "strategy 'sharded' was asked for") != NULL);
    strategy_destroy(s);
    return 0;
}

static void strategies_without_sums_of_gradients_refuse(void **state) {
    (void)state;
    lks_strategy shared = LKS_STRATEGY_SHARED, sharded = LKS_STRATEGY_SHARDED;
    run_ranks(2, other_strategies_refuse, &shared);
    run_ranks(2, other_strategies_refuse, &sharded);
}

static int ranks_differ(void *argument) {
    (void)argument;
    lks_store *store;
    strategy_rank *s = lksi_alloc(sizeof *s);
    RANK_OK(lks_init(&s->group, NULL));
    strategy_build(s);
    lks_compression mine = {.kind = LKS_COMPRESS_POWERSGD, .rank = 1 + lks_group_rank(s->group)};
    RANK_CHECK(lks_distributed_store_create(&store, s->group, s->loss,
                                            &(lks_distributed_options){.compression = mine}) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "compression") != NULL);
    strategy_destroy(s);
    return 0;
}

static int say_the_same_otherwise(void *argument) {
    (void)argument;
    lks_store *store;
    strategy_rank *s = lksi_alloc(sizeof *s);
    RANK_OK(lks_init(&s->group, NULL));
    strategy_build(s);
    lks_compression mine = {.kind = LKS_COMPRESS_POWERSGD, .rank = lks_group_rank(s->group) == 0 ? 0 : 4};
    RANK_OK(lks_distributed_store_create(&store, s->group, s->loss, &(lks_distributed_options){.compression = mine}));
    lks_store_destroy(store);
    strategy_destroy(s);
    return 0;
}

static void the_default_rank_is_the_rank_that_it_is(void **state) {
    (void)state;
    run_ranks(2, say_the_same_otherwise, NULL);
}

static int one_cannot_be_meant(void *argument) {
    (void)argument;
    lks_store *store;
    strategy_rank *s = lksi_alloc(sizeof *s);
    RANK_OK(lks_init(&s->group, NULL));
    strategy_build(s);
    int rank = lks_group_rank(s->group);
    lks_compression mine = {.kind = LKS_COMPRESS_POWERSGD, .rank = rank == 1 ? -1 : 1};
    lks_status status =
        lks_distributed_store_create(&store, s->group, s->loss, &(lks_distributed_options){.compression = mine});
    RANK_CHECK(status == (rank == 1 ? LKS_ERR_ARGUMENT : LKS_ERR_PEER));
    strategy_destroy(s);
    return 0;
}

static void ranks_that_compress_differently_are_told(void **state) {
    (void)state;
    run_ranks(2, ranks_differ, NULL);
    run_ranks(3, one_cannot_be_meant, NULL);
}

static int grains_refuse(void *argument) {
    (void)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_trainer *trainer;
    RANK_OK(lks_init(&s->group, NULL));
    strategy_build(s);
    RANK_CHECK(lks_trainer_create(&trainer, s->loss,
                                  &(lks_trainer_options){.group = s->group,
                                                         .features = s->x,
                                                         .labels = s->y,
                                                         .optimizer = lks_sgd(&(lks_sgd_options){.lr = 0.1}),
                                                         .grains = 2,
                                                         .compression = kinds[0]}) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "with 2 grains gradients cannot be compressed") != NULL);
    strategy_destroy(s);
    return 0;
}

static void bits_for_every_number_of_ranks_and_compression_exclude_each_other(void **state) {
    (void)state;
    run_ranks(2, grains_refuse, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_trains_like_exact_gradients),
        cmocka_unit_test(overlap_pieces_and_idle_ranks_change_nothing_in_which_ranks_agree),
        cmocka_unit_test(what_it_keeps_is_counted),
        cmocka_unit_test(the_default_rank_is_the_rank_that_it_is),
        cmocka_unit_test(strategies_without_sums_of_gradients_refuse),
        cmocka_unit_test(ranks_that_compress_differently_are_told),
        cmocka_unit_test(bits_for_every_number_of_ranks_and_compression_exclude_each_other),
    };
    return run_group(tests);
}
