/* Checkpoints of a user's own loop: it resumes with the same bits, on the same or another number of ranks. */
#include "ranks.h"

#include "graph/graph.h"

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 24, N_FEATURES = 12, N_STEPS = 14, SAVED_AT = 6 };

static char directory[] = "/tmp/lockstep_own_checkpoint_XXXXXX";
static char path[128];

typedef struct run {
    bool is_plain; /* each rank has its own store */
    bool has_momentum;
    double later_lr;               /* with momentum: the rate from step 4 on */
    int64_t from, until, saved_at; /* steps; saved_at -1: no checkpoint */
    char hex[65];
} run;

typedef struct loop {
    lks_group *group;
    lks_graph *graph;
    lks_node *x, *y, *loss;
    lks_store *store;
    lks_program *program;
    lks_distributed_optimizer *optimizer;
    lks_position position;
} loop;

static lks_optimizer rule_of(const run *r) {
    if (r->has_momentum) return lks_sgd(&(lks_sgd_options){.lr = 0.1, .momentum = 0.9});
    return lks_adam(&(lks_adam_options){.lr = 1e-2, .schedule = lks_schedule_linear(1.0, 0.3, N_STEPS)});
}

static int create(loop *l, const run *r) {
    lks_optimizer rule = rule_of(r);
    RANK_OK(lks_init(&l->group, NULL));
    int64_t n_mine = BATCH / lks_group_size(l->group);
    l->graph = lks_graph_create(lks_device_default(l->group));
    l->x = lks_input(l->graph, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    l->y = lks_input(l->graph, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    l->loss = lks_cross_entropy(lks_linear(lks_relu(lks_linear(l->x, 20, "fc1")), 4, "fc2"), l->y);
    if (r->is_plain) {
        RANK_OK(lks_store_create(&l->store, l->loss, &(lks_store_options){.seed = (uint64_t)r->from + 3}));
        RANK_OK(lks_broadcast_parameters(l->group, l->store));
    } else {
        RANK_OK(lks_distributed_store_create(&l->store, l->group, l->loss,
                                             &(lks_distributed_options){.seed = (uint64_t)r->from + 3}));
    }
    RANK_OK(lks_program_create(&l->program, l->store,
                               &(lks_program_options){.batch = n_mine, .is_training = 1, .loss = l->loss}));
    RANK_OK(lks_distributed_optimizer_create(&l->optimizer, l->group, l->store, &rule));
    l->position = (lks_position){.steps_per_epoch = N_STEPS, .global_batch = BATCH};
    return 0;
}

static void destroy(loop *l) {
    lks_distributed_optimizer_destroy(l->optimizer);
    lks_program_destroy(l->program);
    lks_store_destroy(l->store);
    lks_graph_destroy(l->graph);
    lks_group_destroy(l->group);
}

/* Sample values are computed from sample numbers, so that a step is the same on any number of ranks. */
static int backward(loop *l, int64_t step) {
    float features[BATCH * N_FEATURES];
    int32_t labels[BATCH];
    int64_t n_mine = BATCH / lks_group_size(l->group), first = step * BATCH + lks_group_rank(l->group) * n_mine;
    for (int64_t i = 0; i < n_mine; i++) {
        labels[i] = (int32_t)((first + i) * 7 % 4);
        for (int64_t j = 0; j < N_FEATURES; j++)
            features[i * N_FEATURES + j] = (float)(((first + i) * 31 + j * 17) % 23) / 23 + (float)(labels[i] == j);
    }
    RANK_OK(lks_program_set_input(l->program, l->x, features));
    RANK_OK(lks_program_set_input(l->program, l->y, labels));
    RANK_OK(lks_program_forward(l->program));
    RANK_OK(lks_program_backward(l->program, (double)n_mine));
    return 0;
}

static lks_step_sums mine_of(const loop *l) {
    return (lks_step_sums){.n_samples = (double)(BATCH / lks_group_size(l->group))};
}

static int train(void *argument) {
    run *r = argument;
    loop l = {0};
    char mine[65];
    RANK_CHECK(create(&l, r) == 0);
    if (r->from > 0) {
        RANK_OK(lks_distributed_optimizer_load(l.optimizer, path, &l.position));
        RANK_CHECK(l.position.step == r->from && l.position.epoch == 0);
    }
    while (l.position.step < r->until) {
        lks_step_sums sums = mine_of(&l);
        RANK_CHECK(backward(&l, l.position.step) == 0);
        RANK_OK(lks_distributed_optimizer_step(l.optimizer, &sums, NULL));
        l.position.step++;
        if (r->has_momentum && l.position.step == 4)
            RANK_OK(lks_distributed_optimizer_set_lr(l.optimizer, r->later_lr));
        if (l.position.step == r->saved_at) RANK_OK(lks_distributed_optimizer_save(l.optimizer, path, &l.position));
    }
    RANK_OK(lks_store_sha256(l.store, mine));
    if (lks_group_rank(l.group) == 0) memcpy(r->hex, mine, sizeof mine);
    destroy(&l);
    return 0;
}

static void a_loop_goes_on_to_the_same_bits(void **state) {
    (void)state;
    static const double later[] = {0.05, 0};
    for (int kind = 0; kind < 6; kind++)
        for (int size = 1; size <= 3; size++) {
            run through = {.is_plain = kind % 2, .has_momentum = kind >= 2, .until = N_STEPS, .saved_at = SAVED_AT};
            through.later_lr = later[kind / 4];
            run resumed = through;
            resumed.from = SAVED_AT, resumed.saved_at = -1;
            run_ranks(size, train, &through);
            run_ranks(size, train, &resumed);
            assert_string_equal(resumed.hex, through.hex);
        }
}

/* The file's contents do not depend on the number of ranks or on the store. */
static void other_ranks_and_another_store_take_the_same_file(void **state) {
    (void)state;
    run saved = {.until = SAVED_AT, .saved_at = SAVED_AT};
    run_ranks(2, train, &saved);
    for (int size = 1; size <= 4; size++)
        for (int is_plain = 0; is_plain <= 1; is_plain++) {
            run loaded = {.is_plain = is_plain, .from = SAVED_AT, .until = SAVED_AT, .saved_at = -1};
            run_ranks(size, train, &loaded);
            assert_string_equal(loaded.hex, saved.hex);
        }
}

/* An interrupted update left torn parameters. Both ways to load the file make them whole. */
static int load_over_torn_parameters(void *argument) {
    loop l = {0};
    char hex[65];
    RANK_CHECK(create(&l, argument) == 0);
    lksi_store_set_torn(l.store, true);
    RANK_CHECK(lks_store_sha256(l.store, hex) == LKS_ERR_TORN);
    RANK_OK(lks_store_load(l.store, path));
    RANK_OK(lks_store_sha256(l.store, hex));
    lksi_store_set_torn(l.store, true);
    RANK_OK(lks_distributed_optimizer_load(l.optimizer, path, &l.position));
    RANK_OK(lks_store_sha256(l.store, hex));
    destroy(&l);
    return 0;
}

static void a_checkpoint_replaces_torn_parameters(void **state) {
    (void)state;
    run saved = {.until = SAVED_AT, .saved_at = SAVED_AT};
    run_ranks(2, train, &saved);
    run_ranks(2, load_over_torn_parameters, (&(run){.is_plain = true}));
}

/* --- what is refused --- */

static int load_with_another_rule(void *argument) {
    run *r = argument;
    loop l = {0};
    char before[65], after[65];
    RANK_CHECK(create(&l, r) == 0);
    RANK_OK(lks_store_sha256(l.store, before));
    RANK_CHECK(lks_distributed_optimizer_load(l.optimizer, path, &l.position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "saved with the optimizer Adam, this run has SGD") != NULL);
    RANK_OK(lks_store_sha256(l.store, after));
    RANK_CHECK(strcmp(before, after) == 0);
    destroy(&l);
    return 0;
}

/* It has the same weights and rule, but the seed of a trainer. */
static int load_a_trainers_checkpoint(void *argument) {
    loop l = {0};
    lks_trainer *trainer;
    RANK_CHECK(create(&l, argument) == 0);
    lks_trainer_options options = {
        .group = l.group, .features = l.x, .labels = l.y, .optimizer = rule_of(argument), .seed = 9};
    RANK_OK(lks_trainer_create(&trainer, l.loss, &options));
    RANK_OK(lks_trainer_save(trainer, path, &l.position));
    lks_trainer_destroy(trainer);
    RANK_CHECK(lks_distributed_optimizer_load(l.optimizer, path, &l.position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strstr(lks_error_text(), "saved by a trainer with seed 9 and 0 grains") != NULL);
    options.seed = 0;
    RANK_OK(lks_trainer_create(&trainer, l.loss, &options));
    RANK_OK(lks_trainer_save(trainer, path, &l.position));
    lks_trainer_destroy(trainer);
    RANK_OK(lks_distributed_optimizer_load(l.optimizer, path, &l.position));
    destroy(&l);
    return 0;
}

static void a_trainers_checkpoint_is_called_so(void **state) {
    (void)state;
    run_ranks(2, load_a_trainers_checkpoint, &(run){0});
}

static int save_between_passes(void *argument) {
    loop l = {0};
    RANK_CHECK(create(&l, argument) == 0);
    lks_step_sums sums = mine_of(&l);
    RANK_CHECK(backward(&l, 0) == 0);
    int rank = lks_group_rank(l.group);
    if (rank == 1) RANK_OK(lks_distributed_optimizer_accumulate(l.optimizer, &sums));
    lks_status status = lks_distributed_optimizer_save(l.optimizer, path, &l.position);
    RANK_CHECK(status == LKS_ERR_STATE);
    RANK_CHECK(strstr(lks_error_text(), rank == 1 ? "holds 1 accumulated passes" : "rank 1 failed") != NULL);
    destroy(&l);
    return 0;
}

static int save_nothing(void *argument) {
    loop l = {0};
    RANK_CHECK(create(&l, argument) == 0);
    RANK_CHECK(lks_distributed_optimizer_save(NULL, path, &l.position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(strcmp(lks_error_text(), "distributed_optimizer_save: `optimizer` is NULL") == 0);
    RANK_CHECK(lks_distributed_optimizer_save(l.optimizer, NULL, &l.position) == LKS_ERR_ARGUMENT);
    RANK_CHECK(lks_distributed_optimizer_load(l.optimizer, path, NULL) == LKS_ERR_ARGUMENT);
    l.position.step = 3; /* the optimizer has taken no step */
    RANK_CHECK(lks_distributed_optimizer_save(l.optimizer, path, &l.position) == LKS_ERR_ARGUMENT);
    destroy(&l);
    return 0;
}

static void another_rule_an_unfinished_step_and_nothing_are_refused(void **state) {
    (void)state;
    run saved = {.until = SAVED_AT, .saved_at = SAVED_AT}, other = {.has_momentum = true};
    run_ranks(2, train, &saved);
    run_ranks(2, load_with_another_rule, &other);
    run_ranks(2, save_between_passes, &saved);
    run_ranks(1, save_nothing, &saved);
}

int main(void) {
    if (mkdtemp(directory) == NULL) return 1;
    snprintf(path, sizeof path, "%s/own.safetensors", directory);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_goes_on_to_the_same_bits),
        cmocka_unit_test(other_ranks_and_another_store_take_the_same_file),
        cmocka_unit_test(a_checkpoint_replaces_torn_parameters),
        cmocka_unit_test(a_trainers_checkpoint_is_called_so),
        cmocka_unit_test(another_rule_an_unfinished_step_and_nothing_are_refused),
    };
    int n_failed = run_group(tests);
    unlink(path);
    return rmdir(directory) != 0 ? 1 : n_failed; /* fails if a temporary file is left */
}
