/* comm/: the thread that watches connections. */
#define _GNU_SOURCE /* syscall */
#include "test.h"

#include "comm/watch.h"

#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The epoll_wait below replaces the C library's: the watch gets an event as late as a test wants. */
static atomic_bool is_holding_back, has_events;

int epoll_wait(int epoll, struct epoll_event *events, int n, int timeout_ms) {
    int n_events = (int)syscall(SYS_epoll_pwait, epoll, events, n, timeout_ms, NULL, 0);
    if (n_events > 0) atomic_store(&has_events, true);
    while (atomic_load(&is_holding_back)) lksi_sleep_ns(100000);
    return n_events;
}

static bool count(void *n_told, int descriptor) {
    (void)descriptor;
    atomic_fetch_add((atomic_int *)n_told, 1);
    return false;
}

static void the_end_of_a_connection_is_not_taken_for_that_of_the_next(void **state) {
    (void)state;
    int first[2], second[2];
    atomic_int n_told_first = 0, n_told_second = 0;
    lksi_watch *watch;
    assert_ok(lksi_watch_create(&watch));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, first), 0);
    assert_ok(lksi_watch_add(watch, first[0], LKSI_WATCH_END, count, &n_told_first));
    atomic_store(&is_holding_back, true);
    close(first[1]);
    while (!atomic_load(&has_events)) lksi_sleep_ns(100000);
    lksi_watch_remove(watch, first[0]);
    close(first[0]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, second), 0);
    assert_int_equal(second[0], first[0]); /* the kernel reuses the descriptor's number at once */
    assert_ok(lksi_watch_add(watch, second[0], LKSI_WATCH_END, count, &n_told_second));
    atomic_store(&is_holding_back, false);
    lksi_watch_destroy(watch);
    assert_int_equal(n_told_first, 0);
    assert_int_equal(n_told_second, 0);
    close(second[0]);
    close(second[1]);
}

static void the_end_of_a_connection_is_told_once(void **state) {
    (void)state;
    int ends[2];
    atomic_int n_told = 0;
    lksi_watch *watch;
    assert_ok(lksi_watch_create(&watch));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_ok(lksi_watch_add(watch, ends[0], LKSI_WATCH_END, count, &n_told));
    close(ends[1]);
    while (atomic_load(&n_told) == 0) lksi_sleep_ns(100000);
    lksi_watch_remove(watch, ends[0]);
    lksi_watch_destroy(watch);
    assert_int_equal(n_told, 1);
    close(ends[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_connection_is_not_taken_for_that_of_the_next),
        cmocka_unit_test(the_end_of_a_connection_is_told_once),
    };
    return run_group(tests);
}
