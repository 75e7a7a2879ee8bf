/* How a shared replica finds out whether to hand lines over through the caches. */
#include "test.h"

#include "base/cache.h"
#include "parallel/handover.h"

enum { PERIOD = 256, TRIED = 18 };

/* Steps [begin, end), which take `through_ns` or `past_ns`; how many went past the caches. */
static int run_steps(lksi_handover *handover, int64_t begin, int64_t end, int64_t through_ns, int64_t past_ns) {
    int n_past = 0;
    for (int64_t step = begin; step < end; step++) {
        lksi_handover_begin(handover, step);
        n_past += handover->is_past_caches;
        lksi_handover_end(handover, handover->ended_ns + (handover->is_past_caches ? past_ns : through_ns));
    }
    return n_past;
}

static void both_ways_are_tried_and_the_quicker_one_stays(void **state) {
    (void)state;
    lksi_handover handover = {0};
    if (!lksi_can_pass_caches()) skip();
    assert_int_equal(run_steps(&handover, 0, TRIED, 100, 90), TRIED / 2);
    assert_int_equal(run_steps(&handover, TRIED, PERIOD, 100, 90), PERIOD - TRIED);
    assert_int_equal(run_steps(&handover, PERIOD, 2 * PERIOD, 100, 110), TRIED / 2);
}

static void single_slow_steps_change_nothing(void **state) {
    (void)state;
    lksi_handover handover = {0};
    if (!lksi_can_pass_caches()) skip();
    for (int64_t step = 0; step < TRIED; step++)
        (void)run_steps(&handover, step, step + 1, step % 3 == 0 ? 10000 : 100, step % 4 == 0 ? 20000 : 90);
    assert_int_equal(run_steps(&handover, TRIED, PERIOD, 100, 90), PERIOD - TRIED);
}

/* A run that goes on from a checkpoint begins anywhere. */
static void before_anything_was_tried_it_is_through_the_caches(void **state) {
    (void)state;
    lksi_handover handover = {0};
    assert_int_equal(run_steps(&handover, 100, PERIOD, 100, 90), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_are_tried_and_the_quicker_one_stays),
        cmocka_unit_test(single_slow_steps_change_nothing),
        cmocka_unit_test(before_anything_was_tried_it_is_through_the_caches),
    };
    return run_group(tests);
}
