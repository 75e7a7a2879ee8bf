/* labels: no-tsan */
/* Training with compressed gradients: all ranks agree, the result is close to that of exact gradients, and unsupported
 * combinations are refused. */
#include "strategy_run.h"

#include <float.h>
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
    /* The gradients, the residuals, the errors of the current step, and what is sent. */
    assert_true(nbytes >= 4 * plain_nbytes - 1024 && nbytes <= 4 * plain_nbytes + 1024);
    assert_int_equal(bf16.step_allocations, 0);
}

/* --- a refused step between two others --- */

enum { R_BATCH = 2, R_WIDTH = 96, R_COUNT = R_WIDTH * R_WIDTH, R_STEPS_OF_ZERO = 8 };

typedef enum refusal { NOT_REFUSED, NO_SAMPLES, TOO_MANY_SAMPLES, NOT_FINITE, N_REFUSALS } refusal;

/* How the ranks are connected. */
typedef struct refused_way {
    const char *transport;
    int is_attached;
} refused_way;

typedef struct refused_run {
    lks_compression compression;
    refusal refusal;
    int is_attached;
} refused_run;

typedef struct refused_rank {
    lks_group *group;
    lks_graph *graph;
    lks_node *x, *y, *loss;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_program *program;
    float features[R_BATCH * R_WIDTH];
    int32_t labels[R_BATCH];
} refused_rank;

static void refused_build(refused_rank *s) {
    s->graph = lks_graph_create(lks_device_default(s->group));
    s->x = lks_input(s->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, R_WIDTH});
    s->y = lks_input(s->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_linear_with(s->x, R_WIDTH, "fc", &(lks_linear_options){.no_bias = 1});
    s->loss = lks_cross_entropy(h, s->y);
}

/* The weight has several buckets, except with PowerSGD. */
static int refused_create(refused_rank *s, const refused_run *r) {
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 1});
    if (r->refusal == NOT_FINITE) rule.clip_norm = 1e6; /* only to look at the norm */
    const lks_distributed_options options = {
        .seed = 3, .strategy = LKS_STRATEGY_BUCKETED, .bucket_nbytes = 1, .compression = r->compression};
    refused_build(s);
    RANK_OK(lks_distributed_store_create(&s->store, s->group, s->loss, &options));
    RANK_OK(lks_distributed_optimizer_create(&s->optimizer, s->group, s->store, &rule));
    if (r->is_attached) s->optimizer->may_overlap = true; /* even if there are too few CPUs */
    RANK_OK(lks_program_create(&s->program, s->store,
                               &(lks_program_options){.batch = R_BATCH, .is_training = 1, .loss = s->loss}));
    if (r->is_attached) RANK_OK(lks_distributed_optimizer_attach(s->optimizer, s->program));
    RANK_OK(lks_program_set_input(s->program, s->x, s->features));
    RANK_OK(lks_program_set_input(s->program, s->y, s->labels));
    return 0;
}

static void refused_destroy(refused_rank *s) {
    lks_program_destroy(s->program);
    lks_distributed_optimizer_destroy(s->optimizer);
    lks_store_destroy(s->store);
    lks_graph_destroy(s->graph);
}

/* Features of 0 give a gradient of 0. */
static int refused_pass(refused_rank *s, uint64_t step, float scale) {
    int rank = lks_group_rank(s->group);
    for (uint64_t i = 0; i < R_BATCH * R_WIDTH; i++)
        s->features[i] = scale > 0 ? scale * (float)lksi_random_normal(step, (uint64_t)rank, i) : 0;
    for (int i = 0; i < R_BATCH; i++) s->labels[i] = R_BATCH * rank + i;
    RANK_OK(lks_program_forward(s->program));
    RANK_OK(lks_program_backward(s->program, R_BATCH));
    return 0;
}

static int refuse_step(refused_rank *s, refusal how) {
    double n_samples = how == NO_SAMPLES ? 0 : how == TOO_MANY_SAMPLES ? DBL_MAX : R_BATCH;
    if (how != NO_SAMPLES)
        RANK_CHECK(refused_pass(s, 1, how == NOT_FINITE && lks_group_rank(s->group) == 1 ? INFINITY : 1) == 0);
    RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &(lks_step_sums){.n_samples = n_samples}, NULL) ==
               (how == NOT_FINITE ? LKS_ERR_NUMERIC : LKS_ERR_ARGUMENT));
    return 0;
}

/* A step, a step that is refused, and steps whose gradients are 0: they bring what the first step left out. */
static int step_with_a_refusal(refused_rank *s, const refused_run *r, float weight[R_COUNT]) {
    RANK_CHECK(refused_create(s, r) == 0);
    for (int step = 0; step <= R_STEPS_OF_ZERO; step++) {
        RANK_CHECK(refused_pass(s, 0, step == 0) == 0);
        RANK_OK(lks_distributed_optimizer_step(s->optimizer, &(lks_step_sums){.n_samples = R_BATCH}, NULL));
        if (step == 0 && r->refusal != NOT_REFUSED) RANK_CHECK(refuse_step(s, r->refusal) == 0);
    }
    RANK_OK(lks_check_replicas(s->group, s->store));
    RANK_OK(lks_store_read(s->store, 0, weight));
    refused_destroy(s);
    return 0;
}

/* The two ranks' gradients have rank 2 each. So PowerSGD of rank 2 has applied all after two steps. The tolerance is a
 * few roundings of weights of about 1. What a step in 16 bits leaves out is about 2^-12 of the gradient or more. */
static int compare_with_no_refusal(void *argument) {
    const refused_way *way = argument;
    static float exact[R_COUNT], undisturbed[R_COUNT], weight[R_COUNT];
    refused_rank s = {0};
    RANK_OK(lks_init(&s.group, &(lks_init_options){.transport = way->transport}));
    RANK_CHECK(step_with_a_refusal(&s, &(refused_run){.compression = {.kind = LKS_COMPRESS_NONE}}, exact) == 0);
    for (int k = 0; kinds[k].kind != LKS_COMPRESS_USER; k++)
        for (int how = 0; how < N_REFUSALS; how++) {
            const refused_run r = {kinds[k], (refusal)how, way->is_attached};
            RANK_CHECK(step_with_a_refusal(&s, &r, weight) == 0);
            int n_lost = 0;
            for (int i = 0; i < R_COUNT; i++) n_lost += !(fabsf(weight[i] - exact[i]) <= 0x1p-20f);
            if (n_lost > 0) fprintf(stderr, "kind %d, refusal %d: %d weights lost something\n", k, how, n_lost);
            RANK_CHECK(n_lost == 0);
            if (how == NOT_REFUSED) memcpy(undisturbed, weight, sizeof weight);
            RANK_CHECK(memcmp(weight, undisturbed, sizeof weight) == 0);
        }
    lks_group_destroy(s.group);
    return 0;
}

static void a_refused_step_leaves_no_trace(void **state) {
    (void)state;
    static const refused_way ways[] = {{"shm", 0}, {"tcp", 0}, {"tcp", 1}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (lks_spawn(2, LKS_PROCESSES, compare_with_no_refusal, (void *)(uintptr_t)&ways[i]) != LKS_OK)
            fail_msg("way %zu: %s", i, lks_error_text());
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
        cmocka_unit_test(a_refused_step_leaves_no_trace), /* must be first: it forks, so no thread may exist yet */
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
