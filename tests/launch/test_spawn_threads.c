/* launch/: ranks as threads, by lks_spawn and by lks_main. */
#include "test.h"

#include "comm/comm.h"
#include "launch/launch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int n_calls;

static int join_and_add(void *argument) {
    lks_group *world;
    if (lks_init(&world, NULL) != LKS_OK) return 1;
    int64_t rank = lks_group_rank(world), size = lks_group_size(world), sum = 0;
    lks_status status = lks_all_reduce(world, &rank, &sum, 1, LKS_I64, LKS_SUM, NULL);
    lks_group_destroy(world);
    atomic_fetch_add(&n_calls, 1);
    return status == LKS_OK && size == *(int *)argument && sum == size * (size - 1) / 2 ? 0 : 1;
}

static void threads_of_every_size_join_one_world(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n++) {
        atomic_store(&n_calls, 0);
        assert_ok(lks_spawn(n, LKS_THREADS, join_and_add, &n));
        assert_int_equal(atomic_load(&n_calls), n);
    }
}

static int rank_1_returns_3(void *argument) {
    (void)argument;
    lks_group *world;
    if (lks_init(&world, NULL) != LKS_OK) return 1;
    int result = lks_group_rank(world) == 1 ? 3 : 0;
    lks_group_destroy(world);
    return result;
}

static void a_thread_that_fails_is_named(void **state) {
    (void)state;
    assert_int_equal(lks_spawn(3, LKS_THREADS, rank_1_returns_3, NULL), LKS_ERR_PEER);
    assert_non_null(strstr(lks_error_text(), "rank 1 (a thread of pid "));
    assert_non_null(strstr(lks_error_text(), "exited with status 3"));
}

static bool is_blocked(int signal_number) {
    sigset_t mask;
    return pthread_sigmask(SIG_SETMASK, NULL, &mask) != 0 || sigismember(&mask, signal_number) != 0;
}

static int look_at_signals(void *argument) {
    (void)argument;
    int status = 0;
    if (is_blocked(SIGPIPE) || !is_blocked(SIGTERM)) return 1;
    const pid_t child = fork();
    if (child == 0) _exit(is_blocked(SIGPIPE) || is_blocked(SIGTERM) ? 2 : 0);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

static void signals_of_a_rank_and_of_its_children_are_as_in_a_process(void **state) {
    (void)state;
    assert_ok(lks_spawn(2, LKS_THREADS, look_at_signals, NULL));
}

static int fail_before_init(void *argument) {
    atomic_int *arrivals = argument;
    if (atomic_fetch_add(arrivals, 1) == 0) return 9;
    lks_group *world;
    if (lks_init(&world, NULL) == LKS_OK) return 1;
    return 2;
}

static void a_thread_that_never_joins_does_not_hang_the_others(void **state) {
    (void)state;
    atomic_int arrivals = 0;
    assert_int_equal(lks_spawn(4, LKS_THREADS, fail_before_init, &arrivals), LKS_ERR_PEER);
    assert_non_null(strstr(lks_error_text(), "exited with status 9"));
}

static int do_nothing(void *argument) {
    (void)argument;
    return 0;
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    assert_int_equal(lks_spawn(0, LKS_THREADS, do_nothing, NULL), LKS_ERR_ARGUMENT);
    assert_non_null(strstr(lks_error_text(), "0 ranks"));
    assert_int_equal(lks_spawn(LKSI_MAX_RANKS + 1, LKS_THREADS, do_nothing, NULL), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_spawn(2, LKS_THREADS, NULL, NULL), LKS_ERR_ARGUMENT);
    assert_int_equal(lks_spawn(2, (lks_spawn_mode)7, do_nothing, NULL), LKS_ERR_ARGUMENT);
}

static void a_failed_allocation_is_an_error_and_leaves_nothing(void **state) {
    (void)state;
    for (int64_t countdown = 1;; countdown++) {
        int64_t held = lks_memory_nbytes();
        lksi_alloc_fail_after(countdown);
        lks_status status = lks_spawn(2, LKS_THREADS, do_nothing, NULL);
        lksi_alloc_fail_after(0);
        assert_int_equal(lks_memory_nbytes(), held);
        if (status == LKS_OK) return;
        assert_int_equal(status, LKS_ERR_MEMORY);
    }
}

/* --- lks_main --- */

static atomic_int rank_mask;

static int mark_rank(int argc, char **argv) {
    if (argc != 2 || strcmp(argv[1], "hello") != 0 || argv[2] != NULL) return 1;
    argv[1][0] = 'j'; /* argv is this rank's own copy */
    lks_group *world;
    if (lks_init(&world, NULL) != LKS_OK) return 1;
    atomic_fetch_or(&rank_mask, 1 << lks_group_rank(world));
    lks_group_destroy(world);
    return 0;
}

static void main_runs_once_or_once_per_thread(void **state) {
    (void)state;
    char program[] = "program", word[] = "hello", word_again[] = "hello";
    unsetenv("LOCKSTEP_THREADS");
    atomic_store(&rank_mask, 0);
    assert_int_equal(lks_main(2, (char *[]){program, word, NULL}, mark_rank), 0);
    assert_int_equal(atomic_load(&rank_mask), 1);
    setenv("LOCKSTEP_THREADS", "4", 1);
    assert_int_equal(lks_main(2, (char *[]){program, word_again, NULL}, mark_rank), 0);
    assert_int_equal(atomic_load(&rank_mask), 15);
    assert_string_equal(word_again, "hello");
    unsetenv("LOCKSTEP_THREADS");
}

static int return_256(int argc, char **argv) {
    (void)argc, (void)argv;
    return 256;
}

static void main_keeps_a_failure_a_failure(void **state) {
    (void)state;
    unsetenv("LOCKSTEP_THREADS");
    assert_int_equal(lks_main(0, (char *[]){NULL}, return_256), 1);
    setenv("LOCKSTEP_THREADS", "2", 1);
    assert_int_equal(lks_main(0, (char *[]){NULL}, return_256), 1);
    setenv("LOCKSTEP_THREADS", "many", 1);
    assert_int_equal(lks_main(0, (char *[]){NULL}, return_256), 1);
    assert_non_null(strstr(lks_error_text(), "LOCKSTEP_THREADS='many'"));
    unsetenv("LOCKSTEP_THREADS");
}

static int fail_or_go_on_for_ever(int argc, char **argv) {
    (void)argc, (void)argv;
    static atomic_int n_started;
    if (atomic_fetch_add(&n_started, 1) == 0) return 3;
    return getchar(); /* blocks for ever, and holds the lock of stdin */
}

static int fail_or_hold_stdout_for_ever(int argc, char **argv) {
    (void)argc, (void)argv;
    static atomic_int n_started;
    static atomic_bool is_held;
    if (atomic_fetch_add(&n_started, 1) == 0) {
        while (!atomic_load(&is_held)) lksi_sleep_ns(1000000);
        return 3;
    }
    flockfile(stdout);
    atomic_store(&is_held, true);
    return getchar();
}

/* Runs in a child process, because the process ends. */
static void ends_with_the_process(lks_rank_main rank_main) {
    int64_t began_ns = lksi_now_ns();
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[0], STDIN_FILENO);
        alarm(10);
        setenv("LOCKSTEP_THREADS", "2", 1);
        setenv("LOCKSTEP_GRACE_MS", "100", 1);
        char *argv[] = {"test", NULL};
        _exit(lks_main(1, argv, rank_main));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    close(ends[0]), close(ends[1]);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    assert_true(lksi_now_ns() - began_ns < INT64_C(20) * 1000 * 1000 * 1000);
}

static void a_rank_that_goes_on_after_a_failure_ends_with_the_process(void **state) {
    (void)state;
    ends_with_the_process(fail_or_go_on_for_ever);
}

static void a_rank_that_holds_stdout_after_a_failure_ends_with_the_process(void **state) {
    (void)state;
    if (IS_ABOUT_THREADS) { /* its own _exit flushes stdout, without a deadline */
        print_message("skipped: ThreadSanitizer's _exit waits for stdout\n");
        skip();
    }
    ends_with_the_process(fail_or_hold_stdout_for_ever);
}

static int fail_or_wait_for_a_reader(int argc, char **argv) {
    (void)argc, (void)argv;
    static atomic_int n_started;
    static atomic_bool is_about_to_write;
    if (atomic_fetch_add(&n_started, 1) == 0) {
        while (!atomic_load(&is_about_to_write)) lksi_sleep_ns(1000000);
        return 3;
    }
    printf("last words");
    atomic_store(&is_about_to_write, true);
    fflush(stdout); /* holds the lock of stdout until the pipe is read */
    return getchar();
}

static void fill(int pipe_end) {
    static const char zeros[4096];
    const int flags = fcntl(pipe_end, F_GETFL);
    assert_int_equal(fcntl(pipe_end, F_SETFL, flags | O_NONBLOCK), 0);
    while (write(pipe_end, zeros, sizeof zeros) > 0) continue;
    assert_int_equal(fcntl(pipe_end, F_SETFL, flags), 0);
}

/* The reader pauses for longer than a rank may hold the lock otherwise. */
static void output_is_kept_for_a_reader_that_pauses(void **state) {
    (void)state;
    int input[2], output[2], status;
    char read_last[4096] = "", all[16] = "";
    assert_int_equal(pipe(input), 0);
    assert_int_equal(pipe(output), 0);
    fill(output[1]);
    pid_t child = fork();
    if (child == 0) {
        dup2(input[0], STDIN_FILENO);
        dup2(output[1], STDOUT_FILENO);
        close(output[0]), close(output[1]);
        alarm(20);
        setenv("LOCKSTEP_THREADS", "2", 1);
        setenv("LOCKSTEP_GRACE_MS", "100", 1);
        char *argv[] = {"test", NULL};
        _exit(lks_main(1, argv, fail_or_wait_for_a_reader));
    }
    close(output[1]);
    lksi_sleep_ns(INT64_C(3000000000));
    ssize_t n_read;
    while ((n_read = read(output[0], read_last, sizeof read_last)) > 0)
        if (read_last[0] != '\0') snprintf(all, sizeof all, "%.*s", (int)n_read, read_last);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(input[0]), close(input[1]), close(output[0]);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    assert_string_equal(all, "last words");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_every_size_join_one_world),
        cmocka_unit_test(a_thread_that_fails_is_named),
        cmocka_unit_test(signals_of_a_rank_and_of_its_children_are_as_in_a_process),
        cmocka_unit_test(a_thread_that_never_joins_does_not_hang_the_others),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_leaves_nothing),
        cmocka_unit_test(main_runs_once_or_once_per_thread),
        cmocka_unit_test(main_keeps_a_failure_a_failure),
        cmocka_unit_test(a_rank_that_goes_on_after_a_failure_ends_with_the_process),
        cmocka_unit_test(a_rank_that_holds_stdout_after_a_failure_ends_with_the_process),
        cmocka_unit_test(output_is_kept_for_a_reader_that_pauses),
    };
    return run_group(tests);
}
