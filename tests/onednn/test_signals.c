/* Signal handlers run on the stack of the interrupted thread, whatever oneDNN's kernels do with the stack pointer. They
 * run without long delays. */
/* labels: no-tsan */
#define _GNU_SOURCE /* pthread_getattr_np */
#include "ranks.h"

#include "base/signals.h"

#include <lockstep/lockstep.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static uintptr_t stack_begin, stack_end;
static atomic_int n_handled, n_elsewhere;

/* The kernel puts the handler's frame at the interrupted stack pointer, directly above this frame. */
static void look_at_stack(int number) {
    (void)number;
    uintptr_t at = (uintptr_t)__builtin_frame_address(0); /* a sanitizer may move variables elsewhere */
    atomic_fetch_add(&n_handled, 1);
    if (at < stack_begin || at >= stack_end) atomic_fetch_add(&n_elsewhere, 1);
}

static void find_stack(void) {
    pthread_attr_t attributes;
    void *begin;
    size_t nbytes;
    assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
    assert_int_equal(pthread_attr_getstack(&attributes, &begin, &nbytes), 0);
    pthread_attr_destroy(&attributes);
    stack_begin = (uintptr_t)begin;
    stack_end = stack_begin + nbytes;
}

static void handle(int signal, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    assert_int_equal(sigaction(signal, &action, NULL), 0);
    atomic_store(&n_handled, 0);
    atomic_store(&n_elsewhere, 0);
}

static void alarm_every_us(long us) {
    struct itimerval every = {.it_interval.tv_usec = us, .it_value.tv_usec = us};
    assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
}

/* 784-250-10 with a batch of 64: for products of these sizes, oneDNN copies the operands. */
static void a_pass_and_a_handler_do_not_disturb_each_other(void **state) {
    (void)state;
    enum { N_PASSES = 300, N = 64, N_FEATURES = 784 };
    static float x[N * N_FEATURES];
    static int32_t labels[N];
    for (int i = 0; i < N * N_FEATURES; i++) x[i] = (float)(i % 13) / 13;
    lks_graph *graph = lks_graph_create(NULL);
    lks_node *image = lks_input(graph, "image", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *label = lks_input(graph, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *hidden = lks_relu(lks_linear(image, 250, "fc1"));
    lks_node *loss = lks_cross_entropy(lks_linear(hidden, 10, "fc2"), label);
    lks_store *store;
    lks_program *program;
    assert_int_equal(lks_store_create(&store, loss, NULL), LKS_OK);
    assert_int_equal(
        lks_program_create(&program, store, &(lks_program_options){.batch = N, .is_training = 1, .loss = loss}),
        LKS_OK);
    assert_int_equal(lks_program_set_input(program, image, x), LKS_OK);
    assert_int_equal(lks_program_set_input(program, label, labels), LKS_OK);
    find_stack();
    handle(SIGALRM, look_at_stack);
    alarm_every_us(100);
    for (int i = 0; i < N_PASSES; i++) {
        assert_int_equal(lks_program_forward(program), LKS_OK);
        assert_int_equal(lks_program_backward(program, 1.0), LKS_OK);
    }
    alarm_every_us(0);
    assert_true(atomic_load(&n_handled) > 0);
    assert_int_equal(atomic_load(&n_elsewhere), 0);
    sigset_t blocked;
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    assert_int_equal(sigismember(&blocked, SIGALRM), 0);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
}

/* A product, then about 40 ms of the library's own loops. */
static void steps_behind_a_product_do_not_hold_signals_back(void **state) {
    (void)state;
    enum { N = 256, N_FEATURES = 784, N_HIDDEN = 4096, N_LOOPS = 40 };
    static float x[N * N_FEATURES];
    static int32_t labels[N];
    lks_graph *graph = lks_graph_create(NULL);
    lks_node *image = lks_input(graph, "image", LKS_F32, 2, (int64_t[]){LKS_BATCH, N_FEATURES});
    lks_node *label = lks_input(graph, "label", LKS_I32, 1, (int64_t[]){LKS_BATCH});
    lks_node *y = lks_linear(image, N_HIDDEN, "fc");
    for (int i = 0; i < N_LOOPS; i++) y = lks_tanh(y);
    lks_node *loss = lks_cross_entropy(y, label);
    lks_store *store;
    lks_program *program;
    assert_int_equal(lks_store_create(&store, loss, NULL), LKS_OK);
    assert_int_equal(lks_program_create(&program, store, &(lks_program_options){.batch = N, .loss = loss}), LKS_OK);
    assert_int_equal(lks_program_set_input(program, image, x), LKS_OK);
    assert_int_equal(lks_program_set_input(program, label, labels), LKS_OK);
    find_stack();
    handle(SIGALRM, look_at_stack);
    alarm_every_us(1000);
    assert_int_equal(lks_program_forward(program), LKS_OK);
    alarm_every_us(0);
    assert_true(atomic_load(&n_handled) > 5);
    assert_int_equal(atomic_load(&n_elsewhere), 0);
    lks_program_destroy(program);
    lks_store_destroy(store);
    lks_graph_destroy(graph);
}

static void signals_are_handled_once_they_are_let_in(void **state) {
    (void)state;
    find_stack();
    handle(SIGUSR1, look_at_stack);
    lksi_signals_hold();
    raise(SIGUSR1);
    assert_int_equal(atomic_load(&n_handled), 0);
    lksi_signals_release();
    assert_int_equal(atomic_load(&n_handled), 1);

    lksi_signals_keep(true);
    lksi_signals_hold();
    lksi_signals_release();
    raise(SIGUSR1);
    assert_int_equal(atomic_load(&n_handled), 1);
    lksi_signals_let_in();
    assert_int_equal(atomic_load(&n_handled), 2);
    lksi_signals_hold();
    usleep(2000);
    lksi_signals_hold();
    raise(SIGUSR1);
    assert_int_equal(atomic_load(&n_handled), 2);
    lksi_signals_let_in_if_due();
    assert_int_equal(atomic_load(&n_handled), 3);
    lksi_signals_keep(false);
    raise(SIGUSR1);
    assert_int_equal(atomic_load(&n_handled), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_are_handled_once_they_are_let_in),
        cmocka_unit_test(a_pass_and_a_handler_do_not_disturb_each_other),
        cmocka_unit_test(steps_behind_a_product_do_not_hold_signals_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
