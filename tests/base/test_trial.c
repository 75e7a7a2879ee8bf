/* How the faster of two ways is found. */
#include "test.h"

#include "base/trial.h"

enum { PERIOD = 256, SHORT = PERIOD / 8, TRIED = 24 };

/* Takes `n` turns of `first_ns` or `second_ns` each. Returns how many of them took the second way. */
static int take_turns(lksi_trial *trial, int n, int64_t first_ns, int64_t second_ns) {
    int n_second = 0;
    for (int i = 0; i < n; i++) {
        lksi_trial_begin(trial, PERIOD);
        assert_int_equal(trial->is_tried, (trial->turn - 1) % PERIOD < TRIED);
        n_second += trial->is_second;
        lksi_trial_end(trial, trial->is_second ? second_ns : first_ns);
    }
    return n_second;
}

static void both_ways_are_tried_and_the_quicker_one_stays(void **state) {
    (void)state;
    lksi_trial trial = {0};
    assert_int_equal(take_turns(&trial, TRIED, 100, 90), TRIED / 2);
    assert_int_equal(take_turns(&trial, SHORT - TRIED, 100, 90), SHORT - TRIED);
    assert_int_equal(take_turns(&trial, PERIOD, 100, 110), TRIED / 2);
}

static void single_slow_turns_change_nothing(void **state) {
    (void)state;
    lksi_trial trial = {0};
    for (int i = 0; i < TRIED; i++) (void)take_turns(&trial, 1, i % 3 == 0 ? 10000 : 100, i % 4 == 0 ? 20000 : 90);
    assert_int_equal(take_turns(&trial, SHORT - TRIED, 100, 90), SHORT - TRIED);
}

static void a_trial_of_calls_can_be_put_off_and_rest(void **state) {
    (void)state;
    lksi_call_trial trial = {0};
    lksi_call_trial_put_off(&trial, 3);
    for (int i = 0; i < 3 + TRIED; i++) {
        lksi_call_trial_begin(&trial, PERIOD);
        assert_int_equal(trial.turn.is_tried, i >= 3);
        assert_int_equal(trial.turn.is_second, i >= 3 + TRIED / 2);
        lksi_call_trial_end(&trial);
        lksi_trial_rest(&trial.turn); /* a rest is not counted as a turn */
        assert_false(trial.turn.is_tried || trial.turn.is_second);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_are_tried_and_the_quicker_one_stays),
        cmocka_unit_test(single_slow_turns_change_nothing),
        cmocka_unit_test(a_trial_of_calls_can_be_put_off_and_rest),
    };
    return run_group(tests);
}
