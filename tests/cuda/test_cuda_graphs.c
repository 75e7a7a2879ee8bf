/* Steps with and without recording (LOCKSTEP_GPU_GRAPHS), on the emulated GPU. */
#include "cuda/small_training.h"
#include "ranks.h"

#include <math.h>

enum { N_STEPS = 4 };

static lks_status take_steps(const small_training *t) {
    for (int i = 0; i < N_STEPS; i++) LKS_TRY(take_step(t));
    return LKS_OK;
}

static void train(const char *graphs, char sha256[65]) {
    small_training t;
    setenv("LOCKSTEP_GPU_GRAPHS", graphs, 1);
    assert_ok(begin_training(&t));
    assert_ok(take_steps(&t));
    assert_ok(lks_store_sha256(lks_trainer_store(t.trainer), sha256));
    end_training(&t);
}

static void unrecorded_steps_have_the_same_bits(void **state) {
    (void)state;
    char recorded[65], unrecorded[65];
    train("1", recorded);
    train("0", unrecorded);
    assert_string_equal(recorded, unrecorded);
}

/* Takes a bad step between good ones: its loss is NaN, or it has an invalid label. The next step is already on the GPU
 * when the error is found. */
static void run_ahead(lks_status bad_step, char sha256[65]) {
    small_training t;
    assert_ok(begin_training_of(&t, 1));
    assert_ok(take_steps(&t));
    if (bad_step != LKS_OK) {
        bool is_label = bad_step == LKS_ERR_ARGUMENT;
        assert_ok(take_step_of(&t, is_label ? 1 : NAN, is_label ? 99 : 0));
        assert_int_equal(take_step(&t), bad_step);
        assert_non_null(strstr(lks_error_text(),
                               is_label ? "label 99 of sample 0 in the batch is not 0 to 2" : "nothing was updated"));
    }
    assert_ok(take_steps(&t));
    assert_ok(lks_trainer_catch_up(t.trainer, NULL));
    assert_ok(lks_store_sha256(lks_trainer_store(t.trainer), sha256));
    end_training(&t);
}

static void a_step_behind_a_refused_one_changes_nothing(void **state) {
    (void)state;
    for (int graphs = 0; graphs < 2; graphs++) {
        char good[65], no_number[65], no_label[65];
        setenv("LOCKSTEP_GPU_GRAPHS", graphs == 1 ? "1" : "0", 1);
        run_ahead(LKS_OK, good);
        run_ahead(LKS_ERR_NUMERIC, no_number);
        run_ahead(LKS_ERR_ARGUMENT, no_label);
        assert_string_equal(good, no_number);
        assert_string_equal(good, no_label);
    }
    unsetenv("LOCKSTEP_GPU_GRAPHS");
}

static void what_cannot_be_recorded_says_how_to_go_on(void **state) {
    (void)state;
    small_training t;
    char sha256[65];
    need_emulated_gpu();
    setenv("LOCKSTEP_EMULATED_GPU", "no-capture", 1);
    train("0", sha256);
    setenv("LOCKSTEP_GPU_GRAPHS", "", 1);
    assert_ok(begin_training(&t));
    assert_int_equal(take_steps(&t), LKS_ERR_SYSTEM);
    assert_non_null(strstr(lks_error_text(), "LOCKSTEP_GPU_GRAPHS=0 trains without recordings"));
    end_training(&t);
    unsetenv("LOCKSTEP_EMULATED_GPU");
}

static void other_values_are_refused(void **state) {
    (void)state;
    small_training t;
    setenv("LOCKSTEP_GPU_GRAPHS", "no", 1);
    assert_int_equal(begin_training(&t), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "LOCKSTEP_GPU_GRAPHS 'no' is not 0 or 1");
    end_training(&t);
}

static int differ(int rank, int size, void *argument) {
    (void)size, (void)argument;
    small_training t;
    setenv("LOCKSTEP_GPU_GRAPHS", rank == 0 ? "1" : "0", 1);
    MUST(begin_training(&t) == LKS_ERR_MISMATCH);
    MUST_SAY("LOCKSTEP_GPU_GRAPHS");
    end_training(&t);
    return 0;
}

static void ranks_have_to_agree(void **state) {
    (void)state;
    run_processes(2, differ, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_have_to_agree), /* first: CUDA takes no fork() later */
                                       cmocka_unit_test(unrecorded_steps_have_the_same_bits),
                                       cmocka_unit_test(a_step_behind_a_refused_one_changes_nothing),
                                       cmocka_unit_test(what_cannot_be_recorded_says_how_to_go_on),
                                       cmocka_unit_test(other_values_are_refused)};
    return run_cuda_tests("cuda graphs", tests);
}
