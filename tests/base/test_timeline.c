/* The timeline: its file is complete JSON after every flush, whatever the names are, and ends after 300000 events. */
#include "test.h"

#include "base/timeline.h"

#include <cjson/cJSON.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_MOST = 300000, MOST_NBYTES = 100 << 20 };

static int n_before_rank; /* events in the file of the process */
static char directory[] = "/tmp/lockstep-timeline-XXXXXX", path[64];

static cJSON *read_json(const char *of_path) {
    cJSON *events = NULL;
    assert_ok(lksi_json_read(of_path, MOST_NBYTES, &events));
    assert_true(cJSON_IsArray(events));
    return events;
}

static cJSON *read_file(void) {
    lksi_timeline_flush();
    return read_json(path);
}

static const char *text_of(const cJSON *event, const char *key) {
    return cJSON_GetStringValue(cJSON_GetObjectItem(event, key));
}

static double number_of(const cJSON *event, const char *key) {
    return cJSON_GetNumberValue(cJSON_GetObjectItem(event, key));
}

static void test_sections_nest(void **state) {
    (void)state;
    int64_t outer = lks_timeline_begin(), inner = lks_timeline_begin();
    lksi_sleep_ns(LKSI_NS_PER_MS);
    lks_timeline_end(inner, "inner");
    lks_timeline_end(outer, "outer");
    cJSON *events = read_file();
    assert_int_equal(cJSON_GetArraySize(events), 4);
    const cJSON *process = cJSON_GetArrayItem(events, 0), *thread = cJSON_GetArrayItem(events, 1);
    const cJSON *in = cJSON_GetArrayItem(events, 2), *out = cJSON_GetArrayItem(events, 3);
    assert_string_equal(text_of(process, "name"), "process_name");
    assert_string_equal(text_of(cJSON_GetObjectItem(thread, "args"), "name"), "main");
    assert_string_equal(text_of(in, "name"), "inner");
    assert_string_equal(text_of(out, "cat"), "user");
    assert_true(number_of(in, "ts") >= number_of(out, "ts"));
    assert_true(number_of(in, "dur") >= 1000 && number_of(in, "dur") <= number_of(out, "dur"));
    cJSON_Delete(events);
}

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *given, *written;
    } cases[] = {{"a\"b\\c\n", "a'b'c?"},
                 {"gr\xc3\xb6\xc3\x9f"
                  "e",
                  "gr\xc3\xb6\xc3\x9f"
                  "e"},
                 {"\xff\xc3", "??"},
                 {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_timeline_end(lks_timeline_begin(), cases[i].given);
        cJSON *events = read_file();
        const cJSON *last = cJSON_GetArrayItem(events, cJSON_GetArraySize(events) - 1);
        assert_string_equal(text_of(last, "name"), cases[i].written);
        cJSON_Delete(events);
    }
    char is_long[200] = {0};
    memset(is_long, 'x', sizeof is_long - 1);
    lks_timeline_end(lks_timeline_begin(), is_long);
    cJSON *events = read_file();
    const cJSON *last = cJSON_GetArrayItem(events, cJSON_GetArraySize(events) - 1);
    assert_int_equal(strlen(text_of(last, "name")), 79);
    cJSON_Delete(events);
}

static void test_no_section(void **state) {
    (void)state;
    cJSON *before = read_file();
    lks_timeline_end(0, "begun without a timeline");
    lks_timeline_end(lks_timeline_begin(), NULL);
    assert_non_null(strstr(lks_error_text(), "`name` is NULL"));
    cJSON *after = read_file();
    assert_int_equal(cJSON_GetArraySize(before), cJSON_GetArraySize(after));
    cJSON_Delete(before);
    cJSON_Delete(after);
}

/* A child has a file of its own, and the parent's remains as it is. */
static void test_fork(void **state) {
    (void)state;
    char of_child[64];
    cJSON *before = read_file();
    lks_timeline_end(lks_timeline_begin(), "of the parent");
    pid_t child = fork();
    if (child == 0) {
        lks_timeline_end(lks_timeline_begin(), "of the child");
        lksi_timeline_flush();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    snprintf(of_child, sizeof of_child, "%s/process%d.json", directory, (int)child);
    cJSON *after = read_file(), *own = read_json(of_child);
    assert_int_equal(cJSON_GetArraySize(after), cJSON_GetArraySize(before) + 1);
    assert_int_equal(cJSON_GetArraySize(own), 3); /* its title, its thread's name, its section */
    assert_string_equal(text_of(cJSON_GetArrayItem(own, 2), "name"), "of the child");
    assert_int_equal(number_of(cJSON_GetArrayItem(own, 2), "pid"), child);
    unlink(of_child);
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(own);
}

/* In a child, because the timeline ends. */
static void test_full_disk(void **state) {
    (void)state;
    char of_child[64];
    pid_t child = fork();
    if (child == 0) {
        lks_log_set_level(LKS_LOG_ERROR);
        signal(SIGXFSZ, SIG_IGN);
        lks_timeline_end(lks_timeline_begin(), "fits");
        lksi_timeline_flush();
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){10000, 10000});
        for (int i = 0; i < 1000; i++) lks_timeline_end(lks_timeline_begin(), "does not fit");
        lksi_timeline_flush();
        lks_timeline_end(lks_timeline_begin(), "after the end");
        lksi_timeline_flush();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    snprintf(of_child, sizeof of_child, "%s/process%d.json", directory, (int)child);
    cJSON *own = read_json(of_child);
    assert_int_equal(cJSON_GetArraySize(own), 3);
    assert_string_equal(text_of(cJSON_GetArrayItem(own, 2), "name"), "fits");
    unlink(of_child);
    cJSON_Delete(own);
}

/* What was recorded before the rank was known remains where it is. */
static void test_rank(void **state) {
    (void)state;
    cJSON *before = read_file();
    assert_ok(lksi_timeline_open());
    cJSON *after = read_file();
    n_before_rank = cJSON_GetArraySize(after);
    assert_int_equal(cJSON_GetArraySize(before), n_before_rank);
    unlink(path);
    snprintf(path, sizeof path, "%s/rank0.json", directory);
    lks_timeline_end(lks_timeline_begin(), "of rank 0");
    cJSON *events = read_file();
    assert_int_equal(cJSON_GetArraySize(events), 3);
    assert_string_equal(text_of(cJSON_GetObjectItem(cJSON_GetArrayItem(events, 1), "args"), "name"), "main");
    assert_int_equal(number_of(cJSON_GetArrayItem(events, 2), "pid"), 0);
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(events);
}

/* The last test: afterwards nothing more is recorded. */
static void test_end(void **state) {
    (void)state;
    lks_log_set_level(LKS_LOG_ERROR);
    for (int i = 0; i < N_MOST + 5000; i++) lks_timeline_end(lks_timeline_begin(), "one of many");
    cJSON *events = read_file();
    int n_events = n_before_rank - 1 + cJSON_GetArraySize(events); /* the title is none */
    assert_in_range(n_events, N_MOST - 1, N_MOST + 1);
    cJSON_Delete(events);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sections_nest),
                                       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_no_section),
                                       cmocka_unit_test(test_fork),
                                       cmocka_unit_test(test_full_disk),
                                       cmocka_unit_test(test_rank),
                                       cmocka_unit_test(test_end)};
    if (mkdtemp(directory) == NULL || setenv("LOCKSTEP_TIMELINE", directory, 1) != 0) return 1;
    snprintf(path, sizeof path, "%s/process%d.json", directory, (int)getpid());
    int n_failed = run_group(tests);
    unlink(path);
    rmdir(directory);
    return n_failed;
}
