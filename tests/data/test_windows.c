/* Windows of a text: every token is predicted once, by the rank that has its column, from the preceding token. */
#include "test.h"

#include "data/data_internal.h"

#include <string.h>

enum { MAX_COUNT = 1000 };

/* Token i is 10 i. */
static const int32_t *make_tokens(void) {
    static int32_t tokens[MAX_COUNT];
    for (int32_t i = 0; i < MAX_COUNT; i++) tokens[i] = 10 * i;
    return tokens;
}

static lks_windows *make_windows(int64_t count, lks_windows_options options) {
    lks_windows *windows;
    assert_ok(lks_windows_create(&windows, make_tokens(), count, &options));
    return windows;
}

/* Counts how often each token is a label. Checks that it follows its input, and the order within its column. */
static void check_batch(const lks_batch *batch, int64_t n_steps, int n_seen[MAX_COUNT]) {
    const int32_t *inputs = batch->features;
    int64_t n_labels = 0;
    for (int64_t i = 0; i < batch->count * n_steps; i++) {
        int32_t label = batch->labels[i];
        if (label == -1) {
            assert_int_equal(inputs[i], 0);
            continue;
        }
        assert_int_equal(label % 10, 0);
        assert_in_range(label / 10, 1, MAX_COUNT - 1);
        assert_int_equal(inputs[i], label - 10);
        if (i % n_steps > 0) assert_int_equal(batch->labels[i - 1], label - 10);
        n_seen[label / 10]++;
        n_labels++;
    }
    assert_int_equal(batch->n_labels, n_labels);
}

static void check_epoch(lks_windows **ranks, int n_ranks, int64_t count, int64_t batch, int64_t n_steps,
                        int64_t epoch) {
    int n_seen[MAX_COUNT] = {0};
    for (int64_t step = 0; step < lks_windows_steps(ranks[0]); step++) {
        int64_t n_columns = 0, n_labels = 0, global_n_labels = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            lks_batch part;
            assert_int_equal(lks_windows_next(ranks[rank], &part), 1);
            check_batch(&part, n_steps, n_seen);
            assert_true(part.epoch == epoch && part.step == step && part.indices == NULL);
            assert_int_equal(part.global_offset, n_columns);
            assert_int_equal(part.global_count, batch);
            assert_in_range(part.count, batch / n_ranks, batch / n_ranks + (batch % n_ranks > 0));
            n_columns += part.count;
            n_labels += part.n_labels;
            global_n_labels = part.global_n_labels;
        }
        assert_int_equal(n_columns, batch);
        assert_int_equal(n_labels, global_n_labels);
        assert_true(n_labels > 0);
    }
    assert_int_equal(n_seen[0], 0); /* no token precedes it */
    for (int64_t i = 1; i < MAX_COUNT; i++) assert_int_equal(n_seen[i], i < count);
}

/* Runs two epochs on all ranks of a world. */
static void check_world(int64_t count, lks_windows_options options) {
    lks_windows *ranks[8];
    for (options.rank = 0; options.rank < options.n_ranks; options.rank++)
        ranks[options.rank] = make_windows(count, options);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        lks_batch end;
        check_epoch(ranks, options.n_ranks, count, options.batch, options.n_steps, epoch);
        for (int rank = 0; rank < options.n_ranks; rank++) assert_int_equal(lks_windows_next(ranks[rank], &end), 0);
    }
    for (int rank = 0; rank < options.n_ranks; rank++) lks_windows_destroy(ranks[rank]);
}

static void every_token_is_predicted_exactly_once(void **state) {
    (void)state;
    static const int64_t counts[] = {9, 10, 101, 997, 1000}, batches[] = {1, 2, 7, 8}, lengths[] = {1, 3, 35, 2000};
    static const int worlds[] = {1, 2, 3, 7};
    for (size_t c = 0; c < 5; c++)
        for (size_t b = 0; b < 4; b++)
            for (size_t t = 0; t < 4; t++)
                for (size_t w = 0; w < 4 && worlds[w] <= batches[b]; w++)
                    check_world(counts[c], (lks_windows_options){
                                               .batch = batches[b], .n_steps = lengths[t], .n_ranks = worlds[w]});
}

/* Includes texts with fewer columns than ranks. */
static void with_grains_every_token_is_predicted_exactly_once(void **state) {
    (void)state;
    static const int64_t batches[] = {1, 3, 8, 11};
    for (size_t b = 0; b < 4; b++)
        for (int64_t grains = 1; grains <= 16; grains *= 4)
            for (int n_ranks = 1; n_ranks <= 8 && n_ranks <= grains; n_ranks *= 2)
                check_world(997, (lks_windows_options){
                                     .batch = batches[b], .n_steps = 35, .grains = grains, .n_ranks = n_ranks});
}

static void a_small_text_is_cut_as_the_drawing_says(void **state) {
    (void)state;
    lks_windows *windows = make_windows(11, (lks_windows_options){.batch = 3, .n_steps = 3});
    static const int32_t inputs[2][9] = {{0, 10, 20, 40, 50, 60, 80, 90, 0}, {30, 0, 0, 70, 0, 0, 0, 0, 0}};
    static const int32_t labels[2][9] = {{10, 20, 30, 50, 60, 70, 90, 100, -1}, {40, -1, -1, 80, -1, -1, -1, -1, -1}};
    lks_batch batch;
    assert_int_equal(lks_windows_steps(windows), 2);
    for (int step = 0; step < 2; step++) {
        assert_int_equal(lks_windows_next(windows, &batch), 1);
        assert_memory_equal(batch.features, inputs[step], sizeof inputs[step]);
        assert_memory_equal(batch.labels, labels[step], sizeof labels[step]);
    }
    assert_int_equal(batch.n_labels, 2);
    lks_windows_destroy(windows);
}

static void columns_go_on_where_they_stopped_and_ranks_share_them_out(void **state) {
    (void)state;
    lks_windows *all = make_windows(1000, (lks_windows_options){.batch = 5, .n_steps = 20});
    lks_windows *second = make_windows(1000, (lks_windows_options){.batch = 5, .n_steps = 20, .rank = 1, .n_ranks = 2});
    lks_batch batch, part;
    int32_t last[5] = {0, 2000, 4000, 6000, 8000};
    for (int step = 0; step < 5; step++) {
        assert_int_equal(lks_windows_next(all, &batch), 1);
        assert_int_equal(lks_windows_next(second, &part), 1);
        for (int column = 0; column < 5; column++) {
            assert_int_equal(((const int32_t *)batch.features)[column * 20], last[column]);
            last[column] = batch.labels[column * 20 + 19];
        }
        assert_true(part.count == 2 && part.global_offset == 3);
        assert_memory_equal(part.labels, batch.labels + 3 * 20, 2 * 20 * sizeof(int32_t));
    }
    lks_windows_destroy(all);
    lks_windows_destroy(second);
}

static void seek_and_rewind_go_to_any_step_of_any_epoch(void **state) {
    (void)state;
    lks_windows *windows = make_windows(101, (lks_windows_options){.batch = 4, .n_steps = 5});
    lks_batch batch;
    assert_int_equal(lks_windows_steps(windows), 5);
    for (int i = 0; i < 8; i++) (void)lks_windows_next(windows, &batch);
    assert_true(batch.epoch == 1 && batch.step == 1);
    lks_windows_seek(windows, 3, 4);
    assert_int_equal(lks_windows_next(windows, &batch), 1);
    assert_true(batch.epoch == 3 && batch.step == 4 && batch.labels[0] == 210);
    assert_int_equal(lks_windows_next(windows, &batch), 0);
    lks_windows_seek(windows, 7, 1000);
    assert_int_equal(lks_windows_next(windows, &batch), 0);
    assert_int_equal(lks_windows_next(windows, &batch), 1);
    assert_true(batch.epoch == 8 && batch.step == 0);
    lks_windows_seek(windows, 7, -1);
    assert_int_equal(lks_windows_next(windows, &batch), 0);
    lks_windows_rewind(windows);
    assert_int_equal(lks_windows_next(windows, &batch), 1);
    assert_true(batch.epoch == 0 && batch.step == 0 && batch.labels[0] == 10);
    lks_windows_seek(windows, INT64_MAX, INT64_MAX); /* after the last epoch number, the same number is used again */
    assert_int_equal(lks_windows_next(windows, &batch), 0);
    assert_int_equal(lks_windows_next(windows, &batch), 1);
    assert_true(batch.epoch == INT64_MAX && batch.step == 0);
    lks_windows_destroy(windows);
}

static void nothing_is_allocated_after_creation(void **state) {
    (void)state;
    lks_windows *windows = make_windows(1000, (lks_windows_options){.batch = 4, .n_steps = 5});
    int64_t count = lks_memory_allocation_count();
    lks_batch batch;
    for (int i = 0; i < 200; i++) (void)lks_windows_next(windows, &batch);
    assert_int_equal(lks_memory_allocation_count(), count);
    lks_windows_destroy(windows);
}

static void wrong_options_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        lks_windows_options options;
        int64_t count;
        const char *part;
    } cases[] = {
        {{.batch = 0, .n_steps = 5}, 100, "a batch of 0 columns"},
        {{.batch = 3, .n_steps = 5, .n_ranks = 4}, 100, "a batch of 3 columns is smaller than the 4 ranks"},
        {{.batch = 100, .n_steps = 5}, 100, "a text of only 99 labels"},
        {{.batch = 1, .n_steps = 5}, 1, "a text of only 0 labels"},
        {{.batch = 1, .n_steps = 5}, 0, "a text of only 0 labels"},
        {{.batch = 8, .n_steps = 5, .grains = 12}, 100, "grains 12 is not a power of two"},
        {{.batch = 8, .n_steps = 5, .grains = 2, .n_ranks = 4},
         100,
         "grains 2 cannot be divided equally among 4 ranks"},
        {{.batch = 4, .n_steps = 0}, 100, "windows of 0 steps"},
        {{.batch = 4, .n_steps = -3}, 100, "windows of -3 steps"},
        {{.batch = 8, .n_steps = 5, .n_ranks = 4, .rank = 4}, 100, "rank 4 is outside the world of 4"},
        {{.batch = 8, .n_steps = 5, .rank = 1}, 100, "rank 1 is outside the world of 1"},
        {{.batch = 8, .n_steps = 5, .n_ranks = -2}, 100, "n_ranks -2 is negative"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_windows *windows = NULL;
        assert_int_equal(lks_windows_create(&windows, make_tokens(), cases[i].count, &cases[i].options),
                         LKS_ERR_ARGUMENT);
        assert_null(windows);
        if (strstr(lks_error_text(), cases[i].part) == NULL)
            fail_msg("'%s' does not say '%s'", lks_error_text(), cases[i].part);
    }
    lks_windows *windows = NULL;
    assert_int_equal(lks_windows_create(&windows, make_tokens(), 100, NULL), LKS_ERR_ARGUMENT);
    const lks_windows_options good = {.batch = 1, .n_steps = 5};
    assert_int_equal(lks_windows_create(&windows, NULL, 100, &good), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "windows_create: `tokens` is NULL");
    assert_int_equal(lks_windows_create(NULL, make_tokens(), 100, &good), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "windows_create: `windows` is NULL");
}

static void an_allocation_that_fails_leaves_nothing(void **state) {
    (void)state;
    const lks_windows_options options = {.batch = 4, .n_steps = 5};
    lks_windows *windows = NULL;
    int n_failed = 0;
    for (;; n_failed++) {
        lksi_alloc_fail_after(n_failed + 1);
        if (lks_windows_create(&windows, make_tokens(), 100, &options) == LKS_OK) break;
        assert_int_equal(lks_memory_nbytes(), 0);
        assert_null(windows);
    }
    lksi_alloc_fail_after(0);
    assert_int_equal(n_failed, 3);
    lks_windows_destroy(windows);
    lks_windows_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_is_predicted_exactly_once),
        cmocka_unit_test(with_grains_every_token_is_predicted_exactly_once),
        cmocka_unit_test(a_small_text_is_cut_as_the_drawing_says),
        cmocka_unit_test(columns_go_on_where_they_stopped_and_ranks_share_them_out),
        cmocka_unit_test(seek_and_rewind_go_to_any_step_of_any_epoch),
        cmocka_unit_test(nothing_is_allocated_after_creation),
        cmocka_unit_test(wrong_options_are_refused_by_name),
        cmocka_unit_test(an_allocation_that_fails_leaves_nothing),
    };
    return run_group(tests);
}
