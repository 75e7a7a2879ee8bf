/* Data parallelism: both strategies give the same bits, and agree with one rank. */
#include "ranks.h"

#include "parallel/parallel_internal.h"

#include <lockstep/nn.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { GLOBAL_BATCH = 24, N_FEATURES = 6, N_CLASSES = 3, N_STEPS = 4, MAX_RANKS = 8, MAX_PARAMETERS = 256 };

/* How the ranks of a test train, and the results. */
typedef struct run {
    bool is_shared;
    int counts[MAX_RANKS]; /* samples of each rank; all 0: equal parts */
    int use_adam;
    char hex[MAX_RANKS][65];
    float values[MAX_PARAMETERS]; /* rank 0's, at the end */
    double loss;                  /* of the last step, over all ranks */
    int64_t step_allocations;     /* in the last step, of all ranks */
} run;

typedef struct model {
    lks_graph *graph;
    lks_node *x, *y, *loss;
} model;

static model build(int64_t n_hidden) {
    model m = {.graph = lks_graph_create(lks_device_default(NULL))};
    m.x = lks_input(m.graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    m.y = lks_input(m.graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_tanh(lks_linear(m.x, n_hidden, "fc1"));
    m.loss = lks_cross_entropy(lks_linear(h, N_CLASSES, "fc2"), m.y);
    return m;
}

static void fill_batch(int step, float *x, int32_t *y) {
    for (uint64_t i = 0; i < GLOBAL_BATCH * N_FEATURES; i++) x[i] = (float)lksi_random_normal(9, (uint64_t)step, i);
    for (int i = 0; i < GLOBAL_BATCH; i++) y[i] = (i + step) % N_CLASSES;
}

static int part_of(const run *r, int rank, int size, int *begin) {
    bool is_even = true;
    *begin = 0;
    for (int i = 0; i < size; i++) is_even = is_even && r->counts[i] == 0;
    if (is_even) {
        *begin = GLOBAL_BATCH * rank / size;
        return GLOBAL_BATCH * (rank + 1) / size - *begin;
    }
    for (int i = 0; i < rank; i++) *begin += r->counts[i];
    return r->counts[rank];
}

static int train_steps(run *r, lks_group *group, const model *m, lks_store *store) {
    static const lks_sgd_options sgd = {.lr = 0.5};
    int begin, count = part_of(r, lks_group_rank(group), lks_group_size(group), &begin);
    lks_optimizer rule = r->use_adam ? lks_adam(&(lks_adam_options){.lr = 0.05}) : lks_sgd(&sgd);
    lks_distributed_optimizer *optimizer;
    lks_program *program = NULL;
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    if (count > 0)
        RANK_OK(lks_program_create(&program, store,
                                   &(lks_program_options){.batch = count, .is_training = 1, .loss = m->loss}));
    float x[GLOBAL_BATCH * N_FEATURES];
    int32_t y[GLOBAL_BATCH];
    lks_step_sums sums = {0};
    for (int step = 0; step < N_STEPS; step++) {
        fill_batch(step, x, y);
        lks_step_sums mine = {.n_samples = count};
        int64_t before = lks_memory_allocation_count();
        if (count > 0) {
            RANK_OK(lks_program_set_input(program, m->x, x + begin * N_FEATURES));
            RANK_OK(lks_program_set_input(program, m->y, y + begin));
            RANK_OK(lks_program_forward(program));
            mine.loss = lks_program_scalar(program, m->loss) * count;
            RANK_OK(lks_program_backward(program, count));
        }
        RANK_OK(lks_distributed_optimizer_step(optimizer, &mine, &sums));
        if (lks_group_rank(group) == 0) r->step_allocations = lks_memory_allocation_count() - before;
        /* No rank may create or destroy objects while another still counts. */
        RANK_OK(lks_barrier(group, NULL));
    }
    if (lks_group_rank(group) == 0) r->loss = sums.loss / sums.n_samples;
    lks_program_destroy(program);
    lks_distributed_optimizer_destroy(optimizer);
    return 0;
}

static int train(void *argument) {
    run *r = argument;
    lks_group *group;
    lks_store *store;
    RANK_OK(lks_init(&group, NULL));
    int rank = lks_group_rank(group);
    model m = build(8);
    /* Private stores start with different values on every rank. The broadcast must make them equal. */
    if (r->is_shared) {
        RANK_OK(lks_distributed_store_create(&store, group, m.loss, &(lks_distributed_options){.seed = 3}));
    } else {
        RANK_OK(lks_store_create(&store, m.loss, &(lks_store_options){.seed = rank == 0 ? 3 : 100}));
        RANK_OK(lks_broadcast_parameters(group, store));
    }
    RANK_OK(lks_check_replicas(group, store));
    RANK_CHECK(train_steps(r, group, &m, store) == 0);
    RANK_OK(lks_check_replicas(group, store));
    RANK_OK(lks_store_sha256(store, r->hex[rank]));
    if (rank == 0) memcpy(r->values, lksi_store_values(store), lksi_store_padded_count(store) * sizeof(float));
    RANK_OK(lks_barrier(group, NULL));
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void both_strategies_give_the_same_bits_on_all_ranks(void **state) {
    (void)state;
    for (int size = 1; size <= MAX_RANKS; size++)
        for (int use_adam = 0; use_adam < 2; use_adam++) {
            run shared = {.is_shared = true, .use_adam = use_adam}, private = {.use_adam = use_adam};
            run_ranks(size, train, &shared);
            run_ranks(size, train, &private);
            for (int rank = 0; rank < size; rank++) {
                assert_string_equal(shared.hex[rank], shared.hex[0]);
                assert_string_equal(private.hex[rank], shared.hex[0]);
            }
            assert_true(shared.loss == private.loss);
        }
}

/* f32 sums in another order differ by a few roundings of the largest term, over 4 steps with lr 0.5. */
static void check_like_one_rank(run *r, int size) {
    run one = {.is_shared = true};
    run_ranks(1, train, &one);
    run_ranks(size, train, r);
    for (int i = 0; i < MAX_PARAMETERS; i++) assert_true(fabsf(one.values[i] - r->values[i]) <= 2e-6f);
    assert_true(fabs(one.loss - r->loss) < 1e-6);
}

static void any_number_of_ranks_trains_like_one(void **state) {
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size++) {
        run r = {.is_shared = true};
        check_like_one_rank(&r, size);
    }
}

static void uneven_and_empty_parts_are_weighted_exactly(void **state) {
    (void)state;
    static const int splits[][MAX_RANKS] = {{1, 23}, {0, 24}, {24, 0}, {5, 0, 19}, {7, 1, 0, 16}, {3, 3, 3, 3, 3, 9}};
    static const int sizes[] = {2, 2, 2, 3, 4, 6};
    for (int i = 0; i < 6; i++)
        for (int is_shared = 0; is_shared < 2; is_shared++) {
            run r = {.is_shared = is_shared};
            memcpy(r.counts, splits[i], sizeof r.counts);
            check_like_one_rank(&r, sizes[i]);
        }
}

static void a_step_allocates_nothing(void **state) {
    (void)state;
    run shared = {.is_shared = true}, private = {0};
    run_ranks(3, train, &shared);
    run_ranks(3, train, &private);
    assert_int_equal(shared.step_allocations, 0);
    assert_int_equal(private.step_allocations, 0);
}

static int build_different_models(void *argument) {
    char(*texts)[1024] = argument;
    lks_group *group;
    lks_store *store;
    RANK_OK(lks_init(&group, NULL));
    int rank = lks_group_rank(group);
    model m = build(rank == 1 ? 9 : 8);
    RANK_CHECK(lks_distributed_store_create(&store, group, m.loss, NULL) == LKS_ERR_MISMATCH);
    snprintf(texts[rank], sizeof texts[rank], "%s", lks_error_text());
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void ranks_with_different_models_are_told_so_before_training(void **state) {
    (void)state;
    char texts[3][1024];
    run_ranks(3, build_different_models, texts);
    for (int rank = 0; rank < 3; rank++) assert_non_null(strstr(texts[rank], "parameter fc1.weight"));
}

static int spoilt_rank;

static int spoil_one_replica(void *argument) {
    char(*texts)[1024] = argument;
    lks_group *group;
    lks_store *store;
    RANK_OK(lks_init(&group, NULL));
    int rank = lks_group_rank(group);
    model m = build(8);
    RANK_OK(lks_store_create(&store, m.loss, NULL));
    int bias = lks_store_find(store, "fc1.bias");
    float values[64];
    RANK_OK(lks_store_read(store, bias, values));
    if (rank == spoilt_rank) values[0] += 1e-7f;
    RANK_OK(lks_store_write(store, bias, values));
    RANK_CHECK(lks_check_replicas(group, store) == LKS_ERR_MISMATCH);
    snprintf(texts[rank], sizeof texts[rank], "%s", lks_error_text());
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void a_replica_that_differs_is_named_with_its_parameter(void **state) {
    (void)state;
    char texts[4][1024], expected[64];
    for (spoilt_rank = 0; spoilt_rank < 4; spoilt_rank += 2) {
        run_ranks(4, spoil_one_replica, texts);
        snprintf(expected, sizeof expected, "parameter 'fc1.bias' of rank %d", spoilt_rank);
        for (int rank = 0; rank < 4; rank++) {
            assert_non_null(strstr(texts[rank], expected));
            assert_non_null(strstr(texts[rank], "which 3 of 4 ranks have"));
        }
    }
}

/* Two seeds, a step, lks_broadcast_parameters, a step. */
static int begin_with_own_values(void *argument) {
    (void)argument;
    const lks_step_sums mine = {.n_samples = 1};
    const lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_distributed_optimizer *optimizer;
    lks_group *group;
    lks_store *store;
    size_t count;
    RANK_OK(lks_init(&group, NULL));
    model m = build(8);
    RANK_OK(lks_store_create(&store, m.loss, &(lks_store_options){.seed = (uint64_t)lks_group_rank(group) + 1}));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    RANK_CHECK(lks_store_gradient(store, 0, &count) != NULL); /* gradients written by hand: zeros */
    RANK_CHECK(lks_distributed_optimizer_step(optimizer, &mine, NULL) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), "weight' of rank 1 ") != NULL);
    RANK_CHECK(strstr(lks_error_text(), "lks_broadcast_parameters makes them equal") != NULL);
    RANK_OK(lks_broadcast_parameters(group, store));
    RANK_CHECK(lks_store_gradient(store, 0, &count) != NULL);
    RANK_OK(lks_distributed_optimizer_step(optimizer, &mine, NULL));
    RANK_OK(lks_check_replicas(group, store));
    lks_distributed_optimizer_destroy(optimizer);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void replicas_that_begin_with_other_values_are_told_so(void **state) {
    (void)state;
    run_ranks(2, begin_with_own_values, NULL);
}

/* The last rank's parameters are torn, then rank 0's. */
static int broadcast_over_torn_parameters(void *argument) {
    (void)argument;
    lks_group *group;
    lks_store *store;
    char hex[65];
    RANK_OK(lks_init(&group, NULL));
    model m = build(8);
    RANK_OK(lks_store_create(&store, m.loss, NULL));
    if (lks_group_rank(group) == lks_group_size(group) - 1) lksi_store_set_torn(store, true);
    RANK_OK(lks_broadcast_parameters(group, store));
    RANK_OK(lks_check_replicas(group, store));
    if (lks_group_rank(group) == 0) lksi_store_set_torn(store, true);
    RANK_CHECK(lks_broadcast_parameters(group, store) == LKS_ERR_TORN);
    RANK_CHECK(strstr(lks_error_text(), "rank 0's parameters are torn") != NULL);
    RANK_CHECK(lks_store_sha256(store, hex) == (lks_group_rank(group) == 0 ? LKS_ERR_TORN : LKS_OK));
    RANK_OK(lks_barrier(group, NULL));
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void parameters_of_another_rank_replace_torn_ones(void **state) {
    (void)state;
    for (int size = 2; size <= 3; size++) run_ranks(size, broadcast_over_torn_parameters, NULL);
}

/* If a rank dies between the barriers, its update count is odd or behind the others'. The test sets such counts. */
static int die_in_an_update(void *argument) {
    const uint64_t *counts = argument;
    lks_group *group;
    lks_store *store;
    char hex[65];
    RANK_OK(lks_init(&group, NULL));
    model m = build(8);
    RANK_OK(lks_distributed_store_create(&store, group, m.loss,
                                         &(lks_distributed_options){.strategy = LKS_STRATEGY_SHARED}));
    RANK_OK(lks_store_sha256(store, hex));
    RANK_OK(lks_barrier(group, NULL));
    if (lks_group_rank(group) == 1) {
        for (int rank = 0; rank < 2; rank++)
            atomic_store(&lksi_store_replica(store)->update_counts[rank].count, counts[rank]);
        lks_group_abort(group, "rank 1 dies for a test");
    }
    RANK_CHECK(lks_barrier(group, NULL) != LKS_OK);
    bool is_whole = counts[0] == counts[1] && counts[0] % 2 == 0;
    RANK_CHECK(lks_store_sha256(store, hex) == (is_whole ? LKS_OK : LKS_ERR_TORN));
    RANK_CHECK(is_whole || strstr(lks_error_text(), "rank 1 did not finish") != NULL);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void torn_parameters_cannot_be_read(void **state) {
    (void)state;
    const uint64_t counts[][2] = {{0, 1}, {4, 3}, {4, 2}, {2, 3}, {4, 4}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        run_ranks(2, die_in_an_update, (void *)(uintptr_t)counts[i]);
}

/* The rules are equal, but their padding bytes differ. */
static int create_with_other_padding(void *argument) {
    (void)argument;
    lks_group *group;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    RANK_OK(lks_init(&group, NULL));
    model m = build(8);
    RANK_OK(lks_distributed_store_create(&store, group, m.loss, NULL));
    lks_optimizer rule;
    memset(&rule, lks_group_rank(group) == 0 ? 0 : 0xff, sizeof rule);
    rule.kind = LKS_OPTIMIZER_SGD, rule.lr = 0.1, rule.is_nesterov = rule.decays_matrices_only = 0;
    rule.momentum = rule.weight_decay = rule.beta1 = rule.beta2 = rule.epsilon = rule.clip_norm = 0;
    rule.schedule.kind = LKS_SCHEDULE_CONSTANT, rule.schedule.n_steps = rule.schedule.n_warm_up = 0;
    rule.schedule.first = rule.schedule.last = rule.schedule.rising = rule.schedule.warm_up_first = 0;
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    RANK_OK(lks_barrier(group, NULL));
    lks_distributed_optimizer_destroy(optimizer);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void rules_are_compared_by_their_fields(void **state) {
    (void)state;
    run_ranks(2, create_with_other_padding, NULL);
}

static int step_without_samples(void *argument) {
    (void)argument;
    lks_group *group;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    RANK_OK(lks_init(&group, NULL));
    model m = build(8);
    lks_optimizer sgd = lks_sgd(&(lks_sgd_options){0}), bad = lks_sgd(&(lks_sgd_options){.momentum = 2});
    RANK_OK(lks_distributed_store_create(&store, group, m.loss, NULL));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &sgd));
    RANK_CHECK(lks_distributed_optimizer_step(optimizer, &(lks_step_sums){0}, NULL) == LKS_ERR_ARGUMENT);
    RANK_OK(lks_barrier(group, NULL)); /* the group is usable */
    lks_distributed_optimizer_destroy(optimizer);
    RANK_CHECK(lks_distributed_optimizer_create(&optimizer, group, store, &bad) == LKS_ERR_ARGUMENT);
    RANK_CHECK(lks_distributed_optimizer_create(&optimizer, group, store, NULL) == LKS_ERR_ARGUMENT);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void senseless_steps_and_rules_are_refused(void **state) {
    (void)state;
    run_ranks(1, step_without_samples, NULL);
}

/* Each kind of call runs in a group of its own. A NULL argument on rank 0 alone fails the group, and rank 1 does not
 * wait. */
enum {
    CREATE_WITHOUT_STORE,
    CREATE_NOWHERE,
    REPLICAS_WITHOUT_STORE,
    GRADIENTS_WITHOUT_STORE,
    BROADCAST_WITHOUT_STORE,
    CREATE_WITHOUT_RULE
};

static int give_nothing_on_rank_0(void *argument) {
    static const char *const texts[] = {"distributed_optimizer_create: `store` is NULL",
                                        "distributed_optimizer_create: `optimizer` is NULL",
                                        "check_replicas: `store` is NULL",
                                        "check_gradients: `store` is NULL",
                                        "broadcast_parameters: `store` is NULL",
                                        "learning rate"};
    int what = *(const int *)argument;
    lks_group *group;
    lks_store *store;
    lks_distributed_optimizer *optimizer = NULL;
    RANK_OK(lks_init(&group, NULL));
    model m = build(8);
    RANK_OK(lks_store_create(&store, m.loss, NULL));
    bool is_odd = lks_group_rank(group) == 0;
    lks_store *given = is_odd && what != CREATE_NOWHERE && what != CREATE_WITHOUT_RULE ? NULL : store;
    lks_optimizer sgd = lks_sgd(NULL);
    const lks_optimizer *rule = is_odd && what == CREATE_WITHOUT_RULE ? NULL : &sgd;
    lks_distributed_optimizer **made = is_odd && what == CREATE_NOWHERE ? NULL : &optimizer;
    lks_status status = what == REPLICAS_WITHOUT_STORE    ? lks_check_replicas(group, given)
                        : what == GRADIENTS_WITHOUT_STORE ? lks_check_gradients(group, given, 1)
                        : what == BROADCAST_WITHOUT_STORE ? lks_broadcast_parameters(group, given)
                                                          : lks_distributed_optimizer_create(made, group, given, rule);
    RANK_CHECK(status == (is_odd ? LKS_ERR_ARGUMENT : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(), texts[what]) != NULL);
    RANK_CHECK(optimizer == NULL);
    RANK_CHECK(lks_barrier(group, NULL) != LKS_OK);
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void what_one_rank_was_not_given_fails_all(void **state) {
    (void)state;
    for (int what = CREATE_WITHOUT_STORE; what <= CREATE_WITHOUT_RULE; what++)
        run_ranks(2, give_nothing_on_rank_0, &what);
}

static void a_group_that_is_null_is_refused(void **state) {
    (void)state;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    model m = build(8);
    lks_optimizer sgd = lks_sgd(NULL);
    assert_ok(lks_store_create(&store, m.loss, NULL));
    assert_int_equal(lks_distributed_optimizer_create(&optimizer, NULL, store, &sgd), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "distributed_optimizer_create: `group` is NULL");
    assert_int_equal(lks_check_replicas(NULL, store), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "check_replicas: `group` is NULL");
    assert_int_equal(lks_check_gradients(NULL, store, 1), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "check_gradients: `group` is NULL");
    assert_int_equal(lks_broadcast_parameters(NULL, store), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "broadcast_parameters: `group` is NULL");
    assert_int_equal(lks_compare_options(NULL, NULL, 0), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "compare_options: `group` is NULL");
    lks_store_destroy(store);
    assert_int_equal(lks_distributed_store_create(&store, NULL, m.loss, NULL), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "distributed_store_create: `group` is NULL");
    lks_graph_destroy(m.graph);
}

static atomic_int n_said;
static void count_line(const char *line) { n_said += strstr(line, "'forgotten.weight', 'forgotten.bias'\n") != NULL; }

static int forget_a_layer(void *argument) {
    (void)argument;
    lks_group *group;
    lks_store *store;
    RANK_OK(lks_init(&group, NULL));
    model m = build(4);
    (void)lks_linear(m.x, 2, "forgotten");
    RANK_OK(lks_distributed_store_create(&store, group, m.loss, NULL));
    lks_store_destroy(store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void a_layer_that_is_not_connected_is_named_once(void **state) {
    (void)state;
    lksi_log_set_writer(count_line);
    run_ranks(3, forget_a_layer, NULL);
    lksi_log_set_writer(NULL);
    assert_int_equal(n_said, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_strategies_give_the_same_bits_on_all_ranks),
        cmocka_unit_test(any_number_of_ranks_trains_like_one),
        cmocka_unit_test(uneven_and_empty_parts_are_weighted_exactly),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(ranks_with_different_models_are_told_so_before_training),
        cmocka_unit_test(a_replica_that_differs_is_named_with_its_parameter),
        cmocka_unit_test(replicas_that_begin_with_other_values_are_told_so),
        cmocka_unit_test(parameters_of_another_rank_replace_torn_ones),
        cmocka_unit_test(torn_parameters_cannot_be_read),
        cmocka_unit_test(rules_are_compared_by_their_fields),
        cmocka_unit_test(senseless_steps_and_rules_are_refused),
        cmocka_unit_test(what_one_rank_was_not_given_fails_all),
        cmocka_unit_test(a_group_that_is_null_is_refused),
        cmocka_unit_test(a_layer_that_is_not_connected_is_named_once),
    };
    return run_group(tests);
}
