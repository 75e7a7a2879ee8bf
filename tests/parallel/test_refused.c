/* What the optimizer refuses: every rank gets the error, it names the rank, and no state changes. */
#include "strategy_run.h"

#include <math.h>

/* --- a step whose norm is not finite --- */

/* Trains steps 0, 1 and 2. If `is_bad`, an extra step with an infinite pixel on rank 0 comes before step 1. */
static int train_around_a_bad_step(const strategy_run *r, int is_bad, char hex[65]) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums all, mine;
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    for (int step = 0; step < 3; step++) {
        if (step == 1 && is_bad) {
            strategy_fill(s, 9);
            if (lks_group_rank(s->group) == 0) s->images[5] = INFINITY;
            RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
            RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &mine, &all) == LKS_ERR_NUMERIC);
            RANK_CHECK(strstr(lks_error_text(), "in step 2 is ") != NULL);
            RANK_CHECK(lksi_state_step(s->optimizer) == 1);
        }
        strategy_fill(s, step);
        RANK_CHECK(strategy_step(s, r, step, &all) == 0);
    }
    RANK_CHECK(lksi_state_step(s->optimizer) == 3);
    RANK_OK(lks_store_sha256(s->store, hex));
    RANK_OK(lks_barrier(s->group, NULL));
    strategy_destroy(s);
    return 0;
}

/* Adam, because its corrections depend on the number of steps. */
static int take_a_bad_step(void *argument) {
    char with[65], without[65];
    RANK_CHECK(train_around_a_bad_step(argument, 1, with) == 0);
    RANK_CHECK(train_around_a_bad_step(argument, 0, without) == 0);
    RANK_CHECK(strcmp(with, without) == 0);
    return 0;
}

static void a_step_without_a_norm_is_not_counted(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        run_ranks(3, take_a_bad_step,
                  (&(strategy_run){.strategy = (lks_strategy)strategy, .clip_norm = 0.1, .is_attached = 1}));
}

/* --- other calls --- */

static int call_something_else(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    const strategy_run *r = argument;
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_step(s, r, 0, NULL) == 0);
    RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
    lks_status status = lks_group_rank(s->group) == 1 ? lks_barrier(s->group, NULL)
                                                      : lks_distributed_optimizer_step(s->optimizer, &mine, NULL);
    RANK_CHECK(status == LKS_ERR_MISMATCH || status == LKS_ERR_PEER);
    RANK_CHECK(strstr(lks_error_text(), "barrier") != NULL && strstr(lks_error_text(), "_step") != NULL);
    strategy_destroy(s);
    return 0;
}

/* Not only at the deadline. */
static void a_rank_that_calls_something_else_is_shown_with_both_calls(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        run_ranks(3, call_something_else, (&(strategy_run){.strategy = (lks_strategy)strategy, .is_attached = 1}));
}

/* --- numbers of samples --- */

typedef struct bad_number {
    double value;
    bool is_put_aside, is_weight; /* passed to accumulate; bad buffer_weight instead of bad n_samples */
} bad_number;

static int bring_a_bad_number(void *argument) {
    const bad_number *number = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED};
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    bool is_bad = lks_group_rank(s->group) == 1;
    lks_step_sums mine = {.n_samples = 4};
    size_t count;
    RANK_CHECK(lks_store_gradient(s->store, 0, &count) != NULL); /* gradients that were written by hand */
    if (is_bad) *(number->is_weight ? &mine.buffer_weight : &mine.n_samples) = number->value;
    lks_status status = is_bad && number->is_put_aside ? lks_distributed_optimizer_accumulate(s->optimizer, &mine)
                                                       : lks_distributed_optimizer_step(s->optimizer, &mine, NULL);
    RANK_CHECK(status == (is_bad ? LKS_ERR_ARGUMENT : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(),
                      number->is_weight ? "rank 1 passed buffer_weight " : "rank 1 passed n_samples ") != NULL);
    RANK_CHECK(lks_barrier(s->group, NULL) != LKS_OK);
    strategy_destroy(s);
    return 0;
}

static void a_number_of_samples_that_is_none_is_refused(void **state) {
    (void)state;
    static const double numbers[] = {-5, (double)INFINITY, -(double)INFINITY, (double)NAN};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++)
            run_ranks(2, bring_a_bad_number, (&(bad_number){numbers[i], k % 2 != 0, k / 2 != 0}));
}

/* --- steps without a backward pass --- */

/* Takes a step with a pass that was already used. */
static int refuse_again(const strategy_rank *s, lks_distributed_optimizer *optimizer, const lks_step_sums *mine) {
    RANK_OK(lks_barrier(s->group, NULL));
    lks_status status = lks_distributed_optimizer_step(optimizer, mine, NULL);
    RANK_CHECK(status == LKS_ERR_STATE || status == LKS_ERR_PEER); /* its own error, or that of the faster rank */
    RANK_CHECK(strstr(lks_error_text(), "ran no backward pass since the last step") != NULL);
    return 0;
}

static int step_twice(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    char before[65], after[65];
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, argument, 0, 4, &mine) == 0);
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_OK(lks_store_sha256(s->store, before));
    RANK_CHECK(refuse_again(s, s->optimizer, &mine) == 0);
    RANK_OK(lks_store_sha256(s->store, after));
    RANK_CHECK(strcmp(before, after) == 0);
    strategy_destroy(s);
    return 0;
}

static void a_pass_is_good_for_one_step(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int is_attached = 0; is_attached < 2; is_attached++)
            run_ranks(2, step_twice, (&(strategy_run){.strategy = (lks_strategy)strategy, .is_attached = is_attached}));
}

/* Gradients written by hand are good for one step, too. */
static int step_by_hand(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    const lks_step_sums mine = {.n_samples = 4};
    size_t count;
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    float *gradient = lks_store_gradient(s->store, 0, &count);
    for (size_t i = 0; i < count; i++) gradient[i] = 0;
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_CHECK(refuse_again(s, s->optimizer, &mine) == 0);
    strategy_destroy(s);
    return 0;
}

/* A loop that never calls lks_program_backward. A look at the gradients does not write them. */
static int step_without_a_pass(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    RANK_OK(lks_check_gradients(s->group, s->store, 1));
    RANK_CHECK(refuse_again(s, s->optimizer, &(lks_step_sums){.n_samples = 4}) == 0);
    strategy_destroy(s);
    return 0;
}

static void a_step_needs_a_pass_or_gradients_written_by_hand(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        run_ranks(2, step_by_hand, (&(strategy_run){.strategy = (lks_strategy)strategy}));
        run_ranks(2, step_without_a_pass, (&(strategy_run){.strategy = (lks_strategy)strategy}));
    }
}

/* Two optimizers of one store take turns. Then one of them takes a step without a new pass. */
static int step_by_each(void *argument) {
    const strategy_run *r = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_distributed_optimizer *another;
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    RANK_OK(lks_distributed_optimizer_create(&another, s->group, s->store, &rule));
    strategy_fill(s, 0);
    for (int i = 0; i < 4; i++) { /* in turns */
        RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
        RANK_OK(lks_distributed_optimizer_step(i % 2 == 0 ? s->optimizer : another, &mine, NULL));
    }
    RANK_OK(lks_check_replicas(s->group, s->store));
    RANK_CHECK(refuse_again(s, r->n_steps == 0 ? s->optimizer : another, &mine) == 0);
    lks_distributed_optimizer_destroy(another);
    strategy_destroy(s);
    return 0;
}

static void a_pass_is_good_for_one_step_of_all_the_stores_optimizers(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int which = 0; which < 2; which++)
            run_ranks(2, step_by_each, (&(strategy_run){.strategy = (lks_strategy)strategy, .n_steps = which}));
}

/* Takes a step without samples on any rank, or one whose norm is not finite. Then passes the same pass again. */
static int retry(void *argument) {
    const strategy_run *r = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    char before[65], after[65];
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    strategy_fill(s, 0);
    if (r->clip_norm > 0 && lks_group_rank(s->group) == 0) s->images[5] = INFINITY;
    RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
    RANK_OK(lks_store_sha256(s->store, before));
    RANK_OK(lks_barrier(s->group, NULL));
    lks_step_sums first = r->clip_norm > 0 ? mine : (lks_step_sums){0};
    RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &first, NULL) ==
               (r->clip_norm > 0 ? LKS_ERR_NUMERIC : LKS_ERR_ARGUMENT));
    RANK_CHECK(refuse_again(s, s->optimizer, &mine) == 0);
    RANK_OK(lks_store_sha256(s->store, after));
    RANK_CHECK(strcmp(before, after) == 0);
    strategy_destroy(s);
    return 0;
}

static void a_pass_is_used_by_a_step_that_is_refused(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int clips = 0; clips < 2; clips++)
            run_ranks(2, retry, (&(strategy_run){.strategy = (lks_strategy)strategy, .clip_norm = clips * 0.1}));
}

/* Rank 1 accumulates a pass twice, or accumulates it after the step that used it. */
static int put_aside_twice(void *argument) {
    const int is_after_step = *(int *)argument;
    const strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED};
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, &plan, 0, 4, &mine) == 0);
    bool is_bad = lks_group_rank(s->group) == 1;
    if (is_after_step)
        RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    else
        RANK_OK(lks_distributed_optimizer_accumulate(s->optimizer, &mine));
    RANK_OK(lks_barrier(s->group, NULL));
    RANK_CHECK((is_bad ? lks_distributed_optimizer_accumulate(s->optimizer, &mine) : lks_barrier(s->group, NULL)) ==
               (is_bad ? LKS_ERR_STATE : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(),
                      "rank 1 passed samples, but ran no backward pass since the last step or piece") != NULL);
    strategy_destroy(s);
    return 0;
}

static void a_pass_is_good_for_one_piece(void **state) {
    (void)state;
    for (int is_after_step = 0; is_after_step < 2; is_after_step++) run_ranks(2, put_aside_twice, &is_after_step);
}

/* Rank 1 attaches it. */
static int attach_a_program_of_another_store(void *argument) {
    (void)argument;
    const strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED};
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_store *other;
    lks_program *program;
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    bool is_bad = lks_group_rank(s->group) == 1;
    RANK_OK(lks_store_create(&other, s->loss, NULL));
    RANK_OK(lks_program_create(&program, is_bad ? other : s->store,
                               &(lks_program_options){.batch = 4, .is_training = 1, .loss = s->loss}));
    RANK_CHECK(lks_distributed_optimizer_attach(s->optimizer, program) == (is_bad ? LKS_ERR_ARGUMENT : LKS_OK));
    if (!is_bad) RANK_CHECK(lks_barrier(s->group, NULL) == LKS_ERR_PEER);
    RANK_CHECK(strstr(lks_error_text(), "the program is of another store than the optimizer on rank 1") != NULL);
    lks_program_destroy(program);
    lks_store_destroy(other);
    strategy_destroy(s);
    return 0;
}

static void a_program_of_another_store_is_refused(void **state) {
    (void)state;
    run_ranks(2, attach_a_program_of_another_store, NULL);
}

static lks_status refuse_gradient(void *context, int index) {
    (void)context;
    return index == 0 ? lksi_error(LKS_ERR_NUMERIC, "not this one") : LKS_OK;
}

/* The backward pass fails on rank 1. The other rank gets rank 1's error. */
static int step_after_half_a_pass(void *argument) {
    const strategy_run *r = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    char before[65], after[65];
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_OK(lks_store_sha256(s->store, before));
    RANK_OK(lks_barrier(s->group, NULL));
    bool is_bad = lks_group_rank(s->group) == 1;
    if (is_bad) lks_on_gradient(s->programs[4], refuse_gradient, NULL);
    RANK_OK(lks_program_forward(s->programs[4]));
    RANK_CHECK(lks_program_backward(s->programs[4], 4) == (is_bad ? LKS_ERR_NUMERIC : LKS_OK));
    lks_status status = r->n_pieces == 0 ? lks_distributed_optimizer_step(s->optimizer, &mine, NULL) : LKS_OK;
    if (r->n_pieces > 0 && is_bad) status = lks_distributed_optimizer_accumulate(s->optimizer, &mine);
    if (r->n_pieces == 0 || is_bad) {
        RANK_CHECK(status == (is_bad ? LKS_ERR_STATE : LKS_ERR_PEER));
        RANK_CHECK(strstr(lks_error_text(), "the gradients on rank 1 are incomplete: the backward pass failed") !=
                   NULL);
    }
    RANK_OK(lks_store_sha256(s->store, after));
    RANK_CHECK(strcmp(before, after) == 0);
    strategy_destroy(s);
    return 0;
}

static void half_a_pass_is_no_step(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int n_pieces = 0; n_pieces < 3; n_pieces += 2)
            run_ranks(2, step_after_half_a_pass,
                      (&(strategy_run){.strategy = (lks_strategy)strategy, .n_pieces = n_pieces}));
}

/* --- ranks with different arguments --- */

static int be_a_step_behind(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    strategy_fill(s, 0);
    RANK_CHECK(strategy_compute(s, argument, 0, 4, &mine) == 0);
    if (lks_group_rank(s->group) == 1) lksi_state_set_step(s->optimizer, 7);
    RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL) == LKS_ERR_MISMATCH);
    strategy_destroy(s);
    return 0;
}

static void ranks_in_different_steps_are_told_so(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        run_ranks(2, be_a_step_behind, (&(strategy_run){.strategy = (lks_strategy)strategy}));
}

/* Creates a store of its own: weight (n_outputs, n_inputs), and a bias if one more tensor is wanted. */
static int create_plain_store(lks_graph *g, int64_t n_outputs, int64_t n_inputs, int has_bias, lks_store **store) {
    lks_node *x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, n_inputs});
    lks_node *y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *logits = lks_linear_with(x, n_outputs, "fc", &(lks_linear_options){.no_bias = !has_bias});
    RANK_OK(lks_store_create(store, lks_cross_entropy(logits, y), NULL));
    return 0;
}

typedef enum difference { OTHER_SHAPE, ONE_MORE, N_DIFFERENCES } difference;

static int differ_in_the_model(void *argument) {
    static const char *const texts[] = {"has another name, type or shape on rank 1",
                                        "rank 1 has 2 parameters and buffers, rank 0 1"};
    static const char *const differences[] = {"parameter fc.weight      | f32 (4,8)        | f32 (8,4)",
                                              "parameter fc.bias        | -                | f32 (4)"};
    difference which = *(difference *)argument;
    lks_group *group;
    lks_store *store;
    lks_distributed_optimizer *optimizer;
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    RANK_OK(lks_init(&group, NULL));
    int is_other = lks_group_rank(group) == 1;
    lks_graph *g = lks_graph_create(lks_device_default(group));
    int64_t n_outputs = is_other && which == OTHER_SHAPE ? 8 : 4;
    RANK_CHECK(create_plain_store(g, n_outputs, 32 / n_outputs, is_other && which == ONE_MORE, &store) == 0);
    RANK_CHECK(lks_check_replicas(group, store) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), texts[which]) != NULL);
    RANK_CHECK(lks_distributed_optimizer_create(&optimizer, group, store, &rule) == LKS_ERR_MISMATCH);
    RANK_CHECK(strstr(lks_error_text(), differences[which]) != NULL);
    lks_store_destroy(store);
    lks_graph_destroy(g);
    lks_group_destroy(group);
    return 0;
}

static void ranks_whose_plain_stores_differ_are_told_so(void **state) {
    (void)state;
    for (int which = 0; which < N_DIFFERENCES; which++)
        run_ranks(2, differ_in_the_model, &(difference){(difference)which});
}

/* --- pointers that are NULL --- */

typedef enum null_argument {
    NO_STORE_TO_CREATE,
    NO_OPTIMIZER_TO_CREATE,
    NO_STORE_TO_BROADCAST,
    NO_STORE_TO_CHECK,
    NO_OPTIONS,
    NO_SUMS,
    NO_PROGRAM,
    N_NULL_ARGUMENTS
} null_argument;

static lks_status pass_null(null_argument which, strategy_rank *s) {
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    switch (which) {
    case NO_STORE_TO_CREATE:
        return lks_distributed_store_create(NULL, s->group, s->loss, NULL);
    case NO_OPTIMIZER_TO_CREATE:
        return lks_distributed_optimizer_create(NULL, s->group, s->store, &rule);
    case NO_STORE_TO_BROADCAST:
        return lks_broadcast_parameters(s->group, NULL);
    case NO_STORE_TO_CHECK:
        return lks_check_gradients(s->group, NULL, 1);
    case NO_OPTIONS:
        return lks_compare_options(s->group, NULL, 2);
    case NO_SUMS:
        return lks_distributed_optimizer_accumulate(s->optimizer, NULL);
    case NO_PROGRAM:
        return lks_distributed_optimizer_attach(s->optimizer, NULL);
    case N_NULL_ARGUMENTS:
        break;
    }
    return LKS_OK;
}

/* One rank passes NULL. The others do not wait for its next call. */
static int pass_null_on_one(void *argument) {
    static const char *const texts[N_NULL_ARGUMENTS] = {"distributed_store_create: `store` is NULL",
                                                        "distributed_optimizer_create: `optimizer` is NULL",
                                                        "broadcast_parameters: `store` is NULL",
                                                        "check_gradients: `store` is NULL",
                                                        "compare_options: `options` is NULL",
                                                        "distributed_optimizer_accumulate: `mine` is NULL",
                                                        "distributed_optimizer_attach: `program` is NULL"};
    null_argument which = *(null_argument *)argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    strategy_run plan = {.strategy = LKS_STRATEGY_BUCKETED};
    RANK_CHECK(s != NULL && strategy_create(s, &plan) == 0);
    bool is_bad = lks_group_rank(s->group) == 1;
    lks_status status = is_bad ? pass_null(which, s) : lks_barrier(s->group, NULL);
    RANK_CHECK(status == (is_bad ? LKS_ERR_ARGUMENT : LKS_ERR_PEER));
    RANK_CHECK(strstr(lks_error_text(), texts[which]) != NULL);
    strategy_destroy(s);
    return 0;
}

static int pass_no_group(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_store *store = NULL;
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    RANK_CHECK(lks_distributed_store_create(&store, NULL, s->loss, NULL) == LKS_ERR_ARGUMENT && store == NULL);
    RANK_CHECK(strcmp(lks_error_text(), "distributed_store_create: `group` is NULL") == 0);
    RANK_CHECK(lks_broadcast_parameters(NULL, s->store) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strcmp(lks_error_text(), "broadcast_parameters: `group` is NULL") == 0);
    RANK_CHECK(lks_check_gradients(NULL, s->store, 1) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strcmp(lks_error_text(), "check_gradients: `group` is NULL") == 0);
    RANK_CHECK(lks_compare_options(NULL, NULL, 0) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strcmp(lks_error_text(), "compare_options: `group` is NULL") == 0);
    RANK_CHECK(lks_store_create(NULL, s->loss, NULL) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strcmp(lks_error_text(), "store_create: `store` is NULL") == 0);
    strategy_destroy(s);
    return 0;
}

static void a_pointer_that_is_null_is_named(void **state) {
    (void)state;
    for (int which = 0; which < N_NULL_ARGUMENTS; which++)
        run_ranks(2, pass_null_on_one, &(null_argument){(null_argument)which});
    run_ranks(1, pass_no_group, (&(strategy_run){.strategy = LKS_STRATEGY_BUCKETED}));
}

/* --- gradients that are not finite --- */

/* The check refuses a batch, or the step does if the rule clips. Rank 1 has no samples in the next batch, so its
 * gradients are still those of the bad one. The ranks count their steps differently. */
static int go_on_after_a_bad_batch(void *argument) {
    const strategy_run *r = argument;
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_step_sums mine;
    char expected[64];
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    int rank = lks_group_rank(s->group);
    strategy_fill(s, 0);
    if (rank == 1) s->images[5] = NAN;
    RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
    if (r->clip_norm > 0) {
        RANK_CHECK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL) == LKS_ERR_NUMERIC);
    } else {
        RANK_CHECK(lks_check_gradients(s->group, s->store, 10 + rank) == LKS_ERR_NUMERIC);
        snprintf(expected, sizeof expected, "on rank 1 in step %d holds ", 10 + rank);
        RANK_CHECK(strstr(lks_error_text(), expected) != NULL);
    }
    strategy_fill(s, 1);
    RANK_CHECK(strategy_compute(s, r, 0, rank == 1 ? 0 : 4, &mine) == 0);
    RANK_OK(lks_check_gradients(s->group, s->store, 2));
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, NULL));
    RANK_OK(lks_check_replicas(s->group, s->store));
    strategy_destroy(s);
    return 0;
}

/* Rank 1's last piece is bad, and already accumulated when the batch is checked. The pieces go with the batch, also
 * those of another optimizer. `is_bad` 0: the same run without this batch. The next pass may overlap with its sums. */
static int train_after_bad_pieces(const strategy_run *r, int is_bad, char hex[65]) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_distributed_optimizer *another, *gone;
    lks_step_sums mine, all;
    RANK_CHECK(s != NULL && strategy_create(s, r) == 0);
    RANK_OK(lks_distributed_optimizer_create(&gone, s->group, s->store, &rule));
    RANK_OK(lks_distributed_optimizer_create(&another, s->group, s->store, &rule));
    lks_distributed_optimizer_destroy(gone);
    lks_distributed_optimizer_no_sync(s->optimizer, 1);
    for (int piece = 0; piece < 2 && is_bad; piece++) {
        strategy_fill(s, 2 + piece);
        if (piece == 1 && lks_group_rank(s->group) == 1) s->images[5] = NAN;
        RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
        RANK_OK(lks_distributed_optimizer_accumulate(piece == 0 ? another : s->optimizer, &mine));
    }
    if (is_bad) RANK_CHECK(lks_check_gradients(s->group, s->store, 1) == LKS_ERR_NUMERIC);
    if (is_bad) RANK_CHECK(strstr(lks_error_text(), "on rank 1 in step 1 holds ") != NULL);
    RANK_OK(lksi_state_check_whole(another)); /* a checkpoint can be saved */
    RANK_OK(lksi_state_check_whole(s->optimizer));
    lks_distributed_optimizer_no_sync(s->optimizer, 0);
    strategy_fill(s, 1);
    RANK_CHECK(strategy_compute(s, r, 0, 4, &mine) == 0);
    if (r->is_attached)
        RANK_OK(lksi_progress_row_wait(s->optimizer->progress, s->optimizer->n_buckets));
    else
        RANK_OK(lks_check_gradients(s->group, s->store, 1));
    RANK_OK(lks_distributed_optimizer_step(s->optimizer, &mine, &all));
    RANK_CHECK(all.n_samples == 8);
    RANK_OK(lks_check_replicas(s->group, s->store));
    RANK_OK(lks_store_sha256(s->store, hex));
    RANK_OK(lks_barrier(s->group, NULL));
    lks_distributed_optimizer_destroy(another);
    strategy_destroy(s);
    return 0;
}

static int drop_bad_pieces(void *argument) {
    char with[65], without[65];
    RANK_CHECK(train_after_bad_pieces(argument, 1, with) == 0);
    RANK_CHECK(train_after_bad_pieces(argument, 0, without) == 0);
    RANK_CHECK(strcmp(with, without) == 0);
    return 0;
}

static void accumulated_pieces_of_a_bad_batch_are_dropped(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        run_ranks(2, drop_bad_pieces, (&(strategy_run){.strategy = (lks_strategy)strategy}));
}

/* A thread adds the pieces and the ranks' gradients during the pass. */
static void over_tcp_dropped_pieces_are_not_in_the_next_pass(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_BUCKETED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
        strategy_run plan = {
            .strategy = (lks_strategy)strategy, .transport = "tcp", .bucket_nbytes = 1, .is_attached = 1};
        if (lks_spawn(2, LKS_PROCESSES, drop_bad_pieces, &plan) != LKS_OK) fail_msg("%s", lks_error_text());
    }
}

static void a_rank_without_samples_has_no_bad_gradients(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        for (int clips = 0; clips < 2; clips++)
            run_ranks(2, go_on_after_a_bad_batch,
                      (&(strategy_run){.strategy = (lks_strategy)strategy, .clip_norm = clips}));
}

/* --- a group other than the store's --- */

static int use_another_group(void *argument) {
    strategy_rank *s = lksi_alloc(sizeof *s);
    lks_optimizer rule = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_distributed_optimizer *optimizer;
    lks_group *half;
    lks_store *plain;
    RANK_CHECK(s != NULL && strategy_create(s, argument) == 0);
    RANK_OK(lks_group_split(s->group, lks_group_rank(s->group) / 2, 0, &half));
    RANK_OK(lks_store_create(&plain, s->loss, NULL));
    RANK_OK(lks_distributed_optimizer_create(&optimizer, half, plain, &rule)); /* the rule belongs to no group */
    lks_distributed_optimizer_destroy(optimizer);
    lks_status status = lks_distributed_optimizer_create(&optimizer, half, s->store, &rule);
    RANK_CHECK(status == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "created in a group of 4 ranks, but the optimizer was given another") != NULL);
    lks_store_destroy(plain);
    RANK_OK(lks_barrier(s->group, NULL));
    lks_group_destroy(half);
    strategy_destroy(s);
    return 0;
}

static void an_optimizer_of_another_group_than_its_store_is_refused(void **state) {
    (void)state;
    for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++)
        run_ranks(4, use_another_group, (&(strategy_run){.strategy = (lks_strategy)strategy}));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        /* as processes, which are forked before any thread starts */
        cmocka_unit_test(over_tcp_dropped_pieces_are_not_in_the_next_pass),
        cmocka_unit_test(a_step_without_a_norm_is_not_counted),
        cmocka_unit_test(a_rank_that_calls_something_else_is_shown_with_both_calls),
        cmocka_unit_test(a_number_of_samples_that_is_none_is_refused),
        cmocka_unit_test(ranks_in_different_steps_are_told_so),
        cmocka_unit_test(ranks_whose_plain_stores_differ_are_told_so),
        cmocka_unit_test(a_pointer_that_is_null_is_named),
        cmocka_unit_test(an_optimizer_of_another_group_than_its_store_is_refused),
        cmocka_unit_test(a_rank_without_samples_has_no_bad_gradients),
        cmocka_unit_test(accumulated_pieces_of_a_bad_batch_are_dropped),
        cmocka_unit_test(a_pass_is_good_for_one_step),
        cmocka_unit_test(a_step_needs_a_pass_or_gradients_written_by_hand),
        cmocka_unit_test(a_pass_is_good_for_one_step_of_all_the_stores_optimizers),
        cmocka_unit_test(a_pass_is_used_by_a_step_that_is_refused),
        cmocka_unit_test(a_pass_is_good_for_one_piece),
        cmocka_unit_test(a_program_of_another_store_is_refused),
        cmocka_unit_test(half_a_pass_is_no_step),
    };
    return run_group(tests);
}
