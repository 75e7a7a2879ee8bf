/* What ranks were given is compared, and shown as a table. */
#include "ranks.h"

#include <lockstep/parallel.h>
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
    RANK_OK(lks_all_reduce(group, &one, &n_ranks, 1, LKS_I32, LKS_SUM, NULL)); /* the group lives on */
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

/* Two options that differ by the same last bytes: a sum of hashes that differ by the same would hide them. */
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
                                                 "  and yet others on ranks 4-7");
}

/* 60 bytes alike, and then something that differs. */
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

/* On rank 0; the other has none. */
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
    run_ranks(2, compare_wrong_ones, (&(wrong_options){NULL, -1, "-1 options to compare on rank 0"}));
    run_ranks(2, compare_wrong_ones, (&(wrong_options){nameless, 2, "option 1 to compare on rank 0 has no name"}));
    run_ranks(2, compare_wrong_ones, (&(wrong_options){twice, 3, "option 'lr' to compare is there twice on rank 0"}));
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

int main(void) {
    const struct CMUnitTest tests[] = {
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
    };
    return run_group(tests);
}
