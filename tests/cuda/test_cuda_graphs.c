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

/* --- two trainers of one device --- */

static double take_turn(const small_training *t, small_part part, lks_status expected) {
    lks_metrics metrics = {0};
    assert_int_equal(take_part(t, part, &metrics), expected);
    return metrics.loss * (double)metrics.n_samples;
}

/* The second trainer takes a bad step between good ones. If it runs ahead, it hears of it in its next step and takes
 * that again. */
static void take_bad_step(const small_training pair[2], int runs_ahead, lks_status bad_step, double losses[2]) {
    const bool is_label = bad_step == LKS_ERR_ARGUMENT;
    const small_part good = even_part(&pair[1], 5, 1), bad = even_part(&pair[1], is_label ? 5 : NAN, is_label ? 99 : 1);
    losses[1] += take_turn(&pair[1], bad, runs_ahead ? LKS_OK : bad_step);
    losses[0] += take_turn(&pair[0], even_part(&pair[0], 1, 0), LKS_OK);
    if (runs_ahead) take_turn(&pair[1], good, bad_step);
    assert_non_null(
        strstr(lks_error_text(), is_label ? "label 99 of sample 0" : "the loss of rank 0 in step 3 is nan"));
}

typedef struct pair_result {
    double losses[2];
    char sha256[2][65];
} pair_result;

static void train_pair(int runs_ahead, lks_status bad_step, pair_result *result) {
    small_training pair[2];
    lks_metrics metrics;
    *result = (pair_result){0};
    assert_ok(begin_training_of(&pair[0], runs_ahead));
    pair[1] = pair[0];
    assert_ok(add_trainer(&pair[1], &(lks_trainer_options){.runs_ahead = runs_ahead}));
    for (int i = 0; i < N_STEPS; i++) {
        result->losses[0] += take_turn(&pair[0], even_part(&pair[0], 1, 0), LKS_OK);
        if (i == 2 && bad_step != LKS_OK) take_bad_step(pair, runs_ahead, bad_step, result->losses);
        result->losses[1] += take_turn(&pair[1], even_part(&pair[1], 5, 1), LKS_OK);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(lks_trainer_catch_up(pair[i].trainer, &metrics));
        result->losses[i] += runs_ahead ? metrics.loss * (double)metrics.n_samples : 0;
        assert_ok(lks_store_sha256(lks_trainer_store(pair[i].trainer), result->sha256[i]));
    }
    end_trainer(&pair[1]);
    end_training(&pair[0]);
}

static void two_trainers_have_results_and_errors_of_their_own(void **state) {
    (void)state;
    const lks_status bad_steps[] = {LKS_OK, LKS_ERR_NUMERIC, LKS_ERR_ARGUMENT};
    for (int i = 0; i < 3; i++) {
        pair_result plain, ahead;
        train_pair(0, bad_steps[i], &plain);
        train_pair(1, bad_steps[i], &ahead);
        assert_memory_equal(&plain, &ahead, sizeof plain);
        assert_true(plain.losses[0] > 0 && plain.losses[1] > 0);
    }
}

/* --- batches of a new size --- */

/* Before a new program first runs, libraries may wait for the GPU, and have no deadline. */
static void a_step_of_a_new_size_is_begun_after_the_one_before(void **state) {
    (void)state;
    small_training t;
    lks_distributed_memory before, after;
    const small_part half = {1, 0, SMALL_BATCH / 2, 0, SMALL_BATCH / 2};
    assert_ok(begin_training_of(&t, 1));
    assert_ok(take_steps(&t));
    assert_ok(take_step_of(&t, NAN, 0));
    lks_trainer_memory(t.trainer, &before);
    assert_int_equal(take_part(&t, half, NULL), LKS_ERR_NUMERIC);
    lks_trainer_memory(t.trainer, &after);
    assert_true(after.activations_nbytes == before.activations_nbytes);
    assert_ok(take_part(&t, half, NULL));
    lks_trainer_memory(t.trainer, &after);
    assert_true(after.activations_nbytes > before.activations_nbytes);
    assert_ok(take_step_of(&t, NAN, 0));
    assert_int_equal(take_part(&t, half, NULL), LKS_ERR_NUMERIC);
    assert_ok(take_part(&t, half, NULL));
    assert_ok(lks_trainer_catch_up(t.trainer, NULL));
    end_training(&t);
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
                                       cmocka_unit_test(two_trainers_have_results_and_errors_of_their_own),
                                       cmocka_unit_test(a_step_of_a_new_size_is_begun_after_the_one_before),
                                       cmocka_unit_test(what_cannot_be_recorded_says_how_to_go_on),
                                       cmocka_unit_test(other_values_are_refused)};
    return run_cuda_tests("cuda graphs", tests);
}
