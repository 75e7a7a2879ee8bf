/* The ranks compare their arguments. Differences are shown as a table. */
#include "ranks.h"

#include "comm/ranks.h"
#include "parallel/parallel_internal.h"

#include <lockstep/data.h>
#include <lockstep/nn.h>
#include <string.h>

enum { MAX_RANKS = 8, TEXT_NBYTES = 1024, MAX_OPTIONS = 40 };

typedef struct given {
    lks_option options[MAX_OPTIONS];
    int n_options;
} given;

typedef struct comparison {
    void (*give)(int rank, given *mine);
    lks_status expected;
    char texts[MAX_RANKS][TEXT_NBYTES];
} comparison;

static int compare(void *argument) {
    comparison *c = argument;
    lks_group *group;
    given mine = {0};
    int32_t one = 1, n_ranks = 0;
    RANK_OK(lks_init(&group, NULL));
    int rank = lks_group_rank(group);
    c->give(rank, &mine);
    RANK_CHECK(lks_compare_options(group, mine.options, mine.n_options) == c->expected);
    if (c->expected != LKS_OK) snprintf(c->texts[rank], TEXT_NBYTES, "%s", lks_error_text());
    RANK_OK(lks_all_reduce(group, &one, &n_ranks, 1, LKS_I32, LKS_SUM, NULL)); /* the group is usable */
    RANK_CHECK(n_ranks == lks_group_size(group));
    lks_group_destroy(group);
    return 0;
}

static void add(given *mine, const char *name, const char *value) {
    mine->options[mine->n_options++] = (lks_option){name, value};
}

static comparison shared;

static const char *table_of(int size, void (*give)(int rank, given *mine)) {
    shared = (comparison){.give = give, .expected = LKS_ERR_MISMATCH};
    run_ranks(size, compare, &shared);
    for (int rank = 1; rank < size; rank++) assert_string_equal(shared.texts[rank], shared.texts[0]);
    return shared.texts[0];
}

static void give_the_same(int rank, given *mine) {
    const char *const names[] = {"seed", "lr", "batch"}, *const values[] = {"1", "0.1", "64"};
    for (int i = 0; i < 3; i++) add(mine, names[(i + rank) % 3], values[(i + rank) % 3]);
    add(mine, "clip", NULL);
}

static void equal_options_in_any_order_pass(void **state) {
    (void)state;
    for (int size = 1; size <= MAX_RANKS; size++) {
        shared = (comparison){.give = give_the_same, .expected = LKS_OK};
        run_ranks(size, compare, &shared);
    }
}

static void differ_in_two(int rank, given *mine) {
    add(mine, "seed", "1");
    add(mine, "lr", rank == 3 ? "0.01" : "0.1");
    add(mine, "device", "cpu");
    add(mine, "batch", rank == 3 ? "32" : "64");
}

static void a_table_shows_just_what_differs_and_on_which_rank(void **state) {
    (void)state;
    assert_string_equal(table_of(6, differ_in_two), "the ranks do not agree:\n"
                                                    "  option | ranks 0-2, 4-5 | rank 3\n"
                                                    "  lr     | 0.1            | 0.01\n"
                                                    "  batch  | 64             | 32");
}

/* Two options differ in the same last bytes. A sum of hashes would not detect this. */
static int differ_alike(void *argument) {
    enum { N_VALUES = 20 };
    (void)argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    for (int of_others = 0; of_others < N_VALUES; of_others++)
        for (int of_last = 0; of_last < N_VALUES; of_last++) {
            char value[16];
            snprintf(value, sizeof value, "%d", lks_group_rank(group) == 2 ? of_last : of_others);
            const lks_option options[] = {{"epochs", value}, {"batch", value}};
            lks_status expected = of_last == of_others ? LKS_OK : LKS_ERR_MISMATCH;
            RANK_CHECK(lks_compare_options(group, options, 2) == expected);
        }
    lks_group_destroy(group);
    return 0;
}

static void options_that_differ_alike_do_not_cancel(void **state) {
    (void)state;
    run_ranks(3, differ_alike, NULL);
}

static void lack_one(int rank, given *mine) {
    if (rank != 0) add(mine, "clip", "0.25");
    add(mine, "seed", "1");
    if (rank == 2) add(mine, "momentum", "0.9");
}

static void an_option_that_others_lack_is_shown(void **state) {
    (void)state;
    assert_string_equal(table_of(3, lack_one), "the ranks do not agree:\n"
                                               "  option   | rank 0 | rank 1 | rank 2\n"
                                               "  clip     | -      | 0.25   | 0.25\n"
                                               "  momentum | -      | -      | 0.9");
}

static void give_nothing_on_one(int rank, given *mine) {
    if (rank != 1) add(mine, "seed", "1");
}

static void a_rank_without_options_is_shown(void **state) {
    (void)state;
    assert_string_equal(table_of(2, give_nothing_on_one), "the ranks do not agree:\n"
                                                          "  option | rank 0 | rank 1\n"
                                                          "  seed   | 1      | -");
}

static void all_differ(int rank, given *mine) {
    static const char *const values[MAX_RANKS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    add(mine, "host", values[rank]);
}

static void ranks_past_the_columns_are_named(void **state) {
    (void)state;
    assert_string_equal(table_of(8, all_differ), "the ranks do not agree:\n"
                                                 "  option | rank 0 | rank 1 | rank 2 | rank 3\n"
                                                 "  host   | a      | b      | c      | d\n"
                                                 "  and others on ranks 4-7");
}

/* 60 equal bytes, then a difference. */
static void differ_late(int rank, given *mine) {
    static const char alike[] = "................................................--data=/a/b/";
    static char values[2][80];
    snprintf(values[rank], sizeof values[rank], "%s%s", alike, rank == 0 ? "first" : "second");
    add(mine, "flags", values[rank]);
}

static void long_values_are_shown_where_they_differ(void **state) {
    (void)state;
    assert_string_equal(table_of(2, differ_late), "the ranks do not agree:\n"
                                                  "  option | rank 0           | rank 1\n"
                                                  "  flags  | ...ta=/a/b/first | ...ta=/a/b/second");
}

static void differ_in_control(int rank, given *mine) { add(mine, "a\nb", rank == 0 ? "1\n2\t" : "\033[31mred\177"); }

static void nothing_that_a_terminal_would_obey_is_shown(void **state) {
    (void)state;
    assert_string_equal(table_of(2, differ_in_control), "the ranks do not agree:\n"
                                                        "  option | rank 0 | rank 1\n"
                                                        "  a?b    | 1?2?   | ?[31mred?");
}

typedef struct wrong_options {
    const lks_option *options;
    int n_options;
    const char *text;
} wrong_options;

/* Rank 0 passes them, the other rank passes none. */
static int compare_wrong_ones(void *argument) {
    const wrong_options *wrong = argument;
    lks_group *group;
    RANK_OK(lks_init(&group, NULL));
    if (lks_group_rank(group) == 0)
        RANK_CHECK(lks_compare_options(group, wrong->options, wrong->n_options) == LKS_ERR_ARGUMENT);
    else
        RANK_CHECK(lks_compare_options(group, NULL, 0) == LKS_ERR_PEER);
    RANK_CHECK(strstr(lks_error_text(), wrong->text) != NULL);
    lks_group_destroy(group);
    return 0;
}

static void options_that_cannot_be_compared_are_refused(void **state) {
    (void)state;
    const lks_option nameless[] = {{"lr", "1"}, {NULL, "2"}}, twice[] = {{"lr", "1"}, {"seed", "1"}, {"lr", "2"}};
    run_ranks(2, compare_wrong_ones, (&(wrong_options){NULL, -1, "compare_options: n_options is -1 on rank 0"}));
    run_ranks(2, compare_wrong_ones,
              (&(wrong_options){nameless, 2, "compare_options: option 1 on rank 0 has no name"}));
    run_ranks(2, compare_wrong_ones, (&(wrong_options){twice, 3, "option 'lr' occurs twice on rank 0"}));
}

/* Names and values of any length. */
static void differ_in_long_ones(int rank, given *mine) {
    static const char long_value[] = "................................................................";
    add(mine, "seed", rank == 0 ? "1" : "2");
    for (int i = 0; i < 3; i++)
        add(mine, &"a name of many, many letters, too many for a column"[i], &long_value[rank + i]);
    for (int i = 0; i < 30; i++)
        add(mine, &"..............................................."[i], rank == 0 ? "1" : "2");
}

static void a_table_is_cut_where_it_is_too_long(void **state) {
    (void)state;
    const char *text = table_of(2, differ_in_long_ones);
    assert_non_null(strstr(text, "\n  seed "));
    assert_non_null(strstr(text, "\n  and "));
    assert_non_null(strstr(text, " more"));
    assert_true(strlen(text) < TEXT_NBYTES - 1);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        assert_true(strcspn(line, "\n") <= 145);
    }
}

/* --- batches of a user's own loop --- */

enum { L_BATCH = 24, L_FEATURES = 6, L_CLASSES = 3, L_STEPS = 3 };

typedef struct loop {
    void (*give)(int rank, int size, lks_loader_options *options, uint64_t *data_seed);
    const char *text; /* part of the MISMATCH text; NULL: the training succeeds */
    lks_strategy strategy;
    const char *transport;
    int is_attached, has_idle_rank; /* in the first step the last rank has no samples */
} loop;

typedef struct loop_rank {
    lks_group *group;
    lks_node *x, *y, *loss;
    lks_store *store;
    lks_program *program;
    lks_distributed_optimizer *optimizer;
    lks_dataset *data;
    lks_loader *loader;
} loop_rank;

static int open_data(loop_rank *l, uint64_t seed, const lks_loader_options *options) {
    RANK_OK(lks_dataset_classification(&l->data, &(lks_classification_options){.n_samples = 10 * L_BATCH,
                                                                               .n_features = L_FEATURES,
                                                                               .n_informative = L_FEATURES,
                                                                               .n_classes = L_CLASSES,
                                                                               .clusters_per_class = 1,
                                                                               .seed = seed}));
    RANK_OK(lks_loader_create(&l->loader, l->data, options));
    return 0;
}

static void close_data(loop_rank *l) {
    lks_loader_destroy(l->loader);
    lks_dataset_destroy(l->data);
}

static int prepare(loop_rank *l, const loop *c, int64_t count) {
    lks_optimizer sgd = lks_sgd(&(lks_sgd_options){.lr = 0.1});
    lks_graph *g = lks_graph_create(lks_device_default(l->group));
    l->x = lks_input(g, "x", LKS_F32, 2, (int64_t[]){LKS_BATCH, L_FEATURES});
    l->y = lks_input(g, "y", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    l->loss = lks_cross_entropy(lks_linear(l->x, L_CLASSES, "fc"), l->y);
    RANK_OK(lks_distributed_store_create(&l->store, l->group, l->loss,
                                         &(lks_distributed_options){.strategy = c->strategy}));
    RANK_OK(lks_program_create(&l->program, l->store,
                               &(lks_program_options){.batch = count, .is_training = 1, .loss = l->loss}));
    RANK_OK(lks_distributed_optimizer_create(&l->optimizer, l->group, l->store, &sgd));
    l->optimizer->may_overlap = l->optimizer->may_overlap || c->is_attached;
    if (c->is_attached) RANK_OK(lks_distributed_optimizer_attach(l->optimizer, l->program));
    return 0;
}

static int step_once(loop_rank *l, int is_idle, lks_status expected) {
    lks_batch batch;
    lks_step_sums mine = {0};
    RANK_CHECK(lks_loader_next(l->loader, &batch));
    if (!is_idle) {
        RANK_OK(lks_program_set_batch(l->program, l->x, l->y, &batch));
        RANK_OK(lks_program_forward(l->program));
        RANK_OK(lks_program_backward(l->program, (double)batch.count));
        mine.n_samples = (double)batch.count;
    }
    RANK_CHECK(lks_distributed_optimizer_step(l->optimizer, &mine, NULL) == expected);
    return 0;
}

static uint64_t count_calls(const lks_group *group) {
    lks_counters counters;
    lks_group_counters(group, &counters);
    return counters.n_collectives;
}

/* After a mismatch nothing was updated. The loop then trains with loaders that agree. */
static int train_a_loop(void *argument) {
    const loop *c = argument;
    loop_rank l = {0};
    char before[65], after[65];
    RANK_OK(lks_init(&l.group, &(lks_init_options){.transport = c->transport}));
    int rank = lks_group_rank(l.group), size = lks_group_size(l.group), is_last = rank == size - 1;
    uint64_t data_seed = 1;
    lks_loader_options options = {.batch = L_BATCH, .seed = 5, .rank = rank, .n_ranks = size, .n_workers = -1};
    const lks_loader_options good = options;
    c->give(rank, size, &options, &data_seed);
    RANK_CHECK(open_data(&l, data_seed, &options) == 0);
    RANK_CHECK(prepare(&l, c, options.n_ranks == 0 ? options.batch : options.batch / options.n_ranks) == 0);
    if (c->text != NULL) {
        RANK_OK(lks_store_sha256(l.store, before));
        RANK_CHECK(step_once(&l, 0, LKS_ERR_MISMATCH) == 0);
        RANK_CHECK(strstr(lks_error_text(), c->text) != NULL);
        RANK_OK(lks_store_sha256(l.store, after));
        RANK_CHECK(strcmp(before, after) == 0);
        close_data(&l);
        RANK_CHECK(open_data(&l, 1, &good) == 0);
        lks_program_destroy(l.program);
        RANK_OK(lks_program_create(&l.program, l.store,
                                   &(lks_program_options){.batch = L_BATCH / size, .is_training = 1, .loss = l.loss}));
        if (c->is_attached) RANK_OK(lks_distributed_optimizer_attach(l.optimizer, l.program));
    }
    uint64_t n_calls[L_STEPS];
    for (int step = 0; step < L_STEPS; step++) {
        n_calls[step] = count_calls(l.group);
        RANK_CHECK(step_once(&l, c->has_idle_rank && is_last && step == 0, LKS_OK) == 0);
        n_calls[step] = count_calls(l.group) - n_calls[step];
    }
    /* otherwise the figures travel in a group of their own */
    bool is_in_group = c->strategy != LKS_STRATEGY_BUCKETED || lks_symmetric_supported(l.group);
    RANK_CHECK(n_calls[0] == n_calls[1] + is_in_group && n_calls[1] == n_calls[2]);
    RANK_OK(lks_check_replicas(l.group, l.store));
    lks_graph *g = lks_node_graph(l.loss);
    lks_distributed_optimizer_destroy(l.optimizer);
    lks_program_destroy(l.program);
    lks_store_destroy(l.store);
    lks_graph_destroy(g);
    close_data(&l);
    lks_group_destroy(l.group);
    return 0;
}

static void train_loops(loop c) {
    for (int size = 2; size <= 4; size++)
        for (int strategy = LKS_STRATEGY_SHARED; strategy <= LKS_STRATEGY_SHARDED; strategy++) {
            c.strategy = (lks_strategy)strategy;
            run_ranks(size, train_a_loop, &c);
        }
}

static void give_parts(int rank, int size, lks_loader_options *options, uint64_t *data_seed) {
    (void)rank, (void)size, (void)options, (void)data_seed;
}

static void give_all_to_everyone(int rank, int size, lks_loader_options *options, uint64_t *data_seed) {
    (void)rank, (void)size, (void)data_seed;
    options->rank = options->n_ranks = 0;
}

static void give_the_first_part_twice(int rank, int size, lks_loader_options *options, uint64_t *data_seed) {
    (void)size, (void)data_seed;
    if (rank == 1) options->rank = 0;
}

static void give_the_last_another_seed(int rank, int size, lks_loader_options *options, uint64_t *data_seed) {
    (void)data_seed;
    if (rank == size - 1) options->seed = 6;
}

static void give_the_last_other_data(int rank, int size, lks_loader_options *options, uint64_t *data_seed) {
    (void)options;
    if (rank == size - 1) *data_seed = 2;
}

static void give_each_its_own_data(int rank, int size, lks_loader_options *options, uint64_t *data_seed) {
    (void)size;
    *data_seed = (uint64_t)rank + 1;
    options->rank = options->n_ranks = 0;
}

static void give_each_its_own_order(int rank, int size, lks_loader_options *options, uint64_t *data_seed) {
    (void)size, (void)data_seed;
    options->seed = (uint64_t)rank;
    options->rank = options->n_ranks = 0;
}

/* Ranks 2i and 2i + 1 act like a host with data of its own, which its ranks share. */
static void give_each_pair_its_own_data(int rank, int size, lks_loader_options *options, uint64_t *data_seed) {
    *data_seed = (uint64_t)rank / 2 + 1;
    options->rank = rank % 2;
    options->n_ranks = rank == size - 1 && size % 2 == 1 ? 0 : 2;
}

static void loops_on_other_data_are_shown_to_each_other(void **state) {
    (void)state;
    train_loops((loop){.give = give_the_last_another_seed, .text = "\n  order of samples (hash) | "});
    train_loops((loop){.give = give_the_last_other_data, .text = "\n  data (hash) | "});
}

static void loops_on_the_same_samples_are_refused(void **state) {
    (void)state;
    train_loops((loop){.give = give_all_to_everyone, .text = "ranks 0 and 1 train on the same samples"});
    train_loops((loop){.give = give_the_first_part_twice, .text = "ranks 0 and 1 train on the same samples"});
}

static void loops_on_parts_or_on_data_of_their_own_train(void **state) {
    (void)state;
    train_loops((loop){.give = give_parts});
    train_loops((loop){.give = give_parts, .has_idle_rank = 1});
    train_loops((loop){.give = give_each_its_own_data});
    train_loops((loop){.give = give_each_its_own_order});
    train_loops((loop){.give = give_each_pair_its_own_data});
}

static int train_a_loop_in_a_process(int rank, int size, void *argument) {
    (void)rank, (void)size;
    return train_a_loop(argument);
}

/* This test comes first: it forks, so no thread may exist yet. */
static void loops_are_compared_while_gradients_are_under_way(void **state) {
    (void)state;
    loop loops[] = {{.give = give_parts, .has_idle_rank = 1},
                    {.give = give_the_last_another_seed, .text = "\n  order of samples (hash) | "},
                    {.give = give_all_to_everyone, .text = "ranks 0 and 1 train on the same samples"}};
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        loops[i].strategy = LKS_STRATEGY_BUCKETED;
        loops[i].transport = "tcp";
        loops[i].is_attached = 1;
        run_processes(3, train_a_loop_in_a_process, &loops[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_are_compared_while_gradients_are_under_way),
        cmocka_unit_test(equal_options_in_any_order_pass),
        cmocka_unit_test(a_table_shows_just_what_differs_and_on_which_rank),
        cmocka_unit_test(options_that_differ_alike_do_not_cancel),
        cmocka_unit_test(an_option_that_others_lack_is_shown),
        cmocka_unit_test(a_rank_without_options_is_shown),
        cmocka_unit_test(ranks_past_the_columns_are_named),
        cmocka_unit_test(long_values_are_shown_where_they_differ),
        cmocka_unit_test(nothing_that_a_terminal_would_obey_is_shown),
        cmocka_unit_test(options_that_cannot_be_compared_are_refused),
        cmocka_unit_test(a_table_is_cut_where_it_is_too_long),
        cmocka_unit_test(loops_on_other_data_are_shown_to_each_other),
        cmocka_unit_test(loops_on_the_same_samples_are_refused),
        cmocka_unit_test(loops_on_parts_or_on_data_of_their_own_train),
    };
    return run_group(tests);
}
