/* launch/: hosts that the head of a run rejects, hosts that are lost early, and how hosts are reached. */
/* labels: no-tsan */
#define _GNU_SOURCE /* memfd_create, pipe2 */
#include "test.h"

#include "comm/bootstrap/build.h"
#include "comm/bootstrap/local_key.h"
#include "launch/agent.h"
#include "launch/link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 20000 };

static int free_port(void) {
    lksi_address any, bound;
    int listener;
    assert_ok(lksi_address_resolve("127.0.0.1", 0, &any));
    assert_ok(lksi_listen(&any, &listener, &bound));
    close(listener);
    return lksi_address_port(&bound);
}

typedef struct head_process {
    pid_t pid;
    int port, report; /* `report` is the read end of the head's standard error */
} head_process;

/* Starts `lockstep ARGUMENTS`. */
static head_process start_lockstep(char *const *arguments) {
    int report[2];
    head_process head = {.port = 0};
    assert_int_equal(pipe(report), 0);
    head.pid = fork();
    assert_true(head.pid >= 0);
    if (head.pid == 0) {
        if (dup2(report[1], STDERR_FILENO) >= 0) execv(LKSI_BUILD_DIR "/lockstep", arguments);
        _exit(1);
    }
    close(report[1]);
    head.report = report[0];
    return head;
}

/* Starts the head as node 0 of two. `option` and `value` say how few ranks are enough. */
static head_process start_head_with(const char *option, const char *value, const char *program) {
    char number[16];
    const int port = free_port();
    snprintf(number, sizeof number, "%d", port);
    head_process head = start_lockstep((char *[]){"lockstep",
                                                  "run",
                                                  "-n",
                                                  "1",
                                                  "--nnodes",
                                                  "2",
                                                  "--node-rank",
                                                  "0",
                                                  "--master-addr",
                                                  "127.0.0.1",
                                                  "--master-port",
                                                  number,
                                                  "--max-restarts",
                                                  "1",
                                                  "--join-timeout",
                                                  "20",
                                                  (char *)(uintptr_t)option,
                                                  (char *)(uintptr_t)value,
                                                  "--grace",
                                                  "0.1",
                                                  "sh",
                                                  "-c",
                                                  (char *)(uintptr_t)program,
                                                  NULL});
    head.port = port;
    return head;
}

/* Its ranks exit immediately. */
static head_process start_head(void) { return start_head_with("--min-ranks", "1", "true"); }

/* Starts a run over the hosts of a hosts file. This program plays the remote shell, of kind `kind`. */
static head_process start_head_of(const char *hosts, const char *kind, char *const *more) {
    char path[64], shell[64], *arguments[16] = {"lockstep", "run", "--hosts", path, "--ssh", shell};
    const int file = memfd_create("hosts", 0);
    assert_true(file >= 0);
    assert_int_equal(write(file, hosts, strlen(hosts)), (ssize_t)strlen(hosts));
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    snprintf(shell, sizeof shell, "/proc/%d/exe %s", (int)getpid(), kind); /* no path: it may have blanks */
    for (int n = 6; *more != NULL; more++) arguments[n++] = *more;
    const head_process head = start_lockstep(arguments);
    close(file);
    return head;
}

/* Reads until `awaited` has appeared, or to the end if it is NULL. */
static void read_report(const head_process *head, const char *awaited, char text[2048]) {
    text[0] = '\0';
    for (size_t n_told = 0; n_told < 2047 && (awaited == NULL || strstr(text, awaited) == NULL);) {
        ssize_t n_read = read(head->report, text + n_told, 2047 - n_told);
        if (n_read <= 0) break;
        n_told += (size_t)n_read;
        text[n_told] = '\0';
    }
}

static void assert_ends(const head_process *head, int exit_status, const char *told) {
    char text[2048];
    int status;
    read_report(head, NULL, text);
    close(head->report);
    assert_int_equal(waitpid(head->pid, &status, 0), head->pid);
    assert_true(WIFEXITED(status));
    if (strstr(text, told) == NULL) print_error("'%s' was expected in '%s'\n", told, text);
    assert_non_null(strstr(text, told));
    assert_int_equal(WEXITSTATUS(status), exit_status);
}

static int join(int port, const lksi_agent_hello *hello) {
    lksi_address head;
    lksi_job_secret secret;
    int connection;
    assert_ok(lksi_address_resolve("127.0.0.1", port, &head));
    assert_ok(lksi_job_secret_read(&(lksi_environment){.rank = 1, .size = 2, .master_port = port}, &secret));
    assert_ok(lksi_local_key_dial(&head, &secret, hello, sizeof *hello, lksi_now_ns() + INT64_C(1000000) * DEADLINE_MS,
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

/* Waits for a message of this kind and generation from the head. */
static void await_message(lksi_link *link, int kind, int generation) {
    lksi_message message = {.kind = LKSI_MESSAGE_HEARTBEAT};
    struct pollfd polled = {.fd = link->connection, .events = POLLIN};
    while (message.kind != kind || message.generation != generation)
        if (!lksi_link_receive(link, &message)) {
            assert_true(link->connection >= 0);
            assert_int_equal(poll(&polled, 1, DEADLINE_MS), 1);
        }
}

static lksi_agent_hello right_hello(void) {
    lksi_agent_hello hello = {.magic = LKSI_AGENT_MAGIC, .node = 1, .n_nodes = 2, .n_slots = 1, .host = "far"};
    lksi_build build;
    lksi_build_fill(&build);
    snprintf(hello.version, sizeof hello.version, "%.15s", build.version);
    hello.source = build.source;
    return hello;
}

static void a_host_that_does_not_fit_ends_the_run(void **state) {
    (void)state;
    static const char *const whys[] = {
        "host far runs lockstep 9.8.7, the head of the run ", "host far runs another build of lockstep ",
        "node 1 (host far) has --nnodes 3, node 0 has 2", "host far says that it is node 2 of 2 with 1 slots",
        "host far says that it is node 1 of 2 with 0 slots"};
    for (int i = 0; i < 5; i++) {
        lksi_agent_hello hello = right_hello();
        if (i == 0) snprintf(hello.version, sizeof hello.version, "9.8.7");
        if (i == 1) hello.source++;
        if (i == 2) hello.n_nodes = 3;
        if (i == 3) hello.node = 2;
        if (i == 4) hello.n_slots = 0;
        const head_process head = start_head();
        assert_told_to_end(join(head.port, &hello), whys[i]);
        assert_ends(&head, 1, whys[i]);
    }
}

/* All hosts have joined, so the run has begun: a generation without the lost host follows. */
static void a_host_that_is_lost_before_its_ranks_begin_is_a_loss_like_others(void **state) {
    (void)state;
    const lksi_agent_hello hello = right_hello();
    const head_process head = start_head();
    lksi_sleep_ns(INT64_C(5) * 1000 * LKSI_NS_PER_MS); /* node 0's own agent joins meanwhile */
    close(join(head.port, &hello));
    assert_ends(&head, 0, "generation 1 of 1 rank follows");
}

/* The bits do not depend on the number of ranks. */
static void with_grains_the_ranks_that_are_left_go_on(void **state) {
    (void)state;
    lksi_link link;
    const lksi_agent_hello hello = right_hello();
    const head_process head =
        start_head_with("--grains", "2", "while [ $LOCKSTEP_GENERATION != 1 ]; do sleep 0.02; done");
    lksi_link_open(&link, join(head.port, &hello));
    await_message(&link, LKSI_MESSAGE_START, 0);
    lksi_link_close(&link);
    assert_ends(&head, 0, "generation 1 of 1 rank follows");
}

/* The ranks get SIGTERM, but catch it and exit with status 0. */
static void ranks_that_end_well_make_room_for_more(void **state) {
    (void)state;
    char text[2048];
    lksi_link link;
    const lksi_agent_hello hello = right_hello();
    const head_process head = start_head_with("--min-ranks", "1",
                                              "trap 'exit 0' TERM; echo in $LOCKSTEP_GENERATION >&2\n"
                                              "while [ $LOCKSTEP_GENERATION != 2 ]; do sleep 0.02; done");
    lksi_link_open(&link, join(head.port, &hello));
    await_message(&link, LKSI_MESSAGE_START, 0);
    lksi_link_close(&link);
    read_report(&head, "in 1\n", text);
    lksi_link_open(&link, join(head.port, &hello));
    await_message(&link, LKSI_MESSAGE_START, 2);
    lksi_link_send(&link, &(lksi_message){.kind = LKSI_MESSAGE_ENDED, .generation = 2});
    assert_ends(&head, 0, "generation 2 of 2 ranks follows; restarts left: 0");
    lksi_link_close(&link);
}

/* The ranks have been told to make room, and end with status 0 after the signal. */
static void a_signal_while_the_run_grows_ends_it_with_its_status(void **state) {
    (void)state;
    char text[2048], directory[] = "/tmp/lockstep_head_XXXXXX", go[64], program[256];
    lksi_link link;
    const lksi_agent_hello hello = right_hello();
    assert_non_null(mkdtemp(directory));
    snprintf(go, sizeof go, "%s/go", directory);
    snprintf(
        program, sizeof program,
        "trap 'echo asked >&2; until [ -e %s ]; do sleep 0.02; done; exit 0' TERM; echo in $LOCKSTEP_GENERATION >&2\n"
        "while :; do sleep 0.02; done",
        go);
    const head_process head = start_head_with("--min-ranks", "1", program);
    lksi_link_open(&link, join(head.port, &hello));
    await_message(&link, LKSI_MESSAGE_START, 0);
    lksi_link_close(&link);
    read_report(&head, "in 1\n", text);
    lksi_link_open(&link, join(head.port, &hello));
    read_report(&head, "asked\n", text);
    kill(head.pid, SIGINT);
    close(open(go, O_CREAT | O_WRONLY, 0600));
    assert_ends(&head, 130, "");
    lksi_link_close(&link);
    assert_int_equal(unlink(go), 0);
    assert_int_equal(rmdir(directory), 0);
}

static void a_host_that_claims_no_port_is_lost(void **state) {
    (void)state;
    const head_process head =
        start_head_of("far", "mute", (char *[]){"--master-addr", "127.0.0.1", "--join-timeout", "2", "true", NULL});
    assert_ends(&head, 1, "host far was lost: it did not claim a port in time (rank 0)");
}

/* The rank has written more than fits in a message. */
static void the_last_line_of_a_failed_rank_is_told(void **state) {
    (void)state;
    char directory[] = "/tmp/lockstep_head_XXXXXX", log[64];
    assert_non_null(mkdtemp(directory));
    const head_process head = start_head_of(
        "localhost", "none",
        (char *[]){"--log-dir", directory, "sh", "-c", "printf '%01500d\\nno such data\\n' 0; exit 3", NULL});
    assert_ends(&head, 3, "exited with status 3; its last lines:\n  | no such data\n");
    snprintf(log, sizeof log, "%s/rank-0.log", directory);
    assert_int_equal(unlink(log), 0);
    assert_int_equal(rmdir(directory), 0);
}

static int count_lines(int descriptor) {
    char text[65536];
    int n_lines = 0;
    for (ssize_t n_read; (n_read = read(descriptor, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n_read; i++) n_lines += text[i] == '\n';
    return n_lines;
}

/* The reader pauses for longer than the heartbeat timeout. */
static void a_reader_that_pauses_costs_no_host(void **state) {
    (void)state;
    int output[2];
    const int own = dup(STDOUT_FILENO);
    assert_int_equal(pipe2(output, O_CLOEXEC), 0);
    assert_true(dup2(output[1], STDOUT_FILENO) >= 0);
    close(output[1]);
    const head_process head =
        start_head_of("localhost", "none", (char *[]){"--prefix", "--heartbeat-timeout", "1", "seq", "100000", NULL});
    assert_true(dup2(own, STDOUT_FILENO) >= 0);
    close(own);
    lksi_sleep_ns(INT64_C(1000000) * 2500);
    assert_int_equal(count_lines(output[0]), 100000);
    close(output[0]);
    assert_ends(&head, 0, "");
}

/* The same for warnings of the head itself. The rank has filled the pipe by then. */
static void a_reader_of_warnings_that_pauses_costs_no_host(void **state) {
    (void)state;
    const head_process head =
        start_head_of("localhost", "none", (char *[]){"--heartbeat-timeout", "1", "sh", "-c", "seq 100000 >&2", NULL});
    lksi_sleep_ns(INT64_C(1000000) * 1500);
    kill(head.pid, SIGTSTP);
    lksi_sleep_ns(INT64_C(1000000) * 2500);
    assert_int_equal(count_lines(head.report), 100001);
    assert_ends(&head, 0, "");
}

/* The first remote shell needs longer for the output than the limit for a shell that delivers nothing, as the second.
 */
static void output_in_a_slow_remote_shell_is_awaited(void **state) {
    (void)state;
    char *const arguments[] = {"--master-addr", "127.0.0.1", "seq", "7", NULL};
    const head_process slow = start_head_of("far", "slow", arguments), hung = start_head_of("far", "hung", arguments);
    assert_ends(&slow, 0, "1\n2\n3\n4\n5\n6\n7\n");
    assert_ends(&hung, 1, "the remote shell of host far did not end in time; output was lost");
}

/* The rank kills its agent. The second remote shell of the run that "hung" delivers nothing more, either. */
static void output_of_a_lost_agent_is_awaited_before_it_is_started_again(void **state) {
    (void)state;
    char *const arguments[] = {"--master-addr",
                               "127.0.0.1",
                               "--max-restarts",
                               "1",
                               "sh",
                               "-c",
                               "[ $LOCKSTEP_GENERATION = 1 ] || { seq 7; kill -KILL $PPID; sleep 5; }",
                               NULL};
    const head_process slow = start_head_of("far", "slow", arguments), hung = start_head_of("far", "hung", arguments);
    assert_ends(&slow, 0, "1\n2\n3\n4\n5\n6\n7\n");
    assert_ends(&hung, 1, "output of host far that has not arrived is lost");
}

/* The agent and its rank live on at first. */
static void a_host_whose_remote_shell_ends_is_lost(void **state) {
    (void)state;
    const head_process head =
        start_head_of("far", "fragile",
                      (char *[]){"--master-addr", "127.0.0.1", "sh", "-c", "kill -KILL $REMOTE_SHELL; sleep 5", NULL});
    assert_ends(&head, 1, "host far was lost: it lost its remote shell, which was killed by SIGKILL (rank 0)");
}

static void hosts_of_a_file_have_no_other_number(void **state) {
    (void)state;
    const head_process head = start_head_of("localhost", "none", (char *[]){"--node-rank", "1", "true", NULL});
    assert_ends(&head, 2, "--node-rank is for --nnodes");
}

static void ssh_may_be_told_a_user(void **state) {
    (void)state;
    const head_process head = start_head_of("me@localhost", "sh", (char *[]){"true", NULL});
    assert_ends(&head, 0, "");
}

/* The job key is the last variable: if any were cut off, it would be missing. */
static void all_variables_are_handed_on(void **state) {
    (void)state;
    char name[32];
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof name, "LOCKSTEP_TEST_%d", i);
        setenv(name, "set", 1);
    }
    const head_process head = start_head_of(
        "localhost", "none",
        (char *[]){"sh", "-c", "test \"$(env | grep -c ^LOCKSTEP_TEST_)\" = 600 && test -n \"$LOCKSTEP_JOB_KEY\"",
                   NULL});
    assert_ends(&head, 0, "");
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof name, "LOCKSTEP_TEST_%d", i);
        unsetenv(name);
    }
}

static void closed_standard_descriptors_do_no_harm(void **state) {
    (void)state;
    char directory[] = "/tmp/lockstep-test-head-XXXXXX", log[64], text[16] = "", number[16];
    int status;
    assert_non_null(mkdtemp(directory));
    snprintf(number, sizeof number, "%d", free_port());
    const pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i <= STDERR_FILENO; i++) close(i);
        execl(LKSI_BUILD_DIR "/lockstep", "lockstep", "run", "-n", "1", "--nnodes", "1", "--node-rank", "0",
              "--master-addr", "127.0.0.1", "--master-port", number, "--log-dir", directory, "echo", "hello",
              (char *)NULL);
        _exit(1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    snprintf(log, sizeof log, "%s/rank-0.log", directory);
    FILE *file = fopen(log, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    assert_string_equal(text, "hello\n");
    fclose(file);
    unlink(log);
    rmdir(directory);
}

static void a_signal_before_it_has_joined_is_named(void **state) {
    (void)state;
    lksi_address any, bound;
    char number[16];
    int listener;
    assert_ok(lksi_address_resolve("127.0.0.1", 0, &any));
    assert_ok(lksi_listen(&any, &listener, &bound));
    snprintf(number, sizeof number, "%d", lksi_address_port(&bound));
    const head_process agent =
        start_lockstep((char *[]){"lockstep", "run", "-n", "1", "--nnodes", "2", "--node-rank", "1", "--master-addr",
                                  "127.0.0.1", "--master-port", number, "true", NULL});
    struct pollfd polled = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&polled, 1, DEADLINE_MS), 1);
    kill(agent.pid, SIGTERM);
    assert_ends(&agent, 143, "node 1 was ended by SIGTERM before it had joined the run");
    close(listener);
}

/* --- this program as a remote shell --- */

/* Plays an agent that joins and then only sends heartbeats. */
static int be_mute(void) {
    lksi_run run = {.port = 0};
    lksi_agent_hello hello = right_hello();
    char *text, **argv;
    lksi_link link;
    lksi_message message;
    if (lksi_agent_text_read(STDIN_FILENO, &run, &text, &argv) != LKS_OK) return 1;
    hello.node = run.node, hello.n_nodes = run.n_nodes, hello.n_slots = run.job.n_ranks;
    lksi_link_open(&link, join(run.port, &hello));
    while (link.connection >= 0) {
        lksi_sleep_ns(INT64_C(100000000));
        while (lksi_link_receive(&link, &message)) continue;
        lksi_link_tick(&link, DEADLINE_MS);
    }
    return 0;
}

/* Other hosts would look for node 0 on themselves. */
static void an_address_that_every_host_takes_for_itself_is_for_one_host_only(void **state) {
    (void)state;
    static const char refusal[] = "--master-addr is 0.0.0.0:29400, which every host takes for itself";
    setenv("LOCKSTEP_JOB_KEY", "secret", 1);
    for (int node = 0; node < 2; node++) {
        const head_process two =
            start_lockstep((char *[]){"lockstep", "run", "-n", "1", "--nnodes", "2", "--node-rank",
                                      node == 0 ? "0" : "1", "--master-addr", "0.0.0.0", "true", NULL});
        assert_ends(&two, 1, refusal);
    }
    const head_process far = start_head_of(
        "far\n", "unused", (char *[]){"--master-addr", "0.0.0.0", "--master-port", "29400", "true", NULL});
    assert_ends(&far, 1, refusal);
    char number[16];
    snprintf(number, sizeof number, "%d", free_port());
    const head_process one = start_lockstep((char *[]){"lockstep", "run", "-n", "1", "--nnodes", "1", "--master-addr",
                                                       "0.0.0.0", "--master-port", number, "true", NULL});
    assert_ends(&one, 0, "");
    unsetenv("LOCKSTEP_JOB_KEY");
}

/* Plays a remote shell, of one of these kinds or one that is nothing but a shell. */
static int be_shell(const char *kind, const char *command) {
    static const struct {
        const char *kind, *script; /* its $0 is the command */
    } shells[] = {
        {"slow", "output=$(sh -c \"$0\"); for line in $output; do sleep 2; echo $line >&2; done"},
        {"hung", "sh -c \"$0\" >&2; sleep 60"},
        {"fragile", "export REMOTE_SHELL=$$; exec 3<&0; sh -c \"$0\" <&3 & wait"},
    };
    const char *script = "eval \"$0\"";
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (strcmp(kind, shells[i].kind) == 0) script = shells[i].script;
    return execl("/bin/sh", "sh", "-c", script, command, (char *)NULL);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "mute") == 0) return be_mute();
    if (argc > 1) return be_shell(argv[1], argv[argc - 1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_that_does_not_fit_ends_the_run),
        cmocka_unit_test(a_host_that_is_lost_before_its_ranks_begin_is_a_loss_like_others),
        cmocka_unit_test(with_grains_the_ranks_that_are_left_go_on),
        cmocka_unit_test(ranks_that_end_well_make_room_for_more),
        cmocka_unit_test(a_signal_while_the_run_grows_ends_it_with_its_status),
        cmocka_unit_test(a_host_that_claims_no_port_is_lost),
        cmocka_unit_test(the_last_line_of_a_failed_rank_is_told),
        cmocka_unit_test(a_reader_that_pauses_costs_no_host),
        cmocka_unit_test(a_reader_of_warnings_that_pauses_costs_no_host),
        cmocka_unit_test(output_in_a_slow_remote_shell_is_awaited),
        cmocka_unit_test(output_of_a_lost_agent_is_awaited_before_it_is_started_again),
        cmocka_unit_test(a_host_whose_remote_shell_ends_is_lost),
        cmocka_unit_test(hosts_of_a_file_have_no_other_number),
        cmocka_unit_test(ssh_may_be_told_a_user),
        cmocka_unit_test(all_variables_are_handed_on),
        cmocka_unit_test(closed_standard_descriptors_do_no_harm),
        cmocka_unit_test(a_signal_before_it_has_joined_is_named),
        cmocka_unit_test(an_address_that_every_host_takes_for_itself_is_for_one_host_only),
    };
    return run_group(tests);
}
