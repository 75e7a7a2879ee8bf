/* Schedules against PyTorch 1.13's learning rates with lr 1, advanced every step. */
#include "test.h"

#include <lockstep/optim.h>
#include <math.h>

static void follow(lks_schedule schedule, const double *expected, int64_t n) {
    for (int64_t step = 0; step < n; step++)
        if (fabs(lks_schedule_factor(&schedule, step) - expected[step]) > 1e-14)
            fail_msg("step %lld: %.17g, PyTorch gives %.17g", (long long)step, lks_schedule_factor(&schedule, step),
                     expected[step]);
}

static void the_linear_schedule_ends_at_its_last_factor(void **state) {
    (void)state;
    lks_schedule s = lks_schedule_linear(1.0, 0.3, 1000);
    assert_true(lks_schedule_factor(&s, 0) == 1.0);
    assert_true(fabs(lks_schedule_factor(&s, 500) - 0.65) < 1e-12);
    assert_true(lks_schedule_factor(&s, 1000) == 0.3 && lks_schedule_factor(&s, 5000) == 0.3);
    assert_true(lks_schedule_factor(&(lks_schedule){0}, 5) == 1.0);
    s = lks_schedule_warm_up(s, 0.5, 10);
    assert_true(lks_schedule_factor(&s, -3) == 0.5); /* before the first step as in the first step */
}

static void steps_are_those_of_step_lr(void **state) {
    (void)state;
    static const double expected[] = {1,   1,   1,    1,    1,    1,    0.5,  0.5,  0.5,   0.5,
                                      0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125};
    follow(lks_schedule_step(0.5, 6), expected, 20);
}

static void the_cosine_is_that_of_cosine_annealing_lr(void **state) {
    (void)state;
    static const double expected[] = {1,
                                      0.9938625865312251,
                                      0.9756177587652856,
                                      0.94576318804292,
                                      0.9051132292283772,
                                      0.8547767072315836,
                                      0.7961266711550922,
                                      0.7307629410938363,
                                      0.6604684692133597,
                                      0.5871607054625497,
                                      0.5128392945374506,
                                      0.4395315307866406,
                                      0.3692370589061639,
                                      0.3038733288449079,
                                      0.2452232927684167,
                                      0.194886770771623,
                                      0.15423681195708,
                                      0.1243822412347144,
                                      0.106137413468775,
                                      0.1};
    follow(lks_schedule_cosine(0.1, 19), expected, 20);
    lks_schedule s = lks_schedule_cosine(0.1, 19);
    assert_true(lks_schedule_factor(&s, 100) == 0.1); /* constant after the end */
}

/* With 20 steps the peak is at a step. With 16 it is between two steps. */
static void the_cycle_is_that_of_one_cycle_lr(void **state) {
    (void)state;
    static const double expected[] = {0.04000000000000004, 0.1316718427000253, 0.3716718427000253,
                                      0.6683281572999747,  0.9083281572999747, 1,
                                      0.9874640062350873,  0.9504846320134737, 0.89091617757105,
                                      0.8117456539497631,  0.7169430017913008, 0.6112620219362893,
                                      0.5000019999999999,  0.3887419780637107, 0.2830609982086992,
                                      0.188258346050237,   0.10908782242895,   0.04951936798652629,
                                      0.01253999376491255};
    static const double between[] = {0.04000000000000004, 0.1949048456196443,  0.5596380858267195, 0.8987874445102688,
                                     0.9992134106552782,  0.9719417773875232,  0.9077808033578921, 0.8117456539497629,
                                     0.6913429508156801,  0.5559840141227016,  0.4162492233600785, 0.2830609982086992,
                                     0.166830043717154,   0.07664159383425639, 0.01954526086209414};
    follow(lks_schedule_one_cycle(20), expected, 19);
    follow(lks_schedule_one_cycle(16), between, 15);
    for (int64_t n = 1; n < 8; n++) { /* too short to rise, but still finite */
        lks_schedule s = lks_schedule_one_cycle(n);
        for (int64_t step = 0; step < 10; step++) assert_true(lks_schedule_factor(&s, step) > 0);
        assert_true(lks_schedule_factor(&s, n - 1) == 1.0 / 25 / 1e4);
    }
}

static void warm_up_comes_before_any_of_them(void **state) {
    (void)state;
    static const double expected[] = {0.1,
                                      0.28,
                                      0.4599999999999999,
                                      0.6399999999999999,
                                      0.8199999999999998,
                                      1,
                                      0.9874639560909118,
                                      0.9504844339512095,
                                      0.890915741234015,
                                      0.8117449009293668,
                                      0.716941869558779,
                                      0.6112604669781572,
                                      0.4999999999999999,
                                      0.3887395330218428,
                                      0.283058130441221,
                                      0.1882550990706333,
                                      0.1090842587659853,
                                      0.04951556604879048,
                                      0.01253604390908813};
    follow(lks_schedule_warm_up(lks_schedule_cosine(0, 14), 0.1, 5), expected, 19);
    lks_schedule s = lks_schedule_warm_up((lks_schedule){0}, 0, 4);
    assert_true(lks_schedule_factor(&s, 0) == 0 && lks_schedule_factor(&s, 1) == 0.25);
    assert_true(lks_schedule_factor(&s, 4) == 1 && lks_schedule_factor(&s, 40) == 1);
    assert_true(isnan(lks_schedule_factor(NULL, 0)));
}

static void a_second_warm_up_replaces_the_first(void **state) {
    (void)state;
    lks_schedule cosine = lks_schedule_cosine(0, 14), once = lks_schedule_warm_up(cosine, 0.1, 5);
    lks_schedule twice = lks_schedule_warm_up(lks_schedule_warm_up(cosine, 0.5, 3), 0.1, 5);
    for (int64_t step = 0; step < 20; step++)
        assert_true(lks_schedule_factor(&twice, step) == lks_schedule_factor(&once, step));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_linear_schedule_ends_at_its_last_factor),
        cmocka_unit_test(steps_are_those_of_step_lr),
        cmocka_unit_test(the_cosine_is_that_of_cosine_annealing_lr),
        cmocka_unit_test(the_cycle_is_that_of_one_cycle_lr),
        cmocka_unit_test(warm_up_comes_before_any_of_them),
        cmocka_unit_test(a_second_warm_up_replaces_the_first),
    };
    return run_group(tests);
}
