/* Clipping by the global norm, and accumulation: both strategies give the same bits, and agree with one rank. */
#include "ranks.h"

#include "parallel/parallel_internal.h"

#include <lockstep/nn.h>
#include <math.h>
#include <string.h>

enum { BATCH = 24, N_FEATURES = 96, N_HIDDEN = 128, N_CLASSES = 3, N_STEPS = 4, MAX_RANKS = 5, MAX_VALUES = 16384 };

/* How the ranks of a test train, and the results. */
typedef struct run {
    bool is_shared;
    lks_optimizer rule;
    int n_pieces; /* number of pieces of each rank's part; 0: 1 */
    char hex[MAX_RANKS][65];
    double norms[MAX_RANKS]; /* of the last step */
    double first_norm;
    float values[MAX_VALUES]; /* rank 0's, at the end */
    int64_t step_allocations; /* in the last step, of all ranks */
} run;

typedef struct model {
    lks_graph *graph;
    lks_node *x, *y, *loss;
} model;

/* The norm takes several blocks, which belong to different ranks. */
static model build(void) {
    model m = {.graph = lks_graph_create(lks_device_default(NULL))};
    m.x = lks_input(m.graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    m.y = lks_input(m.graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *h = lks_tanh(lks_linear(m.x, N_HIDDEN, "fc1"));
    m.loss = lks_cross_entropy(lks_linear(h, N_CLASSES, "fc2"), m.y);
    return m;
}

static void fill_batch(int step, float *x, int32_t *y) {
    for (uint64_t i = 0; i < BATCH * N_FEATURES; i++) x[i] = (float)lksi_random_normal(9, (uint64_t)step, i);
    for (int i = 0; i < BATCH; i++) y[i] = (i + step) % N_CLASSES;
}

typedef struct rank_state {
    const model *m;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_program *program; /* the program for the current piece */
    int64_t compiled_for;
    float x[BATCH * N_FEATURES];
    int32_t y[BATCH];
} rank_state;

static int compute(rank_state *s, int begin, int end, lks_step_sums *sums) {
    if (s->compiled_for != end - begin) {
        lks_program_destroy(s->program);
        RANK_OK(lks_program_create(&s->program, s->store,
                                   &(lks_program_options){.batch = end - begin, .is_training = 1, .loss = s->m->loss}));
        s->compiled_for = end - begin;
    }
    RANK_OK(lks_program_set_input(s->program, s->m->x, s->x + begin * N_FEATURES));
    RANK_OK(lks_program_set_input(s->program, s->m->y, s->y + begin));
    RANK_OK(lks_program_forward(s->program));
    *sums =
        (lks_step_sums){.n_samples = end - begin, .loss = lks_program_scalar(s->program, s->m->loss) * (end - begin)};
    RANK_OK(lks_program_backward(s->program, end - begin));
    return 0;
}

static int train_step(rank_state *s, const run *r, int rank, int size, lks_step_sums *all) {
    int begin = BATCH * rank / size, end = BATCH * (rank + 1) / size, n = r->n_pieces > 0 ? r->n_pieces : 1;
    lks_step_sums mine;
    for (int piece = 0; piece < n; piece++) {
        RANK_CHECK(compute(s, begin + (end - begin) * piece / n, begin + (end - begin) * (piece + 1) / n, &mine) == 0);
        if (piece + 1 < n) RANK_OK(lks_distributed_optimizer_accumulate(s->optimizer, &mine));
    }
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, all));
    return 0;
}

static int create_store(lks_store **store, lks_group *group, const model *m, bool is_shared) {
    if (is_shared) {
        RANK_OK(lks_distributed_store_create(store, group, m->loss,
                                             &(lks_distributed_options){.seed = 3, .strategy = LKS_STRATEGY_SHARED}));
    } else {
        RANK_OK(lks_store_create(store, m->loss, &(lks_store_options){.seed = 3}));
        RANK_OK(lks_broadcast_parameters(group, *store));
    }
    return 0;
}

static int train(void *argument) {
    run *r = argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    int rank = lks_group_rank(group), size = lks_group_size(group);
    model m = build();
    rank_state s = {.m = &m};
    lks_step_sums all;
    RANK_CHECK(create_store(&s.store, group, &m, r->is_shared) == 0);
    RANK_OK(lks_distributed_optimizer_create(&s.optimizer, group, s.store, &r->rule));
    for (int step = 0; step < N_STEPS; step++) {
        fill_batch(step, s.x, s.y);
        int64_t before = lks_memory_allocation_count();
        RANK_CHECK(train_step(&s, r, rank, size, &all) == 0);
        if (rank == 0) r->step_allocations = lks_memory_allocation_count() - before;
        if (rank == 0 && step == 0) r->first_norm = all.grad_norm;
        RANK_OK(lks_barrier(group, NULL)); /* no rank may allocate while another still counts */
    }
    r->norms[rank] = all.grad_norm;
    RANK_OK(lks_check_replicas(group, s.store));
    RANK_OK(lks_store_sha256(s.store, r->hex[rank]));
    if (rank == 0) memcpy(r->values, lksi_store_values(s.store), lksi_store_padded_count(s.store) * sizeof(float));
    RANK_OK(lks_barrier(group, NULL));
    lks_program_destroy(s.program);
    lks_distributed_optimizer_destroy(s.optimizer);
    lks_store_destroy(s.store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static lks_optimizer clipped_sgd(double norm) {
    return lks_sgd(&(lks_sgd_options){.lr = 0.5, .momentum = 0.9, .clip_norm = norm});
}

static void clipping_gives_the_same_bits_by_both_strategies(void **state) {
    (void)state;
    static run shared, private;
    const lks_optimizer rules[] = {clipped_sgd(0.05), lks_adam(&(lks_adam_options){.clip_norm = 0.1}),
                                   lks_adamw(&(lks_adamw_options){.clip_norm = 1e9})};
    for (int size = 1; size <= MAX_RANKS; size++)
        for (int i = 0; i < 3; i++) {
            shared = (run){.is_shared = true, .rule = rules[i]}, private = (run){.rule = rules[i]};
            run_ranks(size, train, &shared);
            run_ranks(size, train, &private);
            for (int rank = 0; rank < size; rank++) {
                assert_string_equal(shared.hex[rank], shared.hex[0]);
                assert_string_equal(private.hex[rank], shared.hex[0]);
                assert_true(shared.norms[rank] == shared.norms[0] && private.norms[rank] == shared.norms[0]);
            }
            assert_true(shared.norms[0] > 0);
            assert_int_equal(shared.step_allocations, 0);
            assert_int_equal(private.step_allocations, 0);
        }
}

/* The clip norm is never reached, so no bit may change. */
static void a_large_norm_clips_nothing(void **state) {
    (void)state;
    static run clipped, plain;
    clipped = (run){.is_shared = true, .rule = clipped_sgd(1e9)}, plain = (run){.is_shared = true};
    plain.rule = lks_sgd(&(lks_sgd_options){.lr = 0.5, .momentum = 0.9});
    run_ranks(3, train, &clipped);
    run_ranks(3, train, &plain);
    assert_string_equal(clipped.hex[0], plain.hex[0]);
    assert_true(plain.norms[0] == 0);
}

/* With another number of ranks the gradients differ by f32 rounding, and so do the norms and the parameters. */
static void any_number_of_ranks_clips_like_one(void **state) {
    (void)state;
    static run one, many;
    one = (run){.is_shared = true, .rule = clipped_sgd(0.05)};
    run_ranks(1, train, &one);
    assert_true(one.first_norm > 0.05); /* some step is clipped */
    for (int size = 2; size <= MAX_RANKS; size++) {
        many = (run){.is_shared = true, .rule = clipped_sgd(0.05)};
        run_ranks(size, train, &many);
        assert_true(fabs(many.first_norm - one.first_norm) < 1e-6 * one.first_norm);
        for (int i = 0; i < MAX_VALUES; i++) assert_true(fabsf(many.values[i] - one.values[i]) <= 2e-6f);
    }
}

/* Computes the norm from its definition, gradient by gradient. The step is then as long as the clipped gradient. */
static int clip_once(void *argument) {
    (void)argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    model m = build();
    rank_state s = {.m = &m};
    lks_step_sums mine, all;
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 1, .clip_norm = 0.01});
    RANK_CHECK(create_store(&s.store, group, &m, true) == 0);
    RANK_OK(lks_distributed_optimizer_create(&s.optimizer, group, s.store, &rule));
    fill_batch(0, s.x, s.y);
    RANK_CHECK(compute(&s, 0, BATCH, &mine) == 0);
    size_t count = lksi_store_padded_count(s.store);
    RANK_CHECK(count <= MAX_VALUES);
    static float before[MAX_VALUES];
    memcpy(before, lksi_store_values(s.store), count * sizeof(float));
    const float *values = lksi_store_values(s.store), *gradients = lksi_store_gradients(s.store);
    double squares = 0, moved = 0;
    for (size_t i = 0; i < count; i++) squares += (double)gradients[i] * (double)gradients[i];
    RANK_OK(lks_distributed_optimizer_step(s.optimizer, &mine, &all));
    for (size_t i = 0; i < count; i++) moved += pow((double)values[i] - (double)before[i], 2);
    RANK_CHECK(fabs(all.grad_norm - sqrt(squares) / BATCH) < 1e-12);
    RANK_CHECK(fabs(sqrt(moved) - 0.01) < 1e-5); /* f32 rounding of parameters near 0.1 */
    lks_program_destroy(s.program);
    lks_distributed_optimizer_destroy(s.optimizer);
    lks_store_destroy(s.store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void the_norm_is_that_of_the_mean_gradient(void **state) {
    (void)state;
    run_ranks(1, clip_once, NULL);
}

static int step_by_hand(const rank_state *s, lks_status expected) {
    size_t count;
    RANK_CHECK(lks_store_gradient(s->store, 0, &count) != NULL);
    RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &(lks_step_sums){.n_samples = 1}, NULL) == expected);
    return 0;
}

static int step_on_an_infinite_gradient(void *argument) {
    bool is_shared = *(bool *)argument;
    lks_group *group;
    char before[65], after[65];
    RANK_OK(lks_init(&group, NULL));
    model m = build();
    rank_state s = {.m = &m};
    lks_optimizer rule = clipped_sgd(1);
    RANK_CHECK(create_store(&s.store, group, &m, is_shared) == 0);
    RANK_OK(lks_distributed_optimizer_create(&s.optimizer, group, s.store, &rule));
    RANK_OK(lks_store_sha256(s.store, before));
    if (lks_group_rank(group) == 1) ((float *)lksi_store_gradients(s.store))[77] = INFINITY;
    RANK_CHECK(step_by_hand(&s, LKS_ERR_NUMERIC) == 0);
    RANK_CHECK(strstr(lks_error_text(), "the norm of the gradient in step 1 is inf") != NULL);
    RANK_OK(lks_store_sha256(s.store, after));
    RANK_CHECK(strcmp(before, after) == 0);
    ((float *)lksi_store_gradients(s.store))[77] = 0;
    RANK_OK(lks_barrier(group, NULL));
    RANK_CHECK(step_by_hand(&s, LKS_OK) == 0); /* after the error, the next step succeeds */
    RANK_OK(lks_barrier(group, NULL));
    lks_distributed_optimizer_destroy(s.optimizer);
    lks_store_destroy(s.store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void an_infinite_norm_is_an_error_on_all_ranks_and_updates_nothing(void **state) {
    (void)state;
    run_ranks(2, step_on_an_infinite_gradient, &(bool){true});
    run_ranks(2, step_on_an_infinite_gradient, &(bool){false});
}

/* Pieces add in another order than one product over all rows: f32 rounding. */
static void pieces_train_like_the_whole_batch(void **state) {
    (void)state;
    static run whole, pieces;
    for (int size = 1; size <= 3; size++)
        for (int is_shared = 0; is_shared < 2; is_shared++)
            for (int n = 2; n <= 4; n++) {
                whole = (run){.is_shared = is_shared, .rule = clipped_sgd(0.3)};
                pieces = (run){.is_shared = is_shared, .rule = clipped_sgd(0.3), .n_pieces = n};
                run_ranks(size, train, &whole);
                run_ranks(size, train, &pieces);
                for (int i = 0; i < MAX_VALUES; i++) assert_true(fabsf(whole.values[i] - pieces.values[i]) <= 2e-6f);
                assert_true(fabs(whole.norms[0] - pieces.norms[0]) < 1e-5 * whole.norms[0]);
            }
}

/* Rank 1 contributes no samples in the step itself, but has accumulated some. */
static int step_on_what_was_accumulated(void *argument) {
    float *values = argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    int rank = lks_group_rank(group), size = lks_group_size(group);
    model m = build();
    rank_state s = {.m = &m};
    lks_step_sums mine, all;
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.5});
    RANK_CHECK(create_store(&s.store, group, &m, true) == 0);
    RANK_OK(lks_distributed_optimizer_create(&s.optimizer, group, s.store, &rule));
    fill_batch(0, s.x, s.y);
    RANK_CHECK(compute(&s, BATCH * rank / size, BATCH * (rank + 1) / size, &mine) == 0);
    if (rank == 1) {
        RANK_OK(lks_distributed_optimizer_accumulate(s.optimizer, &mine));
        RANK_OK(lks_distributed_optimizer_accumulate(s.optimizer, &(lks_step_sums){0})); /* adds nothing */
        mine = (lks_step_sums){0};
    }
    RANK_OK(lks_distributed_optimizer_step(s.optimizer, &mine, &all));
    RANK_CHECK(all.n_samples == BATCH);
    if (rank == 0) memcpy(values, lksi_store_values(s.store), lksi_store_padded_count(s.store) * sizeof(float));
    RANK_OK(lks_barrier(group, NULL));
    lks_program_destroy(s.program);
    lks_distributed_optimizer_destroy(s.optimizer);
    lks_store_destroy(s.store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void a_rank_without_samples_still_brings_what_it_accumulated(void **state) {
    (void)state;
    static float one[MAX_VALUES], two[MAX_VALUES];
    run_ranks(1, step_on_what_was_accumulated, one);
    run_ranks(2, step_on_what_was_accumulated, two);
    for (int i = 0; i < MAX_VALUES; i++) assert_true(fabsf(one[i] - two[i]) <= 1e-6f);
}

/* Only one rank changes its learning rate. */
static int step_with_different_rates(void *argument) {
    (void)argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    model m = build();
    rank_state s = {.m = &m};
    lks_optimizer rule = clipped_sgd(1);
    RANK_CHECK(create_store(&s.store, group, &m, true) == 0);
    RANK_OK(lks_distributed_optimizer_create(&s.optimizer, group, s.store, &rule));
    RANK_CHECK(lks_distributed_optimizer_set_lr(s.optimizer, -1) == LKS_ERR_ARGUMENT);
    RANK_OK(lks_distributed_optimizer_set_lr(s.optimizer, 0));
    RANK_OK(lks_distributed_optimizer_set_lr(s.optimizer, 0.25));
    RANK_CHECK(step_by_hand(&s, LKS_OK) == 0);
    if (lks_group_rank(group) == 1) RANK_OK(lks_distributed_optimizer_set_lr(s.optimizer, 0.125));
    RANK_CHECK(step_by_hand(&s, LKS_ERR_MISMATCH) == 0);
    RANK_CHECK(strstr(lks_error_text(), "rank 0 called shared_replica_step(step 2, lr 0.25), rank 1 called "
                                        "shared_replica_step(step 2, lr 0.125)") != NULL);
    lks_distributed_optimizer_destroy(s.optimizer);
    lks_store_destroy(s.store);
    lks_graph_destroy(m.graph);
    lks_group_destroy(group);
    return 0;
}

static void learning_rates_that_differ_are_noticed(void **state) {
    (void)state;
    run_ranks(2, step_with_different_rates, NULL);
}

/* Clipping must not change how far a batch norm's averages move. */
static int move_buffers(void *argument) {
    char(*hexes)[65] = argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    for (int i = 0; i < 2; i++) {
        lks_graph *g = lks_graph_create(lks_device_default(group));
        lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
        lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
        model m = {g, x, y, lks_cross_entropy(lks_linear(lks_batch_norm(x, "bn"), N_CLASSES, "fc"), y)};
        rank_state s = {.m = &m};
        lks_step_sums mine, all;
        lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1, .clip_norm = i == 0 ? 1e-3 : 0});
        RANK_CHECK(create_store(&s.store, group, &m, true) == 0);
        RANK_OK(lks_distributed_optimizer_create(&s.optimizer, group, s.store, &rule));
        fill_batch(0, s.x, s.y);
        RANK_CHECK(compute(&s, 0, BATCH, &mine) == 0);
        RANK_OK(lks_distributed_optimizer_step(s.optimizer, &mine, &all));
        float values[N_FEATURES];
        lksi_sha256 *hash;
        RANK_OK(lksi_sha256_create(&hash));
        RANK_OK(lks_store_read(s.store, lks_store_find(s.store, "bn.running_mean"), values));
        RANK_CHECK(values[0] != 0);
        lksi_sha256_update(hash, values, sizeof values);
        RANK_OK(lks_store_read(s.store, lks_store_find(s.store, "bn.running_var"), values));
        lksi_sha256_update(hash, values, sizeof values);
        lksi_sha256_finish_hex(hash, hexes[i]);
        lks_program_destroy(s.program);
        lks_distributed_optimizer_destroy(s.optimizer);
        lks_store_destroy(s.store);
        lks_graph_destroy(g);
    }
    lks_group_destroy(group);
    return 0;
}

static void averages_are_not_clipped(void **state) {
    (void)state;
    char hexes[2][65];
    run_ranks(1, move_buffers, hexes);
    assert_string_equal(hexes[0], hexes[1]);
}

/* A batch norm's averages lie behind the parameters of their bucket. They do not count. */
static int measure_beside_buffers(void *argument) {
    (void)argument;
    enum { N_CHANNELS = 8192, N_ROWS = 2 };
    static const int32_t labels[N_ROWS] = {0, 1};
    static float rows[N_ROWS * N_CHANNELS];
    lks_group *group;
    lks_store *store;
    lks_program *program;
    lks_distributed_optimizer *optimizer;
    const lks_step_sums mine = {.n_samples = N_ROWS};
    lks_step_sums all;
    double squares = 0;
    for (int i = 0; i < N_ROWS * N_CHANNELS; i++) rows[i] = (float)(i * 37 % 101);
    RANK_OK(lks_init(&group, NULL));
    lks_graph *graph = lks_graph_create(lks_device_default(group));
    lks_node *x = lks_input(graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_CHANNELS});
    lks_node *y = lks_input(graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *loss = lks_cross_entropy(lks_linear(lks_batch_norm(x, "bn"), N_CLASSES, "fc"), y);
    const lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1, .clip_norm = 1});
    const lks_program_options options = {.batch = N_ROWS, .is_training = 1, .loss = loss};
    RANK_OK(lks_distributed_store_create(&store, group, loss,
                                         &(lks_distributed_options){.seed = 1, .strategy = LKS_STRATEGY_BUCKETED}));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, group, store, &rule));
    RANK_OK(lks_program_create(&program, store, &options));
    RANK_OK(lks_program_set_input(program, x, rows));
    RANK_OK(lks_program_set_input(program, y, labels));
    RANK_OK(lks_program_forward(program));
    RANK_OK(lks_program_backward(program, N_ROWS));
    for (int i = 0; i < lks_store_n_parameters(store); i++) {
        size_t count;
        const float *gradient = lks_store_gradient(store, i, &count);
        for (size_t k = 0; k < count; k++) squares += (double)gradient[k] * gradient[k];
    }
    RANK_OK(lks_distributed_optimizer_step(optimizer, &mine, &all));
    RANK_CHECK(fabs(all.grad_norm * N_ROWS / sqrt(squares) - 1) < 1e-5);
    lks_program_destroy(program);
    lks_distributed_optimizer_destroy(optimizer);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
    lks_group_destroy(group);
    return 0;
}

static void averages_do_not_count_in_the_norm(void **state) {
    (void)state;
    run_ranks(1, measure_beside_buffers, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clipping_gives_the_same_bits_by_both_strategies),
        cmocka_unit_test(a_large_norm_clips_nothing),
        cmocka_unit_test(any_number_of_ranks_clips_like_one),
        cmocka_unit_test(the_norm_is_that_of_the_mean_gradient),
        cmocka_unit_test(an_infinite_norm_is_an_error_on_all_ranks_and_updates_nothing),
        cmocka_unit_test(pieces_train_like_the_whole_batch),
        cmocka_unit_test(a_rank_without_samples_still_brings_what_it_accumulated),
        cmocka_unit_test(averages_are_not_clipped),
        cmocka_unit_test(averages_do_not_count_in_the_norm),
        cmocka_unit_test(learning_rates_that_differ_are_noticed),
    };
    return run_group(tests);
}
