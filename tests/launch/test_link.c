/* launch/: the connection between the head of a run and an agent. */
#include "test.h"

#include "launch/link.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void open_pair(lksi_link *ours, lksi_link *theirs) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    lksi_link_open(ours, ends[0]);
    lksi_link_open(theirs, ends[1]);
}

static void assert_hears_then_loses(lksi_link *link, const char *why) {
    lksi_message message;
    assert_true(lksi_link_receive(link, &message));
    assert_string_equal(message.text, "the last words");
    assert_false(lksi_link_receive(link, &message));
    assert_int_equal(link->connection, -1);
    assert_string_equal(link->loss, why);
}

static const lksi_message last_words = {.kind = LKSI_MESSAGE_NOTE, .text = "the last words"};

static void what_was_said_before_a_failed_send_is_heard_before_the_loss(void **state) {
    (void)state;
    lksi_link ours, theirs;
    open_pair(&ours, &theirs);
    lksi_link_send(&theirs, &last_words);
    lksi_link_close(&theirs);
    lksi_link_send(&ours, &last_words);
    assert_hears_then_loses(&ours, "ended the connection");
    assert_true(ours.has_hung_up);
}

static void one_who_does_not_read_is_lost(void **state) {
    (void)state;
    lksi_link ours, theirs;
    open_pair(&ours, &theirs);
    lksi_link_send(&theirs, &last_words);
    for (int i = 0; i < 10000 && ours.loss[0] == '\0'; i++) lksi_link_send(&ours, &last_words);
    assert_hears_then_loses(&ours, "does not read its messages");
    assert_false(ours.has_hung_up);
    lksi_link_close(&theirs);
}

static const int64_t timeout_ms = 400;

/* Receives and ticks for `duration_ms`. */
static void listen_for(lksi_link *link, int64_t duration_ms) {
    lksi_message message;
    const int64_t until_ns = lksi_now_ns() + duration_ms * 1000000;
    while (link->connection >= 0 && lksi_now_ns() < until_ns) {
        assert_false(lksi_link_receive(link, &message));
        lksi_link_tick(link, timeout_ms);
        lksi_sleep_ns(5000000);
    }
}

static void one_who_is_silent_is_lost(void **state) {
    (void)state;
    lksi_link ours, theirs;
    open_pair(&ours, &theirs);
    listen_for(&ours, 10 * timeout_ms);
    assert_int_equal(ours.connection, -1);
    assert_string_equal(ours.loss, "has been silent for 0.4 s");
    lksi_link_close(&theirs);
}

/* Like all processes of a suspended job. */
static void sides_that_were_stopped_together_do_not_lose_each_other(void **state) {
    (void)state;
    lksi_link ours, theirs;
    open_pair(&ours, &theirs);
    lksi_link_tick(&ours, timeout_ms);
    lksi_link_tick(&theirs, timeout_ms);
    lksi_sleep_ns(2 * timeout_ms * 1000000);
    listen_for(&ours, 20); /* the other side wakes a little later */
    assert_true(ours.connection >= 0);
    lksi_link_tick(&theirs, timeout_ms);
    assert_true(theirs.connection >= 0);
    listen_for(&ours, 10 * timeout_ms); /* and then is silent */
    assert_string_equal(ours.loss, "has been silent for 0.4 s");
    lksi_link_close(&theirs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_said_before_a_failed_send_is_heard_before_the_loss),
        cmocka_unit_test(one_who_does_not_read_is_lost),
        cmocka_unit_test(one_who_is_silent_is_lost),
        cmocka_unit_test(sides_that_were_stopped_together_do_not_lose_each_other),
    };
    return run_group(tests);
}
