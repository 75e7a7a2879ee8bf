/* launch/: hosts that the head of a run does not let in. */
/* labels: no-tsan */
#include "test.h"

#include "comm/bootstrap/dial.h"
#include "launch/link.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 20000 };

/* Node 0 of two, whose rank would end at once; what it tells the user goes into `report`. */
static int be_head(int port, int report) {
    char number[16];
    snprintf(number, sizeof number, "%d", port);
    if (dup2(report, STDERR_FILENO) < 0) return 1;
    execl(LKSI_BUILD_DIR "/lockstep", "lockstep", "run", "-n", "1", "--nnodes", "2", "--node-rank", "0",
          "--master-addr", "127.0.0.1", "--master-port", number, "true", (char *)NULL);
    return 1;
}

static int free_port(void) {
    lksi_address any, bound;
    int listener;
    assert_ok(lksi_address_resolve("127.0.0.1", 0, &any));
    assert_ok(lksi_listen(&any, &listener, &bound));
    close(listener);
    return lksi_address_port(&bound);
}

static int join(int port, const lksi_agent_hello *hello) {
    lksi_address head;
    lksi_job_secret secret;
    int connection;
    assert_ok(lksi_address_resolve("127.0.0.1", port, &head));
    assert_ok(lksi_job_secret_read(&(lksi_environment){.rank = 1, .size = 2, .master_port = port}, &secret));
    assert_ok(lksi_dial(&head, secret.key, hello, sizeof *hello, lksi_now_ns() + INT64_C(1000000) * DEADLINE_MS, true,
                        NULL, NULL, &connection));
    return connection;
}

static void assert_told_to_end(int connection, const char *why) {
    lksi_link link;
    lksi_message message = {.kind = LKSI_MESSAGE_HEARTBEAT};
    struct pollfd polled = {.fd = connection, .events = POLLIN};
    lksi_link_open(&link, connection);
    while (!lksi_link_receive(&link, &message) && link.connection >= 0)
        assert_int_equal(poll(&polled, 1, DEADLINE_MS), 1);
    assert_int_equal(message.kind, LKSI_MESSAGE_OVER);
    assert_int_equal(message.number, 1);
    assert_non_null(strstr(message.text, why));
    lksi_link_close(&link);
}

static void a_host_that_does_not_fit_ends_the_run(void **state) {
    (void)state;
    static const lksi_agent_hello right = {.magic = LKSI_AGENT_MAGIC,
                                           .protocol = LKSI_AGENT_PROTOCOL,
                                           .node = 1,
                                           .n_nodes = 2,
                                           .n_slots = 1,
                                           .host = "far"};
    static const char *const whys[] = {
        "host far runs lockstep 9.8.7, the head of the run ", "node 1 (host far) has --nnodes 3, node 0 has 2",
        "host far says that it is node 2 of 2 with 1 slots", "host far says that it is node 1 of 2 with 0 slots"};
    for (int i = 0; i < 4; i++) {
        lksi_agent_hello hello = right;
        snprintf(hello.version, sizeof hello.version, "%s", i == 0 ? "9.8.7" : lks_version());
        if (i == 1) hello.n_nodes = 3;
        if (i == 2) hello.node = 2;
        if (i == 3) hello.n_slots = 0;
        char told[512] = "";
        int report[2], status, port = free_port();
        assert_int_equal(pipe(report), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(be_head(port, report[1]));
        close(report[1]);
        assert_told_to_end(join(port, &hello), whys[i]);
        for (size_t n_told = 0; n_told < sizeof told - 1;) {
            ssize_t n_read = read(report[0], told + n_told, sizeof told - 1 - n_told);
            if (n_read <= 0) break;
            n_told += (size_t)n_read;
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
        assert_non_null(strstr(told, whys[i]));
        close(report[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_host_that_does_not_fit_ends_the_run)};
    return run_group(tests);
}
