/* launch/: ranks as forked processes, by lks_spawn, and its supervisor. */
/* labels: no-tsan */
#define _GNU_SOURCE /* posix_openpt, affinity */
#include "test.h"

#include "comm/comm.h"
#include "launch/launch_internal.h"
#include "launch/terminal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/* Makes the functions below, which replace the C library's, act like a kernel with 4096 CPUs: 1500 and 1501 are
 * allowed, but a thread cannot be bound to 1500. */
static bool has_many_cpus;

int sched_getaffinity(pid_t pid, size_t nbytes, cpu_set_t *set) {
    memset(set, 0, nbytes);
    if (!has_many_cpus) return syscall(SYS_sched_getaffinity, pid, nbytes, set) < 0 ? -1 : 0;
    errno = EINVAL;
    if (8 * nbytes < 4096) return -1;
    CPU_SET_S(1500, nbytes, set);
    CPU_SET_S(1501, nbytes, set);
    return 0;
}

int sched_setaffinity(pid_t pid, size_t nbytes, const cpu_set_t *set) {
    if (!has_many_cpus) return (int)syscall(SYS_sched_setaffinity, pid, nbytes, set);
    errno = EINVAL;
    return 8 * nbytes >= 4096 && CPU_ISSET_S(1501, nbytes, set) ? 0 : -1;
}

/* Makes fclose, which replaces the C library's, fail as on a full disk that reports the error when a file is closed. */
static bool is_closed_in_vain;

int fclose(FILE *file) {
    int (*c_library)(FILE *);
    void *found = dlsym(RTLD_NEXT, "fclose");
    memcpy(&c_library, &found, sizeof found);
    const int result = c_library(file);
    if (!is_closed_in_vain) return result;
    errno = EDQUOT;
    return EOF;
}

/* What the ranks report to the test through shared memory. */
typedef struct shared {
    atomic_int n_calls;
    atomic_int grandchild;
} shared;

static shared *make_shared(void) {
    void *memory = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static void no_child_is_left(void) {
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static int my_rank(void) { return atoi(getenv("RANK")); }

static int join_and_add(void *argument) {
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    int64_t rank = lks_group_rank(world), size = lks_group_size(world), sum = 0;
    LKS_CHECK(lks_all_reduce(world, &rank, &sum, 1, LKS_I64, LKS_SUM, NULL));
    lks_group_destroy(world);
    if (rank == my_rank() && sum == size * (size - 1) / 2) atomic_fetch_add(&((shared *)argument)->n_calls, 1);
    return 0;
}

static void processes_join_one_world(void **state) {
    (void)state;
    shared *seen = make_shared();
    for (int n = 1; n <= 5; n += 2) {
        atomic_store(&seen->n_calls, 0);
        assert_ok(lks_spawn(n, LKS_PROCESSES, join_and_add, seen));
        assert_int_equal(atomic_load(&seen->n_calls), n);
        no_child_is_left();
    }
    munmap(seen, sizeof *seen);
}

static int wait_for_ever(void *argument) {
    (void)argument;
    while (pause() < 0) continue; /* pause always returns -1, after a signal handler */
    return 0;
}

static int rank_1_returns_3(void *argument) {
    (void)argument;
    if (my_rank() == 1) return 3;
    return wait_for_ever(NULL);
}

static int rank_1_returns_256(void *argument) {
    (void)argument;
    return my_rank() == 1 ? 256 : 0;
}

static int rank_2_is_killed(void *argument) {
    (void)argument;
    if (my_rank() == 2) raise(SIGKILL);
    return wait_for_ever(NULL);
}

static int ignore_sigterm_for_ever(void *argument) {
    (void)argument;
    if (my_rank() == 0) return 1;
    signal(SIGTERM, SIG_IGN);
    return wait_for_ever(NULL);
}

static lks_status supervise(int n_ranks, int (*function)(void *), void *argument, int64_t timeout_ms,
                            int *exit_status) {
    lksi_end end;
    lks_status status = lksi_supervise(
        &(lksi_job){
            .n_ranks = n_ranks, .function = function, .argument = argument, .grace_ms = 50, .timeout_ms = timeout_ms},
        &end);
    *exit_status = end.exit_status;
    return status;
}

static void a_rank_that_exits_is_named_and_the_others_end(void **state) {
    (void)state;
    int exit_status;
    assert_int_equal(supervise(3, rank_1_returns_3, NULL, 0, &exit_status), LKS_ERR_PEER);
    assert_int_equal(exit_status, 3);
    assert_non_null(strstr(lks_error_text(), "rank 1 (pid "));
    assert_non_null(strstr(lks_error_text(), "exited with status 3"));
    no_child_is_left();
}

static void a_killed_rank_is_named_with_its_signal(void **state) {
    (void)state;
    int exit_status;
    assert_int_equal(supervise(3, rank_2_is_killed, NULL, 0, &exit_status), LKS_ERR_PEER);
    assert_int_equal(exit_status, 128 + SIGKILL);
    assert_non_null(strstr(lks_error_text(), "rank 2 (pid "));
    assert_non_null(strstr(lks_error_text(), "was killed by SIGKILL"));
    no_child_is_left();
}

typedef enum way { BY_RETURN, BY_EXIT, BY_EXIT_AT_ONCE, BY_SIGNAL, N_WAYS } way;

static int rank_1_ends_before_a_barrier(void *argument) {
    const way how = *(const way *)argument;
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    LKS_CHECK(lks_barrier(world, NULL));
    if (lks_group_rank(world) == 1) {
        if (how == BY_EXIT) exit(3);
        if (how == BY_EXIT_AT_ONCE) _exit(3);
        if (how == BY_SIGNAL) raise(SIGKILL);
        return 3;
    }
    lks_status status = lks_barrier(world, NULL);
    lks_group_destroy(world);
    return status == LKS_ERR_PEER ? 4 : 5;
}

/* The surviving ranks fail immediately after rank 1, which is the one that the user must look at. */
static void the_first_failure_is_named_not_what_follows_from_it(void **state) {
    (void)state;
    int exit_status;
    for (int i = 0; i < 20 * N_WAYS; i++) {
        way how = (way)(i % N_WAYS);
        assert_int_equal(supervise(4, rank_1_ends_before_a_barrier, &how, 0, &exit_status), LKS_ERR_PEER);
        assert_non_null(strstr(lks_error_text(), "rank 1 (pid "));
        assert_int_equal(exit_status, how == BY_SIGNAL ? 128 + SIGKILL : 3);
    }
    no_child_is_left();
}

static void a_rank_that_ignores_sigterm_is_killed(void **state) {
    (void)state;
    int exit_status;
    int64_t start_ns = lksi_now_ns();
    assert_int_equal(supervise(2, ignore_sigterm_for_ever, NULL, 0, &exit_status), LKS_ERR_PEER);
    assert_int_equal(exit_status, 1);
    assert_true(lksi_now_ns() - start_ns < 10000000000);
    no_child_is_left();
}

static void a_failure_stays_one_in_eight_bits(void **state) {
    (void)state;
    assert_int_equal(lks_spawn(2, LKS_PROCESSES, rank_1_returns_256, NULL), LKS_ERR_PEER);
    assert_non_null(strstr(lks_error_text(), "rank 1"));
}

static void the_timeout_ends_all(void **state) {
    (void)state;
    int exit_status;
    assert_int_equal(supervise(2, wait_for_ever, NULL, 100, &exit_status), LKS_ERR_TIMEOUT);
    assert_int_equal(exit_status, LKSI_EXIT_TIMEOUT);
    assert_non_null(strstr(lks_error_text(), "2 of 2 ranks"));
    no_child_is_left();
}

static int leave_a_grandchild(void *argument) {
    pid_t pid = fork();
    if (pid == 0) _exit(wait_for_ever(NULL));
    if (my_rank() == 0) atomic_store(&((shared *)argument)->grandchild, pid);
    return 0;
}

/* The process that adopts it may take a moment to reap it. */
static bool has_gone(pid_t pid) {
    for (int i = 0; i < 200; i++) {
        char path[64], state = 'Z';
        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        FILE *file = fopen(path, "r");
        if (file == NULL) return true;
        int n_read = fscanf(file, "%*d (%*[^)]) %c", &state);
        fclose(file);
        if (n_read == 1 && (state == 'Z' || state == 'X')) return true;
        lksi_sleep_ns(10000000);
    }
    return false;
}

static void what_a_rank_started_ends_with_it(void **state) {
    (void)state;
    shared *seen = make_shared();
    assert_ok(lks_spawn(2, LKS_PROCESSES, leave_a_grandchild, seen));
    assert_true(has_gone(atomic_load(&seen->grandchild)));
    munmap(seen, sizeof *seen);
}

/* A traced child is reported to its tracer, so its parent cannot reap it, as if it did not end. */
static void a_child_that_does_not_end_is_given_up(void **state) {
    (void)state;
    int wait_status;
    shared *seen = make_shared();
    pid_t parent = fork();
    if (parent == 0) {
        pid_t child = fork();
        if (child == 0) _exit(wait_for_ever(NULL));
        alarm(10);
        atomic_store(&seen->grandchild, child);
        while (atomic_load(&seen->n_calls) == 0) lksi_sleep_ns(1000000);
        lksi_orphans_end();
        _exit(0);
    }
    while (atomic_load(&seen->grandchild) == 0) lksi_sleep_ns(1000000);
    const bool is_traced = ptrace(PTRACE_SEIZE, atomic_load(&seen->grandchild), NULL, NULL) == 0;
    atomic_store(&seen->n_calls, 1);
    assert_int_equal(waitpid(parent, &wait_status, 0), parent);
    if (is_traced) assert_int_equal(waitpid(atomic_load(&seen->grandchild), NULL, __WALL), seen->grandchild);
    assert_true(WIFEXITED(wait_status));
    assert_int_equal(WEXITSTATUS(wait_status), 0);
    munmap(seen, sizeof *seen);
}

static volatile sig_atomic_t n_interrupts;
static void count_interrupt(int signal_number) {
    (void)signal_number;
    n_interrupts = n_interrupts + 1;
}

static int interrupt_parent(void *argument) {
    shared *seen = argument;
    signal(SIGINT, SIG_DFL);
    atomic_fetch_add(&seen->n_calls, 1);
    while (atomic_load(&seen->n_calls) < 2) lksi_sleep_ns(1000000);
    if (my_rank() == 0) kill(getppid(), SIGINT);
    return wait_for_ever(NULL);
}

static void a_signal_reaches_the_ranks_and_then_the_caller(void **state) {
    (void)state;
    shared *seen = make_shared();
    void (*old)(int) = signal(SIGINT, count_interrupt);
    n_interrupts = 0;
    assert_int_equal(lks_spawn(2, LKS_PROCESSES, interrupt_parent, seen), LKS_ERR_PEER);
    munmap(seen, sizeof *seen);
    assert_non_null(strstr(lks_error_text(), "SIGINT"));
    assert_int_equal(n_interrupts, 1);
    signal(SIGINT, old);
    no_child_is_left();
}

/* Interrupts the launcher after the timeout, when SIGTERM has been sent and SIGKILL is due two seconds later. */
static int interrupt_parent_after_the_timeout(void *argument) {
    (void)argument;
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    lksi_sleep_ns(INT64_C(1600) * 1000 * 1000);
    kill(getppid(), SIGINT);
    return wait_for_ever(NULL);
}

/* The grace after a signal is 30 s here. */
static void a_signal_does_not_postpone_a_kill_that_is_due(void **state) {
    (void)state;
    lksi_end end;
    void (*old)(int) = signal(SIGINT, count_interrupt);
    const lksi_job job = {.n_ranks = 1, .function = interrupt_parent_after_the_timeout, .timeout_ms = 1200};
    n_interrupts = 0;
    int64_t start_ns = lksi_now_ns();
    assert_int_equal(lksi_supervise(&job, &end), LKS_ERR_TIMEOUT);
    assert_true(lksi_now_ns() - start_ns < INT64_C(15000000000));
    assert_int_equal(n_interrupts, 1);
    signal(SIGINT, old);
    no_child_is_left();
}

static void a_rank_that_cannot_be_bound_says_so(void **state) {
    (void)state;
    char *const program[] = {"true", NULL};
    lksi_end end;
    has_many_cpus = true;
    assert_ok(lksi_bind_to_cpu(3));
    assert_int_equal(lksi_supervise(&(lksi_job){.n_ranks = 1, .argv = program, .bind = true}, &end), LKS_ERR_SYSTEM);
    has_many_cpus = false;
    assert_string_equal(lks_error_text(), "rank 0: cannot bind to CPU 1500: Invalid argument");
    assert_int_equal(end.exit_status, 1);
    no_child_is_left();
}

static void a_log_that_cannot_be_closed_is_lost(void **state) {
    (void)state;
    char directory[] = "/tmp/lockstep_log_XXXXXX", log[64];
    char *const program[] = {"echo", "line", NULL};
    lksi_end end;
    assert_non_null(mkdtemp(directory));
    assert_false(lksi_terminal_has_lost());
    is_closed_in_vain = true;
    lks_status status = lksi_supervise(&(lksi_job){.n_ranks = 1, .argv = program, .log_dir = directory}, &end);
    is_closed_in_vain = false;
    lksi_terminal_drain();
    assert_ok(status);
    assert_true(lksi_terminal_has_lost());
    snprintf(log, sizeof log, "%s/rank-0.log", directory);
    assert_int_equal(unlink(log), 0);
    assert_int_equal(rmdir(directory), 0);
}

/* The signal mask is inherited: the parent process may have left the signal blocked. */
static void a_signal_that_was_blocked_is_forwarded_all_the_same(void **state) {
    (void)state;
    char *const program[] = {"sh", "-c", "kill -TERM $PPID; exec sleep 10", NULL};
    sigset_t term, before;
    lksi_end end;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before);
    assert_int_equal(lksi_supervise(&(lksi_job){.n_ranks = 1, .argv = program, .grace_ms = 500}, &end), LKS_ERR_PEER);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(end.exit_status, 128 + SIGTERM);
}

/* Returns 0 if writing and changing the settings succeed and reading fails with EIO. */
static int use_the_terminal(void *argument) {
    const int terminal = *(int *)argument;
    struct termios settings;
    char byte;
    if (write(terminal, "x", 1) != 1) return 1;
    if (tcgetattr(terminal, &settings) != 0 || tcsetattr(terminal, TCSANOW, &settings) != 0) return 2;
    return read(terminal, &byte, 1) < 0 && errno == EIO ? 0 : 3;
}

/* Starts a new session with the terminal at `path`, and starts ranks from it. */
static int spawn_at(const char *path) {
    struct termios settings;
    int exit_status = 1;
    setsid();
    int terminal = open(path, O_RDWR); /* becomes the session's controlling terminal */
    if (terminal < 0 || tcgetattr(terminal, &settings) != 0) return 125;
    settings.c_lflag |= TOSTOP;
    if (tcsetattr(terminal, TCSANOW, &settings) != 0) return 125;
    (void)supervise(2, use_the_terminal, &terminal, 2000, &exit_status);
    return exit_status;
}

static void ranks_are_not_stopped_at_their_terminal(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY), wait_status;
    assert_true(master >= 0);
    assert_int_equal(grantpt(master), 0);
    assert_int_equal(unlockpt(master), 0);
    pid_t pid = fork();
    if (pid == 0) _exit(spawn_at(ptsname(master)));
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    close(master);
    assert_true(WIFEXITED(wait_status));
    assert_int_equal(WEXITSTATUS(wait_status), 0);
}

/* Rank 0 meanwhile reads from a pipe without data, and holds the lock of stdin. */
static int rank_1_calls_exit(void *exit_status) {
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    if (lks_group_rank(world) == 0) return getchar();
    lksi_sleep_ns(INT64_C(50) * 1000 * 1000);
    exit(*(int *)exit_status);
}

static int main_whose_rank_1_calls_exit(int argc, char **argv) {
    (void)argv;
    return rank_1_calls_exit(&argc);
}

static int run_threads(bool by_main, int exit_status) {
    if (!by_main) return lks_spawn(2, LKS_THREADS, rank_1_calls_exit, &exit_status) == LKS_OK ? 0 : 77;
    setenv("LOCKSTEP_THREADS", "2", 1);
    return lks_main(exit_status, (char *[]){"1", "2", "3", "4", "5", NULL}, main_whose_rank_1_calls_exit);
}

/* This test is not with the tests of threads because it needs a process that may exit. */
static void a_rank_thread_that_calls_exit_is_named(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        int ends[2], nothing[2], wait_status, exit_status = i / 2 * 5;
        char text[256] = "";
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(pipe(nothing), 0);
        pid_t pid = fork();
        if (pid == 0) {
            dup2(nothing[0], STDIN_FILENO);
            dup2(ends[1], STDERR_FILENO);
            alarm(10);
            _exit(run_threads(i % 2 == 0, exit_status));
        }
        close(ends[1]);
        ssize_t n_read = read(ends[0], text, sizeof text - 1);
        close(ends[0]);
        assert_int_equal(waitpid(pid, &wait_status, 0), pid);
        close(nothing[0]), close(nothing[1]);
        assert_true(n_read > 0 && WIFEXITED(wait_status));
        assert_int_equal(WEXITSTATUS(wait_status), exit_status == 0 ? 1 : exit_status);
        assert_non_null(strstr(text, "rank 1 called exit"));
    }
}

static int print_lines(void *argument) {
    (void)argument;
    for (int i = 0; i < 10000; i++) printf("line %d\n", i);
    return 0;
}

static int main_prints_lines(int argc, char **argv) {
    (void)argc, (void)argv;
    return print_lines(NULL);
}

static int exit_status_with_stdout(int descriptor, int (*function)(void)) {
    int wait_status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(descriptor, STDOUT_FILENO);
        (void)signal(SIGPIPE, SIG_IGN);
        _exit(function());
    }
    close(descriptor);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_true(WIFEXITED(wait_status));
    return WEXITSTATUS(wait_status);
}

static int print_by_main(void) {
    setenv("LOCKSTEP_LINE_BUFFERED", "1", 1);
    return lks_main(0, (char *[]){NULL}, main_prints_lines);
}

static int report_before_the_start(void *argument) {
    (void)argument;
    (void)lksi_error(LKS_ERR_FILE, "no such data");
    return lks_report(LKS_ERR_FILE, NULL, 0);
}

static void a_spawned_rank_does_not_report_as_its_parent(void **state) {
    (void)state;
    char text[256] = "";
    int ends[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    lksi_process_set_rank(5); /* as if left by an earlier world */
    lks_status status = lks_spawn(1, LKS_PROCESSES, report_before_the_start, NULL);
    lksi_process_set_rank(-1);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    close(ends[1]);
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    close(ends[0]);
    assert_int_equal(status, LKS_ERR_PEER);
    assert_string_equal(text, "lockstep: no such data\n");
}

static int print_by_spawn(void) { return lks_spawn(2, LKS_PROCESSES, print_lines, NULL) == LKS_ERR_PEER ? 77 : 1; }

/* SIGPIPE is ignored, as in a service that systemd starts. */
static void a_reader_that_has_had_enough_is_no_failure(void **state) {
    (void)state;
    for (int is_socket = 0; is_socket < 2; is_socket++) {
        int ends[2];
        assert_int_equal(is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), 0);
        close(ends[0]);
        assert_int_equal(exit_status_with_stdout(ends[1], print_by_main), 0);
    }
}

static void a_spawned_rank_whose_output_is_lost_fails(void **state) {
    (void)state;
    assert_int_equal(exit_status_with_stdout(open("/dev/full", O_WRONLY), print_by_spawn), 77);
}

/* Writes to a full pipe, whose reader pauses. */
static int print_and_call_exit(int argc, char **argv) {
    (void)argc, (void)argv;
    static const char text[] = "the last words";
    lks_group *world;
    LKS_CHECK(lks_init(&world, NULL));
    if (lks_group_rank(world) == 1) return wait_for_ever(NULL);
    fputs(text, stdout);
    exit(0);
}

static void what_a_rank_thread_printed_before_it_called_exit_waits_for_its_reader(void **state) {
    (void)state;
    static char text[1 << 17];
    int ends[2], wait_status;
    size_t n_read = 0;
    assert_int_equal(pipe(ends), 0);
    const int capacity = fcntl(ends[1], F_GETPIPE_SZ);
    assert_true(capacity > 0 && capacity < (int)sizeof text - 100);
    assert_int_equal(write(ends[1], text, (size_t)capacity), capacity);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        close(ends[1]);
        alarm(10);
        setenv("LOCKSTEP_THREADS", "2", 1);
        _exit(lks_main(0, (char *[]){NULL}, print_and_call_exit));
    }
    close(ends[1]);
    lksi_sleep_ns(1000 * LKSI_NS_PER_MS); /* longer than the wait for other files */
    for (ssize_t n = 1; n > 0; n_read += (size_t)(n > 0 ? n : 0))
        n = read(ends[0], text + n_read, sizeof text - n_read);
    close(ends[0]);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_true(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 1);
    assert_non_null(strstr(text + capacity, "the last words"));
}

/* The port that `descriptor` is bound to, or 0 if it is not an IPv4 socket. */
static int port_of(int descriptor) {
    struct sockaddr_in address = {.sin_family = AF_UNSPEC};
    socklen_t nbytes = sizeof address;
    if (getsockname(descriptor, (struct sockaddr *)&address, &nbytes) != 0 || address.sin_family != AF_INET) return 0;
    return ntohs(address.sin_port);
}

static int find_the_port(void *argument) {
    (void)argument;
    const char *text = getenv("LOCKSTEP_LISTENER_FD");
    const int port = atoi(getenv("MASTER_PORT"));
    int n_found = 0;
    for (int descriptor = 0; descriptor < 256; descriptor++) n_found += port_of(descriptor) == port;
    if (my_rank() != 0) return text != NULL || n_found != 0;
    return text == NULL || n_found != 1 || port_of(atoi(text)) != port || listen(atoi(text), 8) != 0;
}

static void rank_0_alone_is_handed_the_port(void **state) {
    (void)state;
    setenv("LOCKSTEP_LISTENER_FD", "17", 1); /* inherited from an outer launcher */
    assert_ok(lks_spawn(3, LKS_PROCESSES, find_the_port, NULL));
    unsetenv("LOCKSTEP_LISTENER_FD");
}

static void wait_until(void *argument) {
    atomic_int *may_end = argument;
    while (!atomic_load(may_end)) lksi_sleep_ns(1000000);
}

static void processes_after_threads_are_refused(void **state) {
    (void)state;
    atomic_int may_end = 0;
    lksi_thread *thread;
    assert_ok(lksi_thread_create(&thread, wait_until, &may_end, "waits"));
    assert_int_equal(lks_spawn(2, LKS_PROCESSES, wait_for_ever, NULL), LKS_ERR_STATE);
    assert_non_null(strstr(lks_error_text(), "needs a process with one thread, this one has 2 threads"));
    atomic_store(&may_end, 1);
    lksi_thread_join(thread);
}

static void *wait_a_little(void *argument) {
    lksi_sleep_ns(INT64_C(20) * 1000 * 1000);
    return argument;
}

/* A joined thread may still exist in the kernel for a moment. A detached one plays it. */
static void a_thread_that_is_about_to_end_is_waited_for(void **state) {
    (void)state;
    pthread_t thread;
    shared *seen = make_shared();
    assert_int_equal(pthread_create(&thread, NULL, wait_a_little, NULL), 0);
    assert_int_equal(pthread_detach(thread), 0);
    assert_ok(lks_spawn(2, LKS_PROCESSES, join_and_add, seen));
    munmap(seen, sizeof *seen);
}

static void a_failed_allocation_is_an_error_and_leaves_nothing(void **state) {
    (void)state;
    shared *seen = make_shared();
    for (int64_t countdown = 1;; countdown++) {
        int64_t held = lks_memory_nbytes();
        lksi_alloc_fail_after(countdown);
        lks_status status = lks_spawn(2, LKS_PROCESSES, rank_1_returns_256, seen);
        lksi_alloc_fail_after(0);
        assert_int_equal(lks_memory_nbytes(), held);
        no_child_is_left();
        if (status == LKS_ERR_PEER) break;
        assert_int_equal(status, LKS_ERR_MEMORY);
    }
    munmap(seen, sizeof *seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_join_one_world),
        cmocka_unit_test(a_rank_that_exits_is_named_and_the_others_end),
        cmocka_unit_test(a_killed_rank_is_named_with_its_signal),
        cmocka_unit_test(the_first_failure_is_named_not_what_follows_from_it),
        cmocka_unit_test(a_rank_that_ignores_sigterm_is_killed),
        cmocka_unit_test(a_failure_stays_one_in_eight_bits),
        cmocka_unit_test(the_timeout_ends_all),
        cmocka_unit_test(what_a_rank_started_ends_with_it),
        cmocka_unit_test(a_child_that_does_not_end_is_given_up),
        cmocka_unit_test(a_signal_reaches_the_ranks_and_then_the_caller),
        cmocka_unit_test(a_signal_does_not_postpone_a_kill_that_is_due),
        cmocka_unit_test(a_rank_that_cannot_be_bound_says_so),
        cmocka_unit_test(a_log_that_cannot_be_closed_is_lost),
        cmocka_unit_test(a_signal_that_was_blocked_is_forwarded_all_the_same),
        cmocka_unit_test(ranks_are_not_stopped_at_their_terminal),
        cmocka_unit_test(a_rank_thread_that_calls_exit_is_named),
        cmocka_unit_test(what_a_rank_thread_printed_before_it_called_exit_waits_for_its_reader),
        cmocka_unit_test(a_reader_that_has_had_enough_is_no_failure),
        cmocka_unit_test(a_spawned_rank_whose_output_is_lost_fails),
        cmocka_unit_test(a_spawned_rank_does_not_report_as_its_parent),
        cmocka_unit_test(rank_0_alone_is_handed_the_port),
        cmocka_unit_test(processes_after_threads_are_refused),
        cmocka_unit_test(a_thread_that_is_about_to_end_is_waited_for),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_leaves_nothing),
    };
    return run_group(tests);
}
