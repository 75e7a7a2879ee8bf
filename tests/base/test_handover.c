/* How ranks find out whether to hand lines over through the caches. */
#include "test.h"

#include "base/cache.h"
#include "base/handover.h"

enum { PERIOD = 256, TRIED = 18 };

/* `n` turns, which take `through_ns` or `past_ns`; how many went past the caches. */
static int take_turns(lksi_handover *handover, int n, int64_t through_ns, int64_t past_ns) {
    int n_past = 0;
    for (int i = 0; i < n; i++) {
        lksi_handover_begin(handover);
        n_past += handover->is_past_caches;
        lksi_handover_end(handover, handover->is_past_caches ? past_ns : through_ns);
    }
    return n_past;
}

static void both_ways_are_tried_and_the_quicker_one_stays(void **state) {
    (void)state;
    lksi_handover handover = {0};
    if (!lksi_can_pass_caches()) skip();
    assert_int_equal(take_turns(&handover, TRIED, 100, 90), TRIED / 2);
    assert_int_equal(take_turns(&handover, PERIOD - TRIED, 100, 90), PERIOD - TRIED);
    assert_int_equal(take_turns(&handover, PERIOD, 100, 110), TRIED / 2);
}

static void single_slow_turns_change_nothing(void **state) {
    (void)state;
    lksi_handover handover = {0};
    if (!lksi_can_pass_caches()) skip();
    for (int i = 0; i < TRIED; i++) (void)take_turns(&handover, 1, i % 3 == 0 ? 10000 : 100, i % 4 == 0 ? 20000 : 90);
    assert_int_equal(take_turns(&handover, PERIOD - TRIED, 100, 90), PERIOD - TRIED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_are_tried_and_the_quicker_one_stays),
        cmocka_unit_test(single_slow_turns_change_nothing),
    };
    return run_group(tests);
}
