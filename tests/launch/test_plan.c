/* launch/: how many ranks a generation has, hosts files, and the text that an agent gets. */
#include "test.h"

#include "launch/agent.h"
#include "launch/hosts_file.h"
#include "launch/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- plan.c --- */

static void the_largest_size_that_fits_is_taken(void **state) {
    (void)state;
    assert_int_equal(lksi_plan_size(8, 8, 8, 0), 8);
    assert_int_equal(lksi_plan_size(7, 8, 8, 0), 0);
    assert_int_equal(lksi_plan_size(7, 8, 2, 0), 7);
    assert_int_equal(lksi_plan_size(7, 8, 2, 8), 4);
    assert_int_equal(lksi_plan_size(3, 8, 3, 8), 0);
    assert_int_equal(lksi_plan_size(12, 8, 1, 8), 8);
    assert_int_equal(lksi_plan_size(3, 3, 1, 4), 2);
    assert_int_equal(lksi_plan_size(0, 4, 1, 4), 0);
}

/* --- hosts_file.c --- */

static lks_status parse(const char *text, lksi_host_line **hosts, int *n_hosts) {
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text);
    return lksi_hosts_parse("hosts", copy, hosts, n_hosts);
}

static void hosts_have_the_slots_that_their_lines_say(void **state) {
    (void)state;
    lksi_host_line *hosts;
    int n_hosts;
    assert_ok(parse("# all\n\nhead\n  node1 slots=2\t# two\nnode2 max_slots = 4 slots =1\nnode3 max-slots=3\n", &hosts,
                    &n_hosts));
    assert_int_equal(n_hosts, 4);
    assert_string_equal(hosts[0].name, "head");
    assert_int_equal(hosts[0].n_slots, 1);
    assert_int_equal(hosts[1].n_slots, 2);
    assert_int_equal(hosts[1].line, 4);
    assert_int_equal(hosts[2].n_slots, 1);
    assert_int_equal(hosts[2].max_slots, 4);
    assert_int_equal(hosts[3].n_slots, 3);
    lksi_free(hosts);
    assert_ok(parse("node1:2 max_slots=3\n[fd00::2]:4\n[fd00::3]\nfd00::4\n"
                    "ann@[fd00::4]:2\nann@[fd00::5]\nann@fd00::6\nann@node1:3\n",
                    &hosts, &n_hosts));
    static const lksi_host_line expected[] = {
        {"node1", 2, 3, 1},       {"fd00::2", 4, 4, 2},     {"fd00::3", 1, 1, 3},     {"fd00::4", 1, 1, 4},
        {"ann@fd00::4", 2, 2, 5}, {"ann@fd00::5", 1, 1, 6}, {"ann@fd00::6", 1, 1, 7}, {"ann@node1", 3, 3, 8}};
    assert_int_equal(n_hosts, 8);
    for (int i = 0; i < 8; i++) {
        assert_string_equal(hosts[i].name, expected[i].name);
        assert_int_equal(hosts[i].n_slots, expected[i].n_slots);
        assert_int_equal(hosts[i].max_slots, expected[i].max_slots);
    }
    lksi_free(hosts);
}

static void a_byte_order_mark_is_no_part_of_a_name(void **state) {
    (void)state;
    lksi_host_line *hosts;
    int n_hosts;
    assert_ok(parse("\xef\xbb\xbfhead slots=2\n", &hosts, &n_hosts));
    assert_string_equal(hosts[0].name, "head");
    lksi_free(hosts);
}

static void a_bad_line_is_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"a\nb slots=0\n", "hosts:2: slots=N was expected"},
        {"a\n\nb slots\n", "hosts:3: slots=N was expected"},
        {"a slots=2x", "hosts:1: slots=N was expected"},
        {"a slots=1025", "hosts:1: slots=N was expected"},
        {"a slots=2 slots=3", "hosts:1: slots is given twice"},
        {"a max-slots=2 max_slots=2", "hosts:1: max_slots is given twice"},
        {"a two", "hosts:1: 'two' is neither"},
        {"a slots=3 max_slots=2", "hosts:1: slots=3 are more than max_slots=2"},
        {"=a", "hosts:1: a host was expected"},
        {"-oProxyCommand=x", "hosts:1: a host was expected"},
        {"[-oProxyCommand=x]", "hosts:1: a host was expected"},
        {"[fd00::2", "hosts:1: a host was expected"},
        {"[fd00::2]2", "hosts:1: a host was expected"},
        {":2", "hosts:1: a host was expected"},
        {"[]:2", "hosts:1: a host was expected"},
        {"ann@", "hosts:1: a host was expected"},
        {"ann@:2", "hosts:1: a host was expected"},
        {"ann@[fd00::2", "hosts:1: a host was expected"},
        {"ann@[fd00::2]2", "hosts:1: a host was expected"},
        {"ann@[-oProxyCommand=x]", "hosts:1: a host was expected"},
        {"a:two", "hosts:1: :two: slots are a number from 1 to 1024"},
        {"a:2 slots=2", "hosts:1: slots is given twice"},
        {"a\nb\na slots=2", "hosts:3: the host 'a' is in line 1, too"},
        {"# nobody\n", "hosts: there is no host in it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lksi_host_line *hosts;
        int n_hosts;
        assert_int_equal(parse(cases[i].text, &hosts, &n_hosts), LKS_ERR_FORMAT);
        assert_null(hosts);
        assert_non_null(strstr(lks_error_text(), cases[i].expected));
    }
}

static void more_ranks_than_slots_need_hosts_that_allow_them(void **state) {
    (void)state;
    lksi_host_line *hosts;
    int n_hosts;
    assert_ok(parse("a\nb slots=1 max_slots=3\n", &hosts, &n_hosts));
    assert_ok(lksi_hosts_fill("hosts", hosts, n_hosts, 3));
    assert_int_equal(hosts[0].n_slots, 1);
    assert_int_equal(hosts[1].n_slots, 2);
    assert_int_equal(lksi_hosts_fill("hosts", hosts, n_hosts, 5), LKS_ERR_ARGUMENT);
    assert_string_equal(lks_error_text(), "-n 5: the hosts of hosts have 4 slots");
    lksi_free(hosts);
}

static void hosts_may_come_through_a_pipe(void **state) {
    (void)state;
    static const char text[] = "node1\nnode2 slots=2\n";
    lksi_host_line *hosts;
    char path[64];
    int ends[2], n_hosts;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(ends[1]);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    assert_ok(lksi_hosts_file_read(path, &hosts, &n_hosts));
    close(ends[0]);
    assert_int_equal(n_hosts, 2);
    assert_string_equal(hosts[1].name, "node2");
    lksi_free(hosts);
    assert_int_equal(lksi_hosts_file_read("/", &hosts, &n_hosts), LKS_ERR_FILE);
    assert_string_equal(lks_error_text(), "/: Is a directory");
}

/* --- agent_text.c --- */

/* Feeds `nbytes` of `text` to the reader through a pipe, then closes it. */
static lks_status read_back(const char *text, size_t nbytes, lksi_run *run, char **kept, char ***argv) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, nbytes), (ssize_t)nbytes);
    close(ends[1]);
    lks_status status = lksi_agent_text_read(ends[0], run, kept, argv);
    close(ends[0]);
    return status;
}

static char *const program[] = {"./a program", "--flag", "", "it's \"quoted\"\n", NULL};
static const lksi_run told = {.address = "10.0.0.1",
                              .port = 29400,
                              .node = 3,
                              .n_nodes = 4,
                              .join_timeout_ms = 300000,
                              .heartbeat_timeout_ms = 10000,
                              .job = {.n_ranks = 2, .prefix = true, .log_dir = "logs", .grains = 8, .argv = program}};
static const char *const variables[] = {"LOCKSTEP_TEST_A=b=c", "LOCKSTEP_TEST_EMPTY=", NULL};

static void an_agent_hears_what_it_was_told(void **state) {
    (void)state;
    lksi_run heard = {.port = 1};
    char *text, *kept, **argv;
    size_t nbytes;
    assert_ok(lksi_agent_text_write(&told, variables, &text, &nbytes));
    assert_ok(read_back(text, nbytes, &heard, &kept, &argv));
    assert_string_equal(heard.address, "10.0.0.1");
    assert_int_equal(heard.port, 29400);
    assert_int_equal(heard.node, 3);
    assert_int_equal(heard.n_nodes, 4);
    assert_int_equal(heard.join_timeout_ms, 300000);
    assert_int_equal(heard.job.n_ranks, 2);
    assert_int_equal(heard.job.grains, 8);
    assert_true(heard.job.prefix);
    assert_false(heard.job.bind);
    assert_string_equal(heard.job.log_dir, "logs");
    for (int i = 0; i < 4; i++) assert_string_equal(heard.job.argv[i], program[i]);
    assert_null(heard.job.argv[4]);
    assert_string_equal(getenv("LOCKSTEP_TEST_A"), "b=c");
    assert_string_equal(getenv("LOCKSTEP_TEST_EMPTY"), "");
    lksi_free(kept), lksi_free(argv), lksi_free(text);
}

/* Tries every length up to the program's name. A program that lacks its last arguments looks complete. */
static void orders_that_are_cut_off_are_refused(void **state) {
    (void)state;
    char *text, *kept, **argv;
    size_t nbytes, program_at = 0;
    assert_ok(lksi_agent_text_write(&told, variables, &text, &nbytes));
    for (size_t i = 0; i < nbytes; i++)
        if (strcmp(text + i, program[0]) == 0) program_at = i;
    for (size_t n = 0; n <= program_at; n++) {
        lksi_run heard = {.port = 1};
        assert_int_equal(read_back(text, n, &heard, &kept, &argv), LKS_ERR_FORMAT);
        lksi_free(kept), lksi_free(argv);
    }
    lksi_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_size_that_fits_is_taken),
        cmocka_unit_test(hosts_have_the_slots_that_their_lines_say),
        cmocka_unit_test(a_byte_order_mark_is_no_part_of_a_name),
        cmocka_unit_test(a_bad_line_is_named),
        cmocka_unit_test(more_ranks_than_slots_need_hosts_that_allow_them),
        cmocka_unit_test(hosts_may_come_through_a_pipe),
        cmocka_unit_test(an_agent_hears_what_it_was_told),
        cmocka_unit_test(orders_that_are_cut_off_are_refused),
    };
    return run_group(tests);
}
